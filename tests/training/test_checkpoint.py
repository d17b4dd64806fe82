"""Checkpoints: whole or not at all, safe to read, and of one run only."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from sphereface2.training.checkpoint import (
    Checkpoint,
    check_settings,
    load_checkpoint,
    run_settings,
    save_checkpoint,
)
from tests.training.conftest import make_config


def make_checkpoint(step: int = 3, **settings: Any) -> Checkpoint:
    return Checkpoint(
        step=step,
        settings=settings,
        backbone={"weight": torch.arange(3.0)},
        head={},
        optimizer={"state": {0: {"momentum_buffer": torch.ones(2)}}, "param_groups": []},
        scaler={},
        best_metric=0.75,
        best_step=2,
    )


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "last.pt"
    save_checkpoint(path, make_checkpoint(seed=1))
    found = load_checkpoint(path)
    assert found.step == 3
    assert found.settings == {"seed": 1}
    assert found.best_metric == 0.75
    assert torch.equal(found.backbone["weight"], torch.arange(3.0))
    assert [file.name for file in path.parent.iterdir()] == ["last.pt"]


def test_a_failure_while_writing_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, make_checkpoint(step=3))

    def fail(values: object, file: Any) -> None:
        file.write(b"half a checkpo")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(path, make_checkpoint(step=4))
    assert load_checkpoint(path).step == 3


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*last\.pt"):
        load_checkpoint(tmp_path / "last.pt")


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_damaged_and_foreign_files_give_one_sentence(tmp_path: Path) -> None:
    good, path = tmp_path / "good.pt", tmp_path / "last.pt"
    save_checkpoint(good, make_checkpoint())
    whole = good.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:100]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"^.*last\.pt is damaged or no checkpoint; .*$"):
            load_checkpoint(path)
    path.write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(ValueError, match="is damaged or no checkpoint"):
        load_checkpoint(path)
    torch.save({"payload": Evil(tmp_path / "ran")}, path)
    with pytest.raises(ValueError, match="is damaged or no checkpoint"):
        load_checkpoint(path)
    assert not (tmp_path / "ran").exists()
    foreign: Any
    for foreign in ({"state_dict": {}}, [1, 2], {"format": "sphereface2 checkpoint 1", "a": 1}):
        torch.save(foreign, path)
        with pytest.raises(ValueError, match="is no checkpoint of this version of sphereface2"):
            load_checkpoint(path)


def test_settings_that_change_the_numbers_must_agree(tmp_path: Path) -> None:
    settings = run_settings(make_config(), images=45)
    path = tmp_path / "last.pt"
    save_checkpoint(path, make_checkpoint(**settings))
    found = load_checkpoint(path)
    check_settings(found, settings, path)
    free = make_config(workers=0, log_every=7, evaluate_every=2, checkpoint_every=5)
    check_settings(found, run_settings(free, images=45), path)
    for config, images, sentence in [
        (make_config(batch_size=4), 45, "training.batch_size=8, here it is 4"),
        (make_config(seed=1), 45, "seed=0, here it is 1"),
        (make_config(optimizer={"learning_rate": 0.2}), 45, "optimizer.learning_rate=0.1, here"),
        (make_config(), 46, "number of images=45, here it is 46"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            check_settings(found, run_settings(config, images=images), path)
