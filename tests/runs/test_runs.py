"""Whole runs on a handful of rendered people: train with every head, stop, resume, evaluate."""

import fcntl
import json
import math
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from markupsafe import escape
from typer.testing import CliRunner

from sphereface2.backbones import build_backbone
from sphereface2.cli import app
from sphereface2.config.schema import RunConfig, dump_config, load_config
from sphereface2.data.loader.loader import Batch
from sphereface2.data.mixing import build_training_source
from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.evaluation.scoring import build_sets, score_sets
from sphereface2.evaluation.verification import RAW_PIXELS, UNTRAINED, EvaluationResult
from sphereface2.files import LockedError, read_note
from sphereface2.models.folder import TorchModel, load_model
from sphereface2.runs import folder as run_folder
from sphereface2.runs import train as runs
from sphereface2.runs.estimate import estimate
from sphereface2.runs.evaluate import evaluate, first_people
from sphereface2.runs.export import export_model
from sphereface2.runs.train import embedder_of
from sphereface2.training.checkpoint import has_checkpoint, load_checkpoint
from sphereface2.training.stopping import DivergedError
from sphereface2.training.trainer import Trainer
from tests.data.bin_files import write_bin
from tests.models.test_embed import Meeting

SMALL = [
    "data.people=12",
    "data.images_per_person=4",
    "data.image_size=32",
    "backbone.name=sfnet4",
    "backbone.width=8",
    "backbone.input_size=32",
    "backbone.embedding_dim=16",
    "backbone.batch_norm=true",
    "training.epochs=2",
    "training.batch_size=16",
    "training.workers=0",
    "training.log_every=2",
    "device=cpu",
]
SETS = [
    "evaluation.sets.0.people=20",
    "evaluation.sets.0.pairs=60",
    "evaluation.sets.0.image_size=32",
]
NO_SETS = ["evaluation.sets=[]"]


def small(*overrides: str) -> RunConfig:
    return load_config("quickstart", [*SMALL, *overrides])


# With class weights, without, and one that keeps a running mean; all of them learn in
# tests/training/test_trainer.py.
@pytest.mark.parametrize("name", ["sphereface2-a", "contrastive", "adaface"])
def test_any_kind_of_head_trains_with_the_same_command(name: str, tmp_path: Path) -> None:
    result = runs.train(small(f"head.name={name}", *NO_SETS), tmp_path / "run")
    assert (result.steps, result.interrupted) == (6, False)
    logged = run_folder.read_history(tmp_path / "run")
    assert [line["step"] for line in logged] == [1, 2, 4, 6]
    assert all({"positive_score", "negative_score"} <= set(line["head"]) for line in logged)
    assert load_model(tmp_path / "run" / "model").config["extra"]["head"]["name"] == name


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    runs.train(small(*SETS), folder)
    return folder


# With drawn figures in tests/cli/test_cli.py.
def test_a_run_leaves_everything_that_is_needed_to_judge_and_repeat_it(
    finished: Path, tmp_path: Path
) -> None:
    evaluated = evaluate(finished)
    only_if_asked = {
        "tensorboard",
        "evaluation-last",
        "evaluation-best",
        run_folder.LABEL_NOISE,
        run_folder.BAD_IMAGES,
        run_folder.CALIBRATION,
        run_folder.CHANGES,
    }
    assert {path.name for path in finished.iterdir()} == set(run_folder.PRODUCTS) - only_if_asked
    result = EvaluationResult.load(finished / run_folder.EVALUATION)
    assert result == evaluated.result
    assert result.models == ("sphereface2-c", RAW_PIXELS, UNTRAINED)
    assert result.sets == ("plain", "age-30", "cross-age", "cross-pose", "combined")
    page = (finished / run_folder.REPORT).read_text()
    assert "sphereface2-c" in page
    assert "data:image/png;base64" in page

    again = tmp_path / "again"
    runs.train(load_config(finished), again)
    assert (again / run_folder.CONFIG).read_text() == (finished / run_folder.CONFIG).read_text()
    assert same_model(again, finished)


def test_a_report_does_without_training_data_that_have_moved(tmp_path: Path) -> None:
    for person in "abcd":
        write_crops(tmp_path / "crops" / person, 4)
    write_set(tmp_path / "own.bin", tmp_path / "crops")
    data = [f"data={{name: folder, path: {tmp_path / 'crops'}}}", "training.batch_size=4"]
    sets = [f"evaluation.sets=[{tmp_path / 'own.bin'}]", "evaluation.flip=false"]
    runs.train(load_config("quickstart", [*SMALL[3:], *sets, *data]), tmp_path / "run")
    assert load_model(tmp_path / "run" / "model").flip is False
    assert "No contact sheet" not in evaluate(tmp_path / "run").report.read_text()
    (tmp_path / "crops").rename(tmp_path / "moved")
    page = evaluate(tmp_path / "run").report.read_text()
    assert "No contact sheet: the training data cannot be read (" in page
    assert f"{tmp_path / 'crops'} does not exist" in page


def test_a_contact_sheet_has_ten_images_of_each_of_the_first_seven_people() -> None:
    source = SyntheticFaces(people=9, images_per_person=12, image_size=16)
    people = [list(images) for images in first_people(source)]
    assert [len(images) for images in people] == [10] * 7
    assert np.array_equal(people[4][2], source[4 * 12 + 2][0])
    few = SyntheticFaces(people=2, images_per_person=3, image_size=16)
    assert [len(list(images)) for images in first_people(few)] == [3, 3]


