"""Runs that start from weights: of a run, a model folder or another project, whole or in part."""

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from sphereface2.backbones import build_backbone
from sphereface2.config.schema import RunConfig, config_from_mapping, load_config
from sphereface2.data.mixing import build_training_source
from sphereface2.heads import ProxyHead, build_head
from sphereface2.models.folder import TorchModel, load_model
from sphereface2.runs import train as runs
from sphereface2.runs.estimate import plan_run
from sphereface2.runs.folder import read_history, run_config
from sphereface2.runs.start import _set_directions, read_start
from sphereface2.training.checkpoint import load_checkpoint, load_tensors
from sphereface2.training.distributed import saved_shapes
from sphereface2.training.trainer import Trainer
from tests.models import peer_networks as peers
from tests.models.test_importing import saved
from tests.runs.test_runs import NO_SETS, SMALL, small

AS_START = [each for each in SMALL if not each.startswith("backbone.")] + ["backbone=start"]
STILL = ["optimizer.learning_rate=1e-30", "optimizer.weight_decay=0"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "first"
    runs.train(small(*NO_SETS, "head.radius=12"), folder)
    return folder


def from_first(first: Path, *overrides: str) -> RunConfig:
    return small(*NO_SETS, f"training.start_from={first}", "seed=5", *overrides)


def weights(run: Path) -> dict[str, Tensor]:
    return load_model(run).backbone.state_dict()


def tensors(run: Path) -> dict[str, Tensor]:
    """All tensors of a run's last checkpoint."""
    last = run / "checkpoints" / "last"
    found = {
        name: torch.zeros(
            shape, dtype=torch.int64 if name.endswith("num_batches_tracked") else torch.float32
        )
        for name, shape in saved_shapes(last).items()
    }
    load_tensors(last, found)
    return found


# The network


def test_the_run_that_is_started_from_is_not_overwritten(first: Path) -> None:
    before = weights(first)
    for start in (first, first / "model"):
        with pytest.raises(ValueError, match=r"training\.start_from=.* is in it; choose another"):
            runs.train(from_first(start), first, overwrite=True)
    with pytest.raises(ValueError, match=r"training\.start_from=.* holds it; choose another"):
        runs.train(from_first(first), first / "model", overwrite=True)
    assert all(torch.equal(value, before[name]) for name, value in weights(first).items())


def test_a_model_of_nothing_but_nan_is_refused(first: Path, tmp_path: Path) -> None:
    shutil.copytree(first / "model", tmp_path / "broken")
    state = {name: torch.full_like(value, torch.nan) if value.is_floating_point() else value
             for name, value in weights(first).items()}  # fmt: skip
    save_file(state, tmp_path / "broken" / "model.safetensors")
    with pytest.raises(ValueError, match=r"broken is not usable: .* the same embedding, or none"):
        runs.train(from_first(tmp_path / "broken"), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_run_that_began_from_nothing_is_not_resumed_from_weights(
    first: Path, tmp_path: Path
) -> None:
    shutil.copytree(first, tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        ValueError, match=r"^training\.start_from was null when .* began and cannot"
    ):
        runs.resume(tmp_path / "run", overrides=[f"training.start_from={first}"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("what", ["", "model"])
def test_a_frozen_network_keeps_the_weights_it_starts_from(
    first: Path, what: str, tmp_path: Path
) -> None:
    config = from_first(first / what, "training.freeze={epochs: null}", "training.accumulate=2")
    runs.train(config, tmp_path / "run")
    before, after = weights(first), weights(tmp_path / "run")
    assert all(torch.equal(after[key], value) for key, value in before.items())
    # The head has learned, from the weights that its own seed gives.
    head, other = tensors(tmp_path / "run"), tensors(first)
    assert head["momentum.head.weight"].abs().sum() > 0
    assert not torch.equal(head["head.weight"], other["head.weight"])


def test_where_the_weights_are_from_is_kept(first: Path, tmp_path: Path) -> None:
    start_from = f"training.start_from={first}"
    runs.train(load_config("quickstart", [*AS_START, *NO_SETS, start_from]), tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    model, start = load_model(tmp_path / "run"), load_model(first)
    assert isinstance(model, TorchModel)
    assert isinstance(start, TorchModel)
    assert written["backbone"] == {"name": "sfnet4", **start.options}
    assert written["training"]["start_from"] == str(first)
    assert written["preprocessing"] == {"channels": "RGB", "mean": 127.5, "scale": 127.5}
    kept = model.config["extra"]["start_from"]
    assert (kept["name"], kept["source"], len(kept["sha256"])) == ("first", "model", 64)
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last").start == kept


def test_a_network_of_others_is_shown_what_it_was_trained_with(tmp_path: Path) -> None:
    path, tape = saved(tmp_path / "adaface.pth", peers.adaface((2, 2, 2, 2), width=8, dim=16))
    options = [
        "backbone.dropout=0.1",
        f"training.start_from={path}",
        "training.freeze={parts: [stem, stages], epochs: null}",
    ]
    config = load_config("quickstart", [*AS_START, *NO_SETS, *options])
    runs.train(config, tmp_path / "run")
    model = load_model(tmp_path / "run")
    assert isinstance(model, TorchModel)
    assert (model.preprocessing.channels, model.options["dropout"]) == ("BGR", 0.1)
    assert model.config["extra"]["start_from"]["source"] == "AdaFace's ir"
    state = weights(tmp_path / "run")
    assert torch.equal(state["stages.0.branch.1.weight"], tape.state["body.0.res_layer.1.weight"])
    last = tape.state["output_layer.3.weight"]
    assert state["output.3.weight"].shape == last.shape
    assert not torch.equal(state["output.3.weight"], last)


def test_a_file_of_views_is_that_of_the_config(tmp_path: Path) -> None:
    network = "{name: sfnet4, width: 4, dropout: 0.1}"
    options: dict[str, Any] = {"views": ["upper", "side"], "view_size": 16, "input_size": 32,
                               "embedding_dim": 8}  # fmt: skip
    built = build_backbone("views", seed=0, network={"name": "sfnet4", "width": 4}, **options)
    torch.save(built.state_dict(), tmp_path / "v.pt")
    said = [f"backbone.{key}={value}" for key, value in options.items()]
    plain = [each for each in SMALL if not each.startswith("backbone.")]
    config = load_config(
        "quickstart", [*plain, "backbone.name=views", f"backbone.network={network}", *said,
                  f"training.start_from={tmp_path / 'v.pt'}"],
    )  # fmt: skip
    start = read_start(config)
    assert start.name == "views"
    found = start.backbone.state_dict()
    assert all(torch.equal(found[name], value) for name, value in built.state_dict().items())


def test_what_is_not_taken_from_a_file_is_said(tmp_path: Path) -> None:
    path, tape = saved(tmp_path / "adaface.pth", peers.adaface((2, 2, 2, 2), width=8, dim=16))
    torch.save({**tape.state, "head.kernel": torch.zeros(16, 3)}, path)
    config = load_config("quickstart", [*AS_START, *NO_SETS, f"training.start_from={path}"])
    runs.train(config, tmp_path / "run")
    notices = [
        line["text"]
        for line in read_history(tmp_path / "run")
        if line["kind"] == "notice" and line["topic"] == "start"
    ]
    assert notices == ["left behind, since a model has no use for them: head.kernel"]


def test_what_a_config_says_of_a_foreign_networks_images_leaves_the_rest(tmp_path: Path) -> None:
    path, _ = saved(tmp_path / "adaface.pth", peers.adaface((2, 2, 2, 2), width=8, dim=16))
    given = ["backbone.name=iresnet18", "preprocessing.mean=0", f"training.start_from={path}"]
    config = runs.resolve(load_config("quickstart", [*NO_SETS, *given]))
    assert config.preprocessing is not None
    assert (config.preprocessing.channels, config.preprocessing.mean) == ("BGR", 0)


def test_parts_are_released_after_their_epochs(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, Tensor, Tensor, bool]] = []
    step = Trainer._train_step

    def watched(self: Trainer, batch: Any) -> None:
        step(self, batch)
        state = {key: value.clone() for key, value in self.backbone.state_dict().items()}
        norm = self.backbone.get_submodule("stages.1.1")
        seen.append((self.step, state["stages.1.1.running_mean"], state["stages.1.0.weight"],
                     norm.training))  # fmt: skip

    monkeypatch.setattr(Trainer, "_train_step", watched)
    freeze = "training.freeze={parts: [stages.1], epochs: 1}"
    runs.train(from_first(first, freeze, "training.evaluate_every=1"), tmp_path / "run")
    given = weights(first)
    assert [training for *_, training in seen] == [False] * 3 + [True] * 3
    for number, mean, weight, _ in seen:
        is_given = torch.equal(mean, given["stages.1.1.running_mean"])
        assert is_given == torch.equal(weight, given["stages.1.0.weight"]) == (number <= 3)
    assert not torch.equal(weights(tmp_path / "run")["stages.0.0.weight"],
                           given["stages.0.0.weight"])  # fmt: skip


def test_the_network_has_a_learning_rate_of_its_own(first: Path, tmp_path: Path) -> None:
    moved = []
    for number, factor in enumerate(("1.0", "1e-3")):
        run = tmp_path / str(number)
        rates = [f"optimizer.backbone_learning_rate={factor}", "optimizer.momentum=0"]
        runs.train(from_first(first, "training.steps=1", "schedule.warmup=0", *rates), run)
        given, now = weights(first), weights(run)
        moved.append((now["project.weight"] - given["project.weight"]).norm())
    assert moved[1] / moved[0] == pytest.approx(1e-3, rel=0.05)


# The classes


@pytest.mark.parametrize("strangers", [False, True])
def test_class_weights_may_start_from_the_means_of_their_people(
    first: Path, strangers: bool, tmp_path: Path
) -> None:
    extra = ["training.start_classes=means", "training.steps=1", "schedule.warmup=0", *STILL]
    extra.append("evaluation.batch_size=5")  # not a divisor of the images
    if strangers:
        data = (
            "{name: synthetic, people: 4, images_per_person: 4, image_size: 32, first_person: 99}"
        )
        extra += ["open_set.share=0.25", f"open_set.data={data}"]
    config = from_first(first, *extra)
    runs.train(config, tmp_path / "run")
    source, model = build_training_source(runs.resolve(config)), load_model(first)
    assert (source.labels < 0).any() == strangers
    means = np.zeros((12, 16))
    for number in range(len(source)):
        image, label = source[number]
        if label >= 0:
            means[label] += model.embed([image])[0]
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    found = tensors(tmp_path / "run")["head.weight"].numpy()
    np.testing.assert_allclose(found, means, atol=1e-4)


@pytest.mark.parametrize("centres", [1, 3])
def test_means_keep_the_length_of_a_row_and_leave_those_of_nobody(centres: int) -> None:
    head = build_head("sphereface2-c", 6, 4, sub_centres=centres)
    assert isinstance(head, ProxyHead)
    with torch.no_grad():
        head.weight.mul_(3.0)
    before = head.weight.detach().clone().view(4, centres, 6)
    sums = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sums[2] = 0
    _set_directions(head, sums)
    after = head.weight.detach().view(4, centres, 6)
    assert torch.equal(after[2], before[2])
    torch.testing.assert_close(after.norm(dim=-1), torch.full((4, centres), 3.0))
    own = torch.nn.functional.normalize(sums).float()
    cosines = torch.einsum("kcd,kd->kc", after, own)[[0, 1, 3]] / 3
    torch.testing.assert_close(cosines[:, 0], torch.ones(3))
    assert bool((cosines[:, 1:] > 0).all())
    assert bool((cosines[:, 1:] < 0.999).all())


def test_class_weights_of_a_run_on_the_same_people(first: Path, tmp_path: Path) -> None:
    still = ["training.steps=1", "schedule.warmup=0", *STILL, "training.start_classes=same"]
    runs.train(from_first(first, *still), tmp_path / "same")
    before, after = tensors(first), tensors(tmp_path / "same")
    for key in ("head.weight", "head.bias"):
        torch.testing.assert_close(after[key], before[key], atol=1e-6, rtol=0)
    # Another loss takes the class weights and has a bias of its own.
    runs.train(from_first(first, *still, "head.name=sphereface2-a"), tmp_path / "other")
    after = tensors(tmp_path / "other")
    torch.testing.assert_close(after["head.weight"], before["head.weight"], atol=1e-6, rtol=0)
    assert not torch.equal(after["head.bias"], before["head.bias"])
    # The term on pairs is of the training alone: it may come, with nobody remembered, and go.
    runs.train(from_first(first, *still, "head.pair_weight=1"), tmp_path / "pairs")
    with_pairs = [f"training.start_from={tmp_path / 'pairs'}", "head.pair_weight=0"]
    runs.train(from_first(first, *still, *with_pairs), tmp_path / "without")
    for name in ("pairs", "without"):
        after = tensors(tmp_path / name)
        assert ("head.pairs.bias" in after) is (name == "pairs")
        for key in ("head.weight", "head.bias"):
            torch.testing.assert_close(after[key], before[key], atol=1e-6, rtol=0)


# Resuming


def test_a_resumed_run_ends_with_the_same_bits_without_the_weights(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    given.symlink_to(first)
    options = ["training.start_classes=means", "training.freeze={epochs: 1}"]
    options.append("backbone.name=start")
    runs.train(from_first(given, *options), tmp_path / "straight")
    step = Trainer._train_step

    def stopping(self: Trainer, batch: Any) -> None:
        step(self, batch)
        if self.step == 2:  # within the frozen epoch
            self.stop()

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", stopping)
        assert runs.train(from_first(given, *options), tmp_path / "stopped").interrupted
    given.unlink()
    with pytest.raises(ValueError, match="weights to start from are read once"):
        runs.resume(tmp_path / "stopped", overrides=[f"training.start_from={first}"])
    assert not runs.resume(tmp_path / "stopped").interrupted
    one, other = tensors(tmp_path / "straight"), tensors(tmp_path / "stopped")
    assert all(torch.equal(other[key], value) for key, value in one.items())
    extras = [load_model(tmp_path / run).config["extra"] for run in ("straight", "stopped")]
    assert extras[0]["start_from"] == extras[1]["start_from"]


# Recipes


def test_the_recipes_train(first: Path, tmp_path: Path) -> None:
    data = ["data={name: synthetic, people: 12, images_per_person: 4, image_size: 32}"]
    quick = ["training.epochs=2", "training.batch_size=16", "training.workers=0", "device=cpu"]
    for recipe in ("fine-tune", "large-margin"):
        start = f"training.start_from={first}"
        config = load_config(recipe, [*data, *quick, start])
        result = runs.train(config, tmp_path / recipe)
        assert not result.interrupted
        with pytest.raises(ValueError, match=r"training\.start_from has no value yet"):
            plan_run(recipe, data)
    # The loss of the run, whose bias is taken over, with another margin.
    before, after = (run_config(run).head for run in (first, tmp_path / "large-margin"))
    assert after.name == before.name
    assert after.options == {**before.options, "margin": 0.6}
    assert after.options["radius"] == 12  # not the default


# Bad input


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.start_from=nowhere"], "the weights .*nowhere: it does not exist"),
        (["training.start_from={tmp}"], "holds no model: neither config.json and"),
        (["training.start_from={tmp}/cut.pth"], "cut.pth is damaged or cut short"),
        (["training.start_from={tmp}/text.pth"], "text.pth is not a file of weights"),
        (
            ["training.start_from={tmp}/code.pth"],
            "code.pth holds more than tensors or is damaged, so that it could run code",
        ),
        (["backbone.name=sfnet10"], "is a network sfnet4, but backbone.name=sfnet10; set back"),
        (["backbone.width=4"], "is a network with width 8, but backbone.width=4; leave it out"),
        (
            ["backbone.name=start", "backbone.widht=4"],
            "has no option 'widht'; did you mean 'width'",
        ),
        (
            ["training.start_from={tmp}/r18.pth"],
            "does not fit the backbone sfnet4: .*conv1.*; they are InsightFace's and OpenSphere's "
            "iresnet: the backbone iresnet18 fits",
        ),
        (["training.freeze={parts: [stem]}"], r"has no part 'stem' \(its parts are stages, proj"),
        (["training.freeze={parts: [stage]}"], "has no part 'stage'; did you mean 'stages'"),
        (["training.freeze={epochs: 0}"], "training.freeze.epochs must be above 0"),
        (
            ["training.freeze={epochs: 50}"],
            "training.freeze.epochs=50 lasts for the whole",
        ),
        (["training.start_from=null", "training.freeze={}"], "training.freeze needs training.st"),
        (
            ["training.start_from=null", "training.start_classes=means"],
            "training.start_classes=means needs training.start_from",
        ),
        (["training.start_from=null", "head=start"], "head.name=start needs training.start_from"),
        (
            ["training.start_from={first}/model", "head=start"],
            "head.name=start needs a run in training.start_from, and .*model is not one; name",
        ),
        (
            ["training.start_from=null", "backbone.name=start"],
            "backbone.name=start needs training.st",
        ),
        (
            ["training.start_classes=means", "head.name=triplet"],
            "training.start_classes=means needs a head with class weights; Triplet",
        ),
        (
            ["training.start_classes=same", "data.people=13"],
            "are of other people: the number of classes was 12 there and is 13 here; training.sta",
        ),
        (
            ["training.start_classes=same", "training.start_from={first}/model"],
            "start_classes=same needs a run in training.start_from, and .*model is not one; train",
        ),
        (
            ["training.start_classes=same", "head.sub_centres=2"],
            "does not fit this backbone and head: head.weight is of shape",
        ),
        (["optimizer.backbone_learning_rate=0"], "backbone_learning_rate must be above 0"),
        (["training.freeze={parts: ['']}"], "training.freeze.parts.0 must be a name, got ''"),
        (["preprocessing={mean: [1, 2]}"], "preprocessing.mean"),
        (
            ["preprocessing.channels=BGR"],
            "first was trained with preprocessing.channels=RGB, but preprocessing.channels=BGR is",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    first: Path, tmp_path: Path, overrides: list[str], message: str
) -> None:
    path, _ = saved(tmp_path / "r18.pth")
    (tmp_path / "cut.pth").write_bytes(path.read_bytes()[:5000])
    (tmp_path / "text.pth").write_text("weights")
    (tmp_path / "code.pth").write_bytes(pickle.dumps(_Code(tmp_path / "has run")))
    given = [text.format(tmp=tmp_path, first=first) if "{tmp}" in text or "{first}" in text
             else text for text in overrides]  # fmt: skip
    with pytest.raises((ValueError, OSError)) as caught:
        runs.train(from_first(first, *given), tmp_path / "run")
    assert re.search(message, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "has run").exists()


class _Code:
    """A pickle of it makes a file as soon as it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_configs_of_before_have_nothing_to_start_from() -> None:
    values = json.loads(small().model_dump_json())
    for section, key in (("training", "start_from"), ("training", "freeze")):
        del values[section][key]
    del values["preprocessing"]
    assert config_from_mapping(values) == small()
