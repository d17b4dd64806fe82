"""Whole runs on a handful of rendered people: train with every head, stop, resume, evaluate."""

import json
from pathlib import Path

import pytest
import torch

from sphereface2 import runs
from sphereface2.backbones.model_folder import load_model
from sphereface2.config import RunConfig, dump_config, load_config
from sphereface2.evaluation.results import RAW_PIXELS, UNTRAINED, EvaluationResult
from sphereface2.heads import HEADS
from sphereface2.training.stopping import DivergedError
from sphereface2.training.trainer import Trainer

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


@pytest.mark.parametrize("name", list(HEADS))
def test_every_head_trains_with_the_same_command(name: str, tmp_path: Path) -> None:
    result = runs.train(small(f"head.name={name}", *NO_SETS), tmp_path / "run")
    assert (result.steps, result.interrupted) == (6, False)
    lines = [
        json.loads(line) for line in (tmp_path / "run" / runs.METRICS).read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == [1, 2, 4, 6]
    assert all({"positive_score", "negative_score"} <= set(line["head"]) for line in lines)
    assert load_model(tmp_path / "run" / "model").config["extra"]["head"]["name"] == name


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    runs.train(small(*SETS), folder)
    return folder


def test_a_run_leaves_everything_that_is_needed_to_judge_and_repeat_it(
    finished: Path, tmp_path: Path
) -> None:
    evaluated = runs.evaluate(finished)
    assert {path.name for path in finished.iterdir()} == set(runs.PRODUCTS) - {"tensorboard"}
    result = EvaluationResult.load(finished / runs.EVALUATION)
    assert result == evaluated.result
    assert result.models == ("sphereface2-c", RAW_PIXELS, UNTRAINED)
    assert result.sets == ("plain", "age-30", "cross-age", "cross-pose", "combined")
    page = (finished / runs.REPORT).read_text()
    assert "sphereface2-c" in page
    assert "data:image/png;base64" in page

    again = tmp_path / "again"
    runs.train(load_config(finished), again)
    assert (again / runs.CONFIG).read_text() == (finished / runs.CONFIG).read_text()
    first, second = (
        load_model(folder / "model").backbone.state_dict() for folder in (finished, again)
    )
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_the_written_config_is_resolved(finished: Path) -> None:
    config = load_config(finished)
    assert config.head.options["gradient"] == "exact"
    assert config.backbone.options["width"] == 8
    assert dump_config(runs.resolve(config)) == (finished / runs.CONFIG).read_text()


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


def test_an_interrupted_run_goes_on_to_the_same_bits(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "stopped"
    step = Trainer._train_step

    def step_and_stop(self: Trainer, batch: object) -> None:
        step(self, batch)  # type: ignore[arg-type]  # handed through as it came
        if self.step == 4:
            self.stop()

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", step_and_stop)
        result = runs.train(small(*SETS), stopped)
    assert (result.steps, result.interrupted) == (4, True)
    with pytest.raises(FileNotFoundError, match="holds no trained model yet: finish it with"):
        runs.evaluate(stopped)
    assert not runs.resume(stopped).interrupted
    one, other = (
        load_model(folder / "model").backbone.state_dict() for folder in (finished, stopped)
    )
    assert all(torch.equal(one[key], other[key]) for key in one)


class TestFolders:
    def test_a_used_folder_is_refused_and_left_alone(self, finished: Path) -> None:
        before = {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}
        with pytest.raises(ValueError, match=r"already holds a run .*--overwrite"):
            runs.train(small("head.name=cosface", *NO_SETS), finished)
        assert {path.name: path.stat().st_mtime_ns for path in finished.iterdir()} == before

    def test_overwrite_removes_only_what_a_run_writes(self, tmp_path: Path) -> None:
        runs.train(small(*NO_SETS), tmp_path)
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / runs.REPORT).write_text("old")
        runs.train(small("seed=1", *NO_SETS), tmp_path, overwrite=True)
        assert (tmp_path / "notes.txt").read_text() == "mine"
        assert not (tmp_path / runs.REPORT).exists()

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
        for command in (runs.resume, runs.evaluate):
            with pytest.raises(FileNotFoundError, match=f"{tmp_path} is no run folder"):
                command(tmp_path)

    def test_evaluation_without_a_set_says_how_to_name_one(self, tmp_path: Path) -> None:
        runs.train(small(*NO_SETS), tmp_path)
        with pytest.raises(ValueError, match="names no verification set"):
            runs.evaluate(tmp_path)


def test_a_loss_that_turns_nan_names_step_rate_and_checkpoint(tmp_path: Path) -> None:
    config = small(
        "optimizer.learning_rate=1e30", "training.clip_norm=null", "backbone.batch_norm=false",
        "head.name=softmax", *NO_SETS,
    )  # fmt: skip
    with pytest.raises(DivergedError, match=r"at step \d+ with learning rate .*checkpoint"):
        runs.train(config, tmp_path / "run")