@pytest.mark.parametrize(
    "change",
    [
        "head.name=arcface",
        "head.margin=0.2",
        "backbone.width=4",
        "data.seed=7",
        "training.epochs=9",
        "training.worker_kind=threads",
        "evaluation.set_aside=0.2",
    ],
)
def test_an_evaluation_leaves_the_model_as_it_was_trained(change: str, finished: Path) -> None:
    before = state(finished)
    key, _, value = change.partition("=")
    said = rf"^{key} \S+ -> {value} is not for evaluate: the model of {finished} stays"
    with pytest.raises(ValueError, match=said):
        evaluate(finished, overrides=["device=cpu", change])
    assert state(finished) == before


def test_a_set_may_be_named_by_its_file_alone(tmp_path: Path) -> None:
    """As after --on; the run keeps what it means."""
    for person in "abcd":
        write_crops(tmp_path / "others" / person, 4)
    write_set(tmp_path / "own.bin", tmp_path / "others")
    sets = f"evaluation.sets=[{tmp_path / 'own.bin'}, {tmp_path / 'others'}]"
    config = runs.resolve(small(sets))
    kinds = [(choice.name, choice.options["path"]) for choice in config.evaluation.sets]
    assert kinds == [("bin", str(tmp_path / "own.bin")), ("drawn", str(tmp_path / "others"))]
    for each in (config, small(sets)):
        assert [found.name for found in build_sets(each)] == ["own", "others"]
    with pytest.raises(FileNotFoundError, match=r"no verification set 'lfw\.bin' \(give a \.bin"):
        runs.resolve(small("evaluation.sets=[lfw.bin]"))
    with pytest.raises(ValueError, match="unknown evaluation set 'pars'; did you mean 'pairs'"):
        runs.resolve(small("evaluation.sets=[pars]"))


def test_the_workers_of_the_config_read_the_sets(finished: Path) -> None:
    config = load_config(finished, ["training.workers=3"])
    model = load_model(finished / "model")
    (each, *_) = build_sets(config)
    pictures = np.stack([each.images[number] for number in range(len(each.images))])
    met = Meeting(pictures, readers=3)
    embedder = embedder_of(config, model.backbone, model.preprocessing)
    score_sets(embedder, [replace(each, images=met)])
    assert met.met


def test_the_written_config_is_resolved(finished: Path) -> None:
    config = load_config(finished)
    assert config.head.options["gradient"] == "exact"
    assert config.backbone.options["width"] == 8
    assert dump_config(runs.resolve(config)) == (finished / run_folder.CONFIG).read_text()


def test_peers_names_in_a_config_file_are_written_as_ours(tmp_path: Path) -> None:
    """They replace what the recipe says under our name; two words in one place are a mistake."""
    path = tmp_path / "mine.yaml"
    path.write_text("base: quickstart\nhead: {lam: 0.6, r: 40, lw: 5}\n")
    config = runs.resolve(load_config(path, ["head.m=0.2"]))
    options = config.head.options
    assert (options["balance"], options["radius"], options["loss_weight"]) == (0.6, 40.0, 5.0)
    assert options["margin"] == 0.2
    assert not {"lam", "r", "lw", "m"} & set(options)
    path.write_text("base: quickstart\nhead: {radius: 30, r: 40}\n")
    with pytest.raises(ValueError, match="'radius' and 'r' mean the same option"):
        runs.resolve(load_config(path))


def test_an_interrupted_run_resumes_to_the_same_bits(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        result = runs.train(small(*SETS), stopped)
    assert (result.steps, result.interrupted) == (4, True)
    with pytest.raises(FileNotFoundError, match="holds no trained model yet: finish it with"):
        evaluate(stopped)
    assert not runs.resume(stopped).interrupted
    assert same_model(stopped, finished)


def test_views_train_resume_and_export_as_one_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = "{name: views, network: {name: sfnet4, width: 4}, views: [whole, [0.5, 0, 0.5]], "
    views += "view_size: 16, input_size: 32, embedding_dim: 16}"
    without = [each for each in SMALL if not each.startswith("backbone")]
    options = [
        *without, f"backbone={views}", "training.discriminant=true", "optimizer.name=muon",
        "head.name=sphereface2-c", "head.pair_weight=1", *NO_SETS,
    ]  # fmt: skip

    def config() -> RunConfig:
        return load_config("quickstart", options)

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    runs.train(config(), whole)
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        runs.train(config(), stopped)
    with pytest.raises(ValueError, match=r"backbone\.view_size"):
        runs.resume(stopped, overrides=["backbone.view_size=24"])
    runs.resume(stopped)
    assert same_model(stopped, whole)
    model = load_model(whole)
    assert isinstance(model, TorchModel)
    assert (model.embedding_dim, len(model.backbone.parts())) == (16, 2)
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    export_model(whole, tmp_path / "onnx")
    exported = load_model(tmp_path / "onnx").embed(images)
    np.testing.assert_allclose(exported, model.embed(images), atol=1e-4)
    network = estimate(config(), with_speed=False)
    each = build_backbone("sfnet4", width=4, input_size=16, embedding_dim=8)
    assert network.backbone_parameters == 2 * sum(p.numel() for p in each.parameters())
    options += [f"training.start_from={whole}"]
    runs.train(config(), tmp_path / "further")
    options += ["backbone.embedding_dim=8"]
    with pytest.raises(ValueError, match=r"embedding_dim 16, but backbone\.embedding_dim=8"):
        runs.resolve(config())
    triplet = load_config("quickstart", [*without, f"backbone={views}", "head=triplet", *NO_SETS])
    with pytest.raises(ValueError, match="a backbone of 2 views needs a head with class weights"):
        runs.train(triplet, tmp_path / "no")
    with pytest.raises(ValueError, match="a backbone of 2 views needs a head with class weights"):
        estimate(triplet)


class TestPeopleInOtherProportions:
    """augmentation.reshape: the head learns five more people for each of the images."""

    RESHAPED = ("augmentation.reshape=0.5", "augmentation.epochs=1", *NO_SETS)

    def test_the_head_learns_them_and_the_model_knows_the_people(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = small(*self.RESHAPED, "training.discriminant=true")
        whole, stopped = tmp_path / "whole", tmp_path / "stopped"
        runs.train(config, whole)
        assert load_checkpoint(whole / "checkpoints" / "last").settings["number of classes"] == 72
        assert load_model(whole / "model").config["extra"]["people"] == 12
        with monkeypatch.context() as patch:
            stop_at(2, patch)
            runs.train(config, stopped)
        with pytest.raises(ValueError, match="saved class weights are of the people whom it makes"):
            runs.resume(stopped, overrides=["augmentation.reshape=0.3"])
        runs.resume(stopped)
        assert same_model(stopped, whole)

    def test_memory_is_estimated_for_all_of_them(self) -> None:
        plain, more = (
            estimate(small(*NO_SETS, *given), with_speed=False)
            for given in ((), ("augmentation.reshape=0.5",))
        )
        assert plain.people == more.people == 12
        assert more.head_parameters - plain.head_parameters == 60 * 16

    def test_a_head_that_compares_samples_is_refused(self, tmp_path: Path) -> None:
        config = small("head.name=triplet", *self.RESHAPED)
        with pytest.raises(ValueError, match="and the head triplet compares images of one person"):
            runs.train(config, tmp_path / "run")


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A finished run that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "copied"))


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without sets that was stopped after four of its six steps."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        stop_at(4, patch)
        assert runs.train(small(*NO_SETS), folder).interrupted
    return folder


