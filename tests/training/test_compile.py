"""Training with compiled maps and a compiled network."""

from pathlib import Path

import pytest
import torch

from sphereface2.backbones import build_backbone
from sphereface2.training import devices
from sphereface2.training.checkpoint import Change, changed_settings
from sphereface2.training.devices import can_compile
from sphereface2.training.step import gains_by_fusion
from sphereface2.training.trainer import Trainer
from tests.training.conftest import make_config
from tests.training.test_trainer import lines, make_trainer, parameters, stopped_trainer

CPU = torch.device("cpu")
WITH = {"compile": True, "log_every": 1}


@pytest.fixture
def _compiler() -> None:
    if not can_compile(CPU):
        pytest.skip("torch finds no working compiler here")


@pytest.mark.usefixtures("_compiler")
def test_a_compiled_run_is_the_plain_one_to_rounding_and_resumes_with_the_same_bits(
    tmp_path: Path,
) -> None:
    def losses(trainer: Trainer, folder: Path) -> list[float]:
        trainer.run()
        return [line["loss"] for line in lines(folder)]

    config = make_config(**WITH)
    whole = make_trainer(tmp_path / "whole", config)
    compiled = losses(whole, tmp_path / "whole")
    plain = losses(make_trainer(tmp_path / "plain", make_config(log_every=1)), tmp_path / "plain")
    assert compiled == pytest.approx(plain, rel=1e-4)
    assert whole.update.is_compiled
    assert whole.update.network is not whole.update.backbone
    stopped_trainer(tmp_path / "parts", 3, config=config).run()
    resumed = make_trainer(tmp_path / "parts", config)
    resumed.run(resume=True)
    expected = parameters(whole)
    assert all(torch.equal(value, expected[name]) for name, value in parameters(resumed).items())


@pytest.mark.parametrize(
    ("name", "options", "gains"),
    [
        ("sfnet4", {}, False),
        ("sfnet4", {"batch_norm": True}, True),
        ("iresnet18", {}, True),
        ("mobilefacenet", {}, False),
    ],
)
def test_on_a_cpu_networks_are_compiled_that_gain_by_it(
    name: str, options: dict[str, bool], gains: bool
) -> None:
    network = build_backbone(name, input_size=112, embedding_dim=8, **options)
    assert gains_by_fusion(network, CPU) == gains
    assert gains_by_fusion(network, torch.device("meta"))


def test_a_resumed_run_says_that_the_steps_to_come_are_others(tmp_path: Path) -> None:
    changes = changed_settings(
        {"training.compile": False}, {"training.compile": True}, run=tmp_path
    )
    assert changes == [Change("training.compile", False, True)]  # a setting
    assert changes[0].changes_steps


def test_without_a_compiler_a_run_is_plain_and_says_so(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    can_compile.cache_clear()
    try:
        trainer = make_trainer(run_folder, make_config(**WITH))
        assert not trainer.update.is_compiled
        trainer.run()
    finally:
        can_compile.cache_clear()
    (notice,) = lines(run_folder, "notice")
    assert notice["text"] == devices.NO_COMPILER