@pytest.fixture
def stopped(half_done: Path, tmp_path: Path) -> Path:
    """A stopped run that a test may change."""
    return Path(shutil.copytree(half_done, tmp_path / "a run"))


@pytest.fixture(scope="module")
def without_sets(half_done: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that names no set to evaluate on."""
    folder = tmp_path_factory.mktemp("runs") / "without"
    shutil.copytree(half_done, folder)
    assert not runs.resume(folder).interrupted
    return folder


def state(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_model(one: Path, other: Path) -> bool:
    first, second = (load_model(run / "model").backbone.state_dict() for run in (one, other))
    return all(torch.equal(first[key], second[key]) for key in first)


class TestFinished:
    def test_it_is_left_as_it_is(self, copied: Path) -> None:
        model = copied / "model" / "config.json"
        model.write_text(json.dumps({**json.loads(model.read_text()), "calibration": {"a": 1}}))
        before = state(copied)
        result = runs.resume(copied, watch=lambda title: pytest.fail(title))
        assert (result.steps, result.interrupted, result.was_finished) == (6, False, True)
        assert state(copied) == before
        said = CliRunner().invoke(app, ["resume", str(copied)])
        assert said.exit_code == 0
        assert f"{copied} is finished: 6 steps in " in said.output
        assert f"sphereface2 resume {copied} training.epochs=4\n" in said.output
        assert f"next: sphereface2 evaluate {copied}\n" in said.output
        assert state(copied) == before

    def test_a_model_that_was_not_exported_any_more_is(self, finished: Path, copied: Path) -> None:
        shutil.rmtree(copied / "model")
        assert not runs.resume(copied).was_finished
        assert same_model(copied, finished)

    def test_it_is_made_longer_and_what_was_found_before_goes(self, copied: Path) -> None:
        (copied / run_folder.EVALUATION).touch()
        result = runs.resume(copied, overrides=["training.epochs=3"])
        assert (result.steps, result.was_finished) == (9, False)
        assert not (copied / run_folder.EVALUATION).exists()
        assert load_config(copied).training.epochs == 3
        (change,) = run_folder.read_changes(copied)
        assert (change["step"], change["key"]) == (6, "training.epochs")
        assert (change["old"], change["new"]) == (2, 3)
        assert runs.resume(copied).was_finished

    def test_what_would_change_nothing_is_refused(self, copied: Path) -> None:
        before = state(copied)
        with pytest.raises(
            ValueError, match=r"all its 6 steps, .*learning_rate=0.01 would change no"
        ):
            runs.resume(copied, overrides=["optimizer.learning_rate=0.01"])
        assert state(copied) == before
        assert runs.resume(copied, overrides=["training.workers=1"]).was_finished
        assert load_config(copied).training.workers == 1

    def test_a_change_is_said_once_and_may_be_taken_back(self, copied: Path) -> None:
        for workers, said in [(1, "0 -> 1"), (1, ""), (0, "1 -> 0"), (1, "0 -> 1")]:
            resumed = CliRunner().invoke(
                app, ["resume", str(copied), f"training.workers={workers}"]
            )
            assert resumed.exit_code == 0
            found = re.findall(r"changed: training.workers (.*)", resumed.output)
            assert found == ([said] if said else [])
            assert load_config(copied).training.workers == workers

    def test_data_that_are_not_its_own_are_refused(self, tmp_path: Path) -> None:
        for person in "abcd":
            write_crops(tmp_path / "crops" / person, 4)
        folder, other = tmp_path / "run", tmp_path / "other"
        words = [f"data={{name: folder, path: {tmp_path / 'crops'}}}", "training.batch_size=4"]
        runs.train(load_config("quickstart", [*SMALL[3:], *NO_SETS, *words]), folder)
        before = state(folder)
        change = ["resume", str(folder), f"data.path={other}"]
        with pytest.raises(FileNotFoundError, match=f"{other} does not exist"):
            runs.resume(folder, overrides=change[2:])
        shutil.copytree(tmp_path / "crops", other)
        shutil.rmtree(other / "d")
        with pytest.raises(ValueError, match=f"^{other} cannot be what {folder} was trained on"):
            runs.resume(folder, overrides=change[2:])
        sets = "evaluation.sets=[{name: drawn, path: nowhere}]"
        with pytest.raises(FileNotFoundError, match="nowhere"):
            runs.resume(folder, overrides=[sets])
        assert state(folder) == before
        shutil.copytree(tmp_path / "crops" / "d", other / "d")
        said = CliRunner().invoke(app, change)
        assert f"changed: data.path {tmp_path / 'crops'} -> {other}\n" in said.output
        assert load_config(folder).data.options["path"] == str(other)

    def test_without_its_checkpoints_it_says_that_it_starts_again(self, copied: Path) -> None:
        shutil.rmtree(copied / "checkpoints")
        said = CliRunner().invoke(app, ["resume", str(copied)])
        assert f"no checkpoint in {copied / 'checkpoints'}: the run starts again\n" in said.output

    def test_without_sets_the_next_command_names_one(
        self, without_sets: Path, tmp_path: Path
    ) -> None:
        # Brackets are not markup, and a name with a blank is quoted as a shell wants it.
        folder = tmp_path / "[red] run"
        shutil.copytree(without_sets, folder)
        said = CliRunner().invoke(app, ["resume", str(folder)])
        assert f"next: sphereface2 evaluate '{folder}' --on SET\n" in said.output


class TestChanges:
    @pytest.mark.parametrize(
        "change",
        [
            "seed=1",
            "head.margin=0.2",
            "backbone.width=4",
            "data.people=13",
            "data.seed=5",
            "training.batch_size=8",
            "training.flip=false",
            "optimizer.fused_head=true",
        ],
    )
    def test_what_may_not_change_is_named_with_both_values(
        self, change: str, half_done: Path
    ) -> None:
        folder, before = half_done, state(half_done)
        key, _, value = change.partition("=")
        with pytest.raises(
            ValueError, match=f"^{key} was .* and cannot become {value}: .*"
        ) as said:
            runs.resume(folder, overrides=[change])
        assert f"sphereface2 train {folder} {change} --output NEW" in str(said.value)
        assert state(folder) == before

    def test_a_name_stands_before_its_options_and_the_command_has_all_words(
        self, stopped: Path
    ) -> None:
        words = ["schedule.warmup=0", "head.name=cosface", "label_noise={rate: 0.1}"]
        with pytest.raises(ValueError, match=r"^head\.name was sphereface2-c .* cosface:") as said:
            runs.resume(stopped, overrides=words)
        command = str(said.value).partition("another run: ")[2]
        assert shlex.split(command)[1:] == ["train", str(stopped), *words, "--output", "NEW"]

    def test_an_edited_config_follows_the_same_rule(self, stopped: Path) -> None:
        folder = stopped
        config = folder / run_folder.CONFIG
        text = config.read_text()
        config.write_text(text.replace("margin: 0.4", "margin: 0.2"))
        with pytest.raises(ValueError, match=r"^head\.margin was 0\.4 .* and cannot become 0\.2"):
            runs.resume(folder)
        config.write_text(text.replace("learning_rate: 0.1", "learning_rate: 0.05"))
        assert runs.resume(folder).steps == 6
        (change,) = run_folder.read_changes(folder)
        assert (change["step"], change["key"], change["new"]) == (
            4,
            "optimizer.learning_rate",
            0.05,
        )
        (notice,) = lines(folder, "notice")
        assert notice["text"] == "changed: optimizer.learning_rate 0.1 -> 0.05"

    def test_a_change_is_kept_once_though_the_run_is_stopped_before_a_checkpoint(
        self, stopped: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_train_step", die)
            with pytest.raises(KeyboardInterrupt):
                runs.resume(stopped, overrides=["training.epochs=3"])
        runs.resume(stopped)
        assert [change["new"] for change in run_folder.read_changes(stopped)] == [3]

    def test_data_may_move_but_must_be_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Paths are kept absolute, whichever way they were given."""
        for person in ("anna", "bert", "cleo", "dora"):
            write_crops(tmp_path / "crops" / person, 5)
        write_crops(tmp_path / "strangers", 3)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        own = [
            *SMALL[3:],
            *NO_SETS,
            "data={name: folder, path: crops}",
            "open_set={share: 0.5, data: {name: folder, path: ~/strangers}}",
            "training.batch_size=4",
        ]
        straight, moved = tmp_path / "straight", tmp_path / "moved"
        runs.train(load_config("quickstart", own), straight)
        config = load_config(straight)
        assert config.data.options["path"] == str(tmp_path / "crops")
        assert config.open_set is not None
        assert config.open_set.data.options["path"] == str(tmp_path / "strangers")
        with monkeypatch.context() as patch:
            stop_at(4, patch)
            runs.train(load_config("quickstart", own), moved)
        (tmp_path / "crops").rename(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / "bert" / "9.png").write_bytes(
            (tmp_path / "elsewhere" / "bert" / "1.png").read_bytes()
        )
        monkeypatch.chdir("/")
        with pytest.raises(FileNotFoundError, match="crops"):
            runs.resume(moved)
        where = [f"data.path={tmp_path / 'elsewhere'}"]
        with pytest.raises(ValueError, match=r"elsewhere cannot be what .*images was 23 and is 24"):
            runs.resume(moved, overrides=where)
        (tmp_path / "elsewhere" / "bert" / "9.png").unlink()
        assert not runs.resume(moved, overrides=where).interrupted
        assert same_model(moved, straight)

    def test_the_command_after_a_nan_works(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check = Trainer._check_finite

        def diverging(self: Trainer, quantity: str, value: float, rate: float) -> None:
            check(self, quantity, math.nan if self.step >= 4 and rate > 0.02 else value, rate)

        monkeypatch.setattr(Trainer, "_check_finite", diverging)
        folder = tmp_path / "run"
        constant = ["schedule.name=constant", "schedule.warmup=0", "optimizer.learning_rate=0.03"]
        with pytest.raises(DivergedError, match=r"at step 5 .*last good checkpoint") as said:
            runs.train(small(*NO_SETS, *constant), folder)
        found = re.search(
            r"sphereface2 (resume \S+ optimizer\.learning_rate=\S+) ", str(said.value)
        )
        assert found is not None
        done = CliRunner().invoke(app, found[1].split())
        assert done.exit_code == 0, done.output
        rates = {line["step"]: line["learning_rate"] for line in lines(folder, "train")}
        assert (rates[2], rates[6]) == (0.03, 0.015)
        (change,) = run_folder.read_changes(folder)
        assert (change["step"], change["old"], change["new"]) == (3, 0.03, 0.015)

    def test_a_run_folder_may_be_called_like_a_recipe(
        self, half_done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        shutil.copytree(half_done, "quickstart")
        assert runs.resume(Path("quickstart")).steps == 6


def train_elsewhere(
    folder: Path, *overrides: str, terminal: int | None = None
) -> "subprocess.Popen[str]":
    """A training in a process of its own, at a terminal if one is given."""
    words = ["-m", "sphereface2", "train", "quickstart", *SMALL, *NO_SETS, *overrides]

    def begin() -> None:  # as `quick_processes` begins
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have ignored it
        if terminal is not None:
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    return subprocess.Popen(
        [sys.executable, *words, "--output", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE if terminal is None else terminal,
        text=True,
        start_new_session=True,
        preexec_fn=begin,
    )


def wait_for(path: Path, process: "subprocess.Popen[str]", *, screen: int | None = None) -> None:
    """Until a process has made a file; what it writes to a screen is read meanwhile."""
    deadline = time.monotonic() + 300
    while not path.exists():
        if screen is not None and select.select([screen], [], [], 0)[0]:
            os.read(screen, 65536)
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.001)


def test_a_torchrun_that_restarts_resumes_the_run_of_the_same_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, restarted = tmp_path / "straight", tmp_path / "restarted"
    runs.train(small("training.epochs=4", *NO_SETS), straight)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_is_finished", False)
        patch.setattr(Trainer, "_must_stop", property(lambda self: self.step == 5))
        runs.train(small("training.epochs=4", *NO_SETS), restarted)
    assert load_checkpoint(restarted / "checkpoints" / "last").step == 5
    with pytest.raises(ValueError, match="already holds a run"):
        runs.train(small("training.epochs=4", *NO_SETS), restarted)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ValueError, match="already holds a run"):
        runs.train(small("training.epochs=5", *NO_SETS), restarted)
    with pytest.raises(ValueError, match=r"--overwrite would remove .* whenever torchrun restarts"):
        runs.train(small("training.epochs=4", *NO_SETS), restarted, overwrite=True)
    result = runs.train(small("training.epochs=4", *NO_SETS), restarted)
    assert (result.steps, result.interrupted) == (12, False)
    assert same_model(restarted, straight)


@pytest.mark.usefixtures("quick_processes")
class TestSignals:
    """A real process in a session of its own, and the exit code that a shell would see."""

    LONG = ("training.epochs=2000", "training.checkpoint_every=2000", "schedule.warmup=0")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_the_exit_code_says_which_it_was(self, number: int, tmp_path: Path) -> None:
        with train_elsewhere(tmp_path / "run", *self.LONG) as process:
            try:
                wait_for(tmp_path / "run" / run_folder.METRICS, process)
                process.send_signal(number)
                _, errors = process.communicate(timeout=300)
            finally:
                process.kill()
        assert process.returncode == 128 + number
        assert f"continue with: sphereface2 resume {tmp_path / 'run'}" in errors
        assert has_checkpoint(tmp_path / "run" / "checkpoints" / "last")
        assert not (tmp_path / "run" / run_folder.LOCK).exists()

    def test_a_terminal_that_closes_leaves_a_checkpoint(self, tmp_path: Path) -> None:
        ours, its = os.openpty()
        with train_elsewhere(tmp_path / "run", *self.LONG, terminal=its) as process:
            try:
                os.close(its)
                wait_for(tmp_path / "run" / run_folder.METRICS, process, screen=ours)
                os.close(ours)
                process.wait(timeout=300)
            finally:
                process.kill()
        assert process.returncode == 128 + signal.SIGHUP
        assert has_checkpoint(tmp_path / "run" / "checkpoints" / "last")


@pytest.mark.usefixtures("quick_processes")
class TestLock:
    LONG = ("training.epochs=12", "training.checkpoint_every_steps=2")

    def test_a_folder_in_which_another_process_trains_is_left_alone(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        refused = pytest.raises(LockedError, match=r"^process \d+ on .+ is training here: .*run is")
        with train_elsewhere(folder, *self.LONG) as process:
            try:
                # Held from the first moment on, and until it is killed.
                wait_for(folder / run_folder.LOCK, process)
                assert read_note(folder / run_folder.LOCK, patience=60)
                os.kill(process.pid, signal.SIGSTOP)
                assert not (folder / run_folder.CONFIG).exists()
                with refused:
                    runs.train(small("seed=1", *NO_SETS), folder)
                os.kill(process.pid, signal.SIGCONT)
                wait_for(folder / "checkpoints" / "last", process)
                os.kill(process.pid, signal.SIGSTOP)
                before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
                for overwrite in (False, True):
                    with refused as caught:
                        runs.train(small("seed=1", *NO_SETS), folder, overwrite=overwrite)
                    assert f"process {process.pid} on {socket.gethostname()} " in str(caught.value)
                with refused:
                    runs.resume(folder)
                assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
            finally:
                process.kill()
        # What the killed process has left refuses nobody.
        assert (folder / run_folder.LOCK).exists()
        assert not runs.resume(folder).interrupted
        assert not (folder / run_folder.LOCK).exists()
        straight = tmp_path / "straight"
        runs.train(small("training.epochs=12", *NO_SETS), straight)
        assert same_model(folder, straight)

    def test_of_two_trainings_in_one_new_folder_one_is_done(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        processes = [train_elsewhere(folder, f"seed={seed}") for seed in (1, 2)]
        errors = [process.communicate()[1] for process in processes]
        codes = [process.returncode for process in processes]
        assert sorted(codes) == [0, 2], errors
        # On a busy machine the first may be over before the second begins.
        assert re.search("is training here|already holds a run", errors[codes.index(2)])
        straight = tmp_path / "straight"
        winner = load_config(folder)
        assert winner.seed == 1 + codes.index(0)
        runs.train(winner, straight)
        assert same_model(folder, straight)


class TestFolders:
    def test_a_run_is_not_written_among_its_images(self, tmp_path: Path) -> None:
        for person in "ab":
            write_crops(tmp_path / "data" / "crops" / person, 2)
        crops = tmp_path / "data" / "crops"
        words = [*SMALL[3:], *NO_SETS, f"data={{name: folder, path: {crops}}}"]
        config, before = load_config("quickstart", words), state(tmp_path)
        for folder in (crops, crops / "run", tmp_path / "data"):
            said = f"^{folder} cannot be the run's folder: the training images are in {crops};"
            with pytest.raises(ValueError, match=said):
                runs.train(config, folder)
        assert state(tmp_path) == before
        with pytest.raises(ValueError, match=r"^--output is empty"):
            app(["train", "quickstart", "--output", ""], standalone_mode=False)

    def test_a_used_folder_is_refused_and_left_alone(self, finished: Path) -> None:
        before = {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}
        with pytest.raises(ValueError, match=r"already holds a run .*--overwrite"):
            runs.train(small("head.name=cosface", *NO_SETS), finished)
        assert {path.name: path.stat().st_mtime_ns for path in finished.iterdir()} == before

    def test_a_run_that_was_stopped_before_it_had_its_config_starts_again(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "run" / run_folder.CHECKPOINTS).mkdir(parents=True)
        assert not runs.train(small(*NO_SETS), tmp_path / "run").interrupted

    def test_overwrite_leaves_alone_what_no_run_wrote(self, finished: Path, tmp_path: Path) -> None:
        foreign = tmp_path / "foreign"
        (foreign / "model").mkdir(parents=True)
        (foreign / "model" / "weights.bin").write_text("mine")
        for config in ("a: 1\n", (finished / run_folder.CONFIG).read_text()):
            (foreign / run_folder.CONFIG).write_text(config)
            with pytest.raises(
                ValueError, match=r"but not as a run of sphereface2: --overwrite re"
            ):
                runs.train(small(*NO_SETS), foreign, overwrite=True)
            assert (foreign / "model" / "weights.bin").read_text() == "mine"
        (foreign / "checkpoints").mkdir()
        with pytest.raises(ValueError, match=r"model/weights\.bin is not the run's own"):
            runs.train(small(*NO_SETS), foreign, overwrite=True)
        assert (foreign / "model" / "weights.bin").read_text() == "mine"

    def test_overwrite_removes_only_what_a_run_writes(
        self, without_sets: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(without_sets, tmp_path, dirs_exist_ok=True)
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / run_folder.REPORT).write_text("old")
        runs.train(small("seed=1", *NO_SETS), tmp_path, overwrite=True)
        assert (tmp_path / "notes.txt").read_text() == "mine"
        assert not (tmp_path / run_folder.REPORT).exists()

    @pytest.mark.parametrize(
        "mistake",
        ["head.radius=-1", "head.name=arc", "data.people=1", "backbone.width=0", "device=cuda:99"],
    )
    def test_nothing_is_written_when_the_config_is_wrong(
        self, mistake: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match=r"."):
            runs.train(small(mistake, *NO_SETS), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_a_folder_without_a_run_is_named(self, tmp_path: Path) -> None:
        for command in (runs.resume, evaluate):
            with pytest.raises(FileNotFoundError, match=f"{tmp_path} is not a run folder"):
                command(tmp_path)

    def test_evaluation_without_a_set_says_how_to_name_one(self, without_sets: Path) -> None:
        with pytest.raises(ValueError, match="names no verification set"):
            evaluate(without_sets)


def test_a_loss_that_turns_nan_names_step_rate_and_checkpoint(tmp_path: Path) -> None:
    config = small(
        "optimizer.learning_rate=1e30", "training.clip_norm=null", "backbone.batch_norm=false",
        "head.name=softmax", *NO_SETS,
    )  # fmt: skip
    with pytest.raises(DivergedError, match=r"at step \d+ with learning rate .*checkpoint"):
        runs.train(config, tmp_path / "run")


# Label noise, strangers, unreadable images


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = run_folder.read_history(folder)
    return [line for line in found if line["kind"] == kind]


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train_step = Trainer._train_step

    def step_and_stop(self: Trainer, batch: Batch) -> None:
        train_step(self, batch)
        if self.step == step:
            self.stop()

    monkeypatch.setattr(Trainer, "_train_step", step_and_stop)


class TestLabelNoise:
    NOISE = ("label_noise.rate=0.5",)

    def test_a_run_keeps_and_tells_its_noise(self, tmp_path: Path) -> None:
        runs.train(small(*self.NOISE, *NO_SETS), tmp_path)
        rows = (tmp_path / run_folder.LABEL_NOISE).read_text().splitlines()
        assert rows[0] == "index,name,true_label,given_label"
        assert len(rows) == 1 + 12 * 2
        (notice,) = lines(tmp_path, "notice")
        assert (notice["topic"], notice["step"]) == ("label_noise", 0)
        assert notice["values"] == {"wrong_labels": 0.5}
        assert "50.00% of the labels are wrong" in notice["text"]

    def test_the_seed_of_the_noise_is_the_runs_unless_it_has_its_own(self) -> None:
        def labels(*overrides: str) -> list[int]:
            config = runs.resolve(small(*self.NOISE, *overrides))
            return list(map(int, build_training_source(config).labels))

        assert labels("seed=3") == labels("label_noise.seed=3") != labels()
        assert labels("seed=1", "label_noise.seed=3") == labels("seed=3")
        assert labels("label_noise.kind=resample") != labels()

    def test_a_run_resumes_with_the_same_noise_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = small(*self.NOISE, *NO_SETS)
        runs.train(config, tmp_path / "straight")
        with monkeypatch.context() as patch:
            stop_at(3, patch)
            runs.train(config, tmp_path / "stopped")
        manifest = tmp_path / "stopped" / run_folder.LABEL_NOISE
        before = manifest.read_bytes()
        manifest.write_bytes(before.rsplit(b"\n", 2)[0] + b"\n")  # one label fewer
        with pytest.raises(ValueError, match=r"label_noise\.csv lists other labels"):
            runs.resume(tmp_path / "stopped")
        manifest.write_bytes(before)
        runs.resume(tmp_path / "stopped")
        assert manifest.read_bytes() == before
        assert same_model(tmp_path / "straight", tmp_path / "stopped")


class TestOpenSet:
    STRANGERS = (
        "open_set={share: 0.25, data: {name: synthetic, people: 3, images_per_person: 2, "
        "image_size: 32, first_person: 12}}",
    )

    # One head of each kind; tests/heads has all of them see label -1.
    @pytest.mark.parametrize("name", ["sphereface2-c", "arcface", "triplet", "simple", "deepid2"])
    def test_a_head_of_each_kind_trains_with_strangers(self, name: str, tmp_path: Path) -> None:
        result = runs.train(small(f"head.name={name}", *self.STRANGERS, *NO_SETS), tmp_path)
        # 48 images of known people, 12 a step.
        assert (result.steps, result.interrupted) == (8, False)
        assert all(math.isfinite(line["loss"]) for line in lines(tmp_path, "train"))
        # A softmax head says once, as a notice and not as a warning, that it leaves them out.
        said = [line["text"] for line in lines(tmp_path, "notice") if line["topic"] == "open_set"]
        assert len(said) == (name in ("arcface", "deepid2"))
        assert all("leaves out samples of no known class" in text for text in said)

    def test_the_classes_are_those_of_the_known(self, tmp_path: Path) -> None:
        source = build_training_source(runs.resolve(small(*self.STRANGERS)))
        assert source.num_classes == 12
        assert (source.labels == -1).sum() == 6

    def test_an_interrupted_run_resumes_to_the_same_bits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = small(*self.STRANGERS, "training.accumulate=2", *NO_SETS)
        runs.train(config, tmp_path / "straight")
        with monkeypatch.context() as patch:
            stop_at(5, patch)
            runs.train(config, tmp_path / "stopped")
        runs.resume(tmp_path / "stopped")
        assert same_model(tmp_path / "straight", tmp_path / "stopped")

    def test_a_flat_folder_of_strangers_is_fine_and_written_to_the_config(
        self, tmp_path: Path
    ) -> None:
        write_crops(tmp_path / "strangers", 3)
        choice = f"open_set={{share: 0.5, data: {{name: folder, path: {tmp_path / 'strangers'}}}}}"
        runs.train(small(choice, *NO_SETS), tmp_path / "run")
        open_set = load_config(tmp_path / "run").open_set
        assert open_set is not None
        assert open_set.data.options == {
            "path": str(tmp_path / "strangers"),
            "image_size": None,
            "on_bad_image": "stop",
        }

    def test_strangers_who_are_learnt_are_refused(self, tmp_path: Path) -> None:
        known = self.STRANGERS[0].replace("first_person: 12", "first_person: 11")
        with pytest.raises(ValueError, match=r"people of the training data.*first_person=12"):
            runs.train(small(known), tmp_path / "run")
        other_seed = known.replace("first_person: 11", "first_person: 0, seed: 5")
        assert len(build_training_source(runs.resolve(small(other_seed)))) == 54
        for person in ("a", "b"):
            write_crops(tmp_path / person, 2)
        folder = f"{{name: folder, path: {tmp_path}}}"
        with pytest.raises(ValueError, match="give other images"):
            build_training_source(
                load_config(
                    "own-faces", [f"data={folder}", f"open_set={{share: 0.5, data: {folder}}}"]
                )
            )

    def test_an_unknown_source_or_option_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"unknown open_set.data 'foldr'; did you mean"):
            runs.train(small("open_set={share: 0.5, data: foldr}"), tmp_path / "run")
        wrong = "open_set={share: 0.5, data: {name: folder, paht: x}}"
        with pytest.raises(ValueError, match=r"no option 'paht'; did you mean 'path'"):
            runs.train(small(wrong), tmp_path / "run")


def write_crops(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(len(folder.name))
    for number in range(count):
        image = generator.integers(0, 256, (32, 32, 3), np.uint8)
        cv2.imwrite(str(folder / f"{number}.png"), image)


def write_set(path: Path, people: Path) -> None:
    """Twelve genuine and twelve impostor pairs of four people with four crops each."""
    images = [image.read_bytes() for image in sorted(people.glob("*/*.png"))]
    own = [(left, left + 1) for left in range(0, 16, 4)] * 3
    strangers = [(left, (left + 4) % 16) for left in range(12)]
    encoded = [images[number] for pair in [*own, *strangers] for number in pair]
    write_bin(path, encoded, [True] * 12 + [False] * 12)


class TestBadImages:
    @pytest.fixture
    def crops(self, tmp_path: Path) -> Path:
        for person in ("anna", "bert", "cleo", "dora"):
            write_crops(tmp_path / "crops" / person, 5)
        (tmp_path / "crops" / "bert" / "2.png").write_bytes(b"")
        return tmp_path / "crops"

    def config(self, crops: Path, *overrides: str) -> RunConfig:
        data = [f"data={{name: folder, path: {crops}}}", "training.batch_size=4"]
        return load_config("quickstart", [*SMALL[3:], *NO_SETS, *data, *overrides])

    def test_a_run_stops_before_it_writes_anything(self, crops: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"1 of the 20 images .*2\.png .*on_bad_image=skip"):
            runs.train(self.config(crops), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_skipped_images_are_listed_counted_and_told(self, crops: Path, tmp_path: Path) -> None:
        # Whole to look at, but damaged within: found only as it is decoded.
        damaged = crops / "cleo" / "4.png"
        content = bytearray(damaged.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 400] = bytes(400)
        damaged.write_bytes(bytes(content))
        runs.train(self.config(crops, "data.on_bad_image=skip"), tmp_path / "run")
        (notice,) = lines(tmp_path / "run", "notice")
        assert notice["topic"] == "bad_images"
        assert notice["values"] == {"bad_images": 1}
        assert notice["text"].startswith("1 unreadable image is passed over, listed in ")
        records = lines(tmp_path / "run", "train")
        assert records[0]["bad_images"] >= 1
        listed = (tmp_path / "run" / run_folder.BAD_IMAGES).read_text().splitlines()
        assert len(listed) == records[-1]["bad_images"]
        assert listed[0].startswith(f"{crops / 'bert' / '2.png'}: ")

    def test_without_bad_images_there_is_no_list(self, crops: Path, tmp_path: Path) -> None:
        write_crops(crops / "bert", 5)
        runs.train(self.config(crops, "data.on_bad_image=skip"), tmp_path / "run")
        assert not (tmp_path / "run" / run_folder.BAD_IMAGES).exists()
        assert lines(tmp_path / "run", "train")[-1]["bad_images"] == 0


def test_silent_mistakes_are_said_in_the_terminal_the_log_and_the_report(tmp_path: Path) -> None:
    for number in range(8):
        write_crops(tmp_path / "crops" / f"person{number}", 1 if number == 3 else 4)
    cv2.imwrite(str(tmp_path / "crops" / "person0" / "0.png"), np.zeros((50, 40, 3), np.uint8))
    cv2.imwrite(str(tmp_path / "crops" / "person1" / "0.png"), np.zeros((60, 40, 3), np.uint8))
    cv2.imwrite(str(tmp_path / "crops" / "person2" / "0.png"), np.zeros((60, 40, 3), np.uint8))
    for number in range(5, 25):
        write_crops(tmp_path / "lfw" / f"person{number}", 2)
    pairs = [
        line
        for n in range(5, 24)
        for line in (
            f"person{n}/0.png person{n}/1.png 1",
            f"person{n}/0.png person{n + 1}/0.png 0",
        )
    ]
    pairs[0] = "person5/0.png person5/0.png 1"
    (tmp_path / "pairs.txt").write_text("\n".join(pairs))
    words = [
        *SMALL[3:],
        "head.name=triplet",
        f"data={{name: folder, path: {tmp_path / 'crops'}}}",
        f"evaluation.sets=[{{name: pairs, path: {tmp_path / 'pairs.txt'}, root: {tmp_path}/lfw}}]",
    ]
    run = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", "quickstart", *words, "--output", str(run)])
    assert done.exit_code == 0, done.output
    said = [
        "the images look unaligned: they have 3 sizes, such as 32×32 and 40×60; ",
        "1 of the 8 people has one image only, which the head triplet compares with itself: ",
        "set pairs: 3 of its 20 people have the names of people trained on (person5, person6, pers",
        "set pairs: an image is paired with itself in pair 1, which any model gets right; ",
    ]
    noticed = [line["text"] for line in lines(run, "notice") if line["topic"] == "data"]
    assert len(noticed) == len(said)
    for text, begins in zip(noticed, said, strict=True):
        assert text.startswith(begins)
        assert done.output.count(text) == 1
    done = CliRunner().invoke(app, ["evaluate", str(run)])
    assert done.exit_code == 0, done.output
    assert EvaluationResult.load(run / "evaluation.json").notes == tuple(noticed[2:])
    assert all(note in done.output for note in noticed[2:])
    words = ["--on", str(tmp_path / "pairs.txt"), "--root", str(tmp_path / "lfw")]
    done = CliRunner().invoke(app, ["evaluate", str(run), *words, "--output", str(tmp_path / "e")])
    assert done.exit_code == 0, done.output
    assert all(note in done.output for note in noticed[2:])
    report = (run / "report.html").read_text(encoding="utf-8")
    for text in noticed:
        assert report.count(str(escape(text))) == 1
    # People with several images each, a head that compares no images: nothing to say.
    write_crops(tmp_path / "crops" / "person3", 4)
    plain = [f"data={{name: folder, path: {tmp_path / 'lfw'}}}", "training.batch_size=8"]
    runs.train(load_config("quickstart", [*SMALL[3:], *NO_SETS, *plain]), tmp_path / "fine")
    assert not lines(tmp_path / "fine", "notice")
