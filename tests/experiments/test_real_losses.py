"""Losses on real faces: tuned on one half of the people, reported and tested on the other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from sphereface2.cli import app
from sphereface2.evaluation.experiment_results import SweepResult
from sphereface2.experiments import real_losses
from sphereface2.experiments.paper.reproduce import Reproduction
from sphereface2.experiments.real_losses import RealFaces, trial, tuning_sweep
from sphereface2.experiments.sweep.board import Board, SweepEvents
from sphereface2.experiments.sweep.engine import run_sweep
from sphereface2.experiments.sweep.plan import Sweep, plan_sweep
from sphereface2.experiments.sweep.store import write_config
from sphereface2.runs.evaluate import measure
from sphereface2.runs.train import resume

RECIPE = """
data: {name: folder, path: '???'}
backbone: {name: sfnet4, width: 4, input_size: 16, embedding_dim: 8, batch_norm: true}
head: {name: sphereface2-c}
training: {epochs: 2, batch_size: 8, workers: 0, evaluate_every: 0}
optimizer: {learning_rate: 0.05}
device: cpu
"""
TRIALS = {
    "sphereface2-c": tuple(trial("sphereface2-c", margin=each) for each in (0.2, 0.4)),
    "cosface": (trial("cosface", margin=0.2),),
}


def people(folder: Path, count: int) -> None:
    generator = np.random.default_rng(count)
    for person in range(count):
        own = generator.integers(0, 255, (16, 16, 3))
        (folder / f"person{person:02d}").mkdir(parents=True)
        for number in range(4):
            pixels = np.clip(own + generator.normal(0, 60, own.shape), 0, 255).astype(np.uint8)
            cv2.imwrite(str(folder / f"person{person:02d}" / f"{number}.png"), pixels)


@pytest.fixture
def faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "faces"
    people(root / "train", 6)
    people(root / "validation", 24)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE)

    def in_this_process(sweep: Sweep, *, runs: Path, **options: Any) -> SweepResult:
        for run in plan_sweep(sweep):
            if not (runs / run.name).exists():
                write_config(runs / run.name, run)
                resume(runs / run.name)
                measure(runs / run.name)
        return run_sweep(sweep, runs=runs, **options)

    monkeypatch.setattr(real_losses, "RECIPE", str(recipe))
    monkeypatch.setattr(real_losses, "TRIALS", TRIALS)
    monkeypatch.setattr(real_losses, "run_sweep", in_this_process)
    return root


class Boards(SweepEvents):
    def __init__(self) -> None:
        self.seen: list[Board] = []

    def started(self, board: Board) -> None:
        self.seen.append(board)


def test_losses_are_tuned_on_one_half_and_tested_on_the_other(faces: Path, tmp_path: Path) -> None:
    boards = Boards()
    work = Reproduction(tmp_path / "out", scale="real", data=faces, seeds=(0, 1), events=boards)
    made = work.reproduce("real-losses")
    place = tmp_path / "out" / "real-losses"
    result, tuning = (SweepResult.load(place / f"{name}.json") for name in ("result", "tuning"))
    assert made.table == result
    assert result.columns == ("accuracy", "TAR@FAR 0.01", "TAR@FAR 0.001", "TAR@FAR 0.0001")
    assert [len(row.runs) for row in tuning.rows] == [1, 1, 1]
    assert [[run.seed for run in row.runs] for row in result.rows] == [[0, 1], [0, 1]]
    # The better of the two trials is trained again, on the other half of the people.
    ours = [row for row in tuning.rows if row.method == "sphereface2-c"]
    best = max(ours, key=lambda row: row.numbers("TAR@FAR 0.01")[0])
    assert [row.label for row in result.rows] == [best.label, "cosface, margin=0.2"]
    for table, half in ((tuning, "first"), (result, "second")):
        assert all(f"half: {half}" in row.config for row in table.rows)
    # What is shown while they train is what they are judged by.
    for board, table in zip(boards.seen, (tuning, result), strict=True):
        shown = [state.judged_by(board.judged, board.far) for state in board.states]
        numbers = [number for row in table.rows for number in row.numbers(table.judged_by)]
        assert {what for what, _ in shown} == {"TAR@FAR 0.01"}
        assert [value for _, value in shown] == pytest.approx(numbers, abs=1e-3)
    tests = real_losses.PairedTests.load(place / "tests.json")
    (cosface,) = tests.losses
    assert (tests.baseline, cosface.loss) == ("sphereface2-c", "cosface")
    accuracy = cosface.differences[0]
    means = [row.mean("accuracy") for row in result.rows]
    assert [100 * accuracy.baseline, 100 * accuracy.value] == pytest.approx(means, abs=1e-3)
    assert accuracy.interval.low <= accuracy.difference <= accuracy.interval.high

    work = Reproduction(tmp_path / "out", scale="real", data=faces, seeds=(0,))
    noise = work.reproduce("real-noise").table
    assert noise is not None
    by_rate = [(row.method, row.settings.get("label_noise.rate")) for row in noise.rows]
    assert by_rate == [
        (name, rate) for name in ("sphereface2-c", "cosface") for rate in (None, 0.2, 0.4)
    ]


def test_every_loss_has_as_many_trials() -> None:
    assert {len(trials) for trials in real_losses.TRIALS.values()} == {5}
    plan = plan_sweep(tuning_sweep(RealFaces(Path("train.rec"), Path("val.rec"))))
    assert len(plan) == 5 * len(real_losses.TRIALS)
    epochs = {run.config.training.epochs for run in plan}
    assert epochs == {5}  # half of the recipe's
    trial = plan[15]
    assert (trial.setting.label, trial.config.head.name) == (
        "cosface, scale=12, margin=0.35",
        "cosface",
    )
    options = trial.config.head.options
    assert (options["scale"], options["margin"]) == (12, 0.35)


def test_what_is_given_changes_every_trial() -> None:
    given = ("precision=float32", "training.epochs=6")
    faces = RealFaces(Path("train.rec"), Path("val.rec"), given)
    plan = plan_sweep(tuning_sweep(faces))
    assert {run.config.precision for run in plan} == {"float32"}
    assert {run.config.training.epochs for run in plan} == {3}
    with pytest.raises(ValueError, match=r"give training\.epochs"):
        tuning_sweep(replace(faces, more=("training.epochs=null", "training.steps=10")))


def test_records_are_found_in_their_folders(tmp_path: Path) -> None:
    for name in ("some_train_64", "some_val_64"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.rec").touch()
    found = RealFaces.find(tmp_path)
    assert found.train == tmp_path / "some_train_64" / "train.rec"
    assert found.validation == tmp_path / "some_val_64" / "train.rec"
    assert "data.name=recordio" in found.overrides(half="first")


@pytest.mark.parametrize(("seeds", "part"), [((1, 1), "seed 1 is given twice"), ((2**63,), "seed")])
def test_wrong_seeds_are_refused_before_the_tuning(
    faces: Path, tmp_path: Path, seeds: tuple[int, ...], part: str
) -> None:
    work = Reproduction(tmp_path / "out", scale="real", data=faces, seeds=seeds)
    with pytest.raises(ValueError, match=part):
        work.reproduce("real-losses")
    assert not work.runs.exists()


def test_an_apostrophe_in_a_path_is_part_of_it() -> None:
    faces = RealFaces(Path("/o'b/train.rec"), Path("/o'b/val.rec"))
    config = plan_sweep(tuning_sweep(faces))[0].config
    assert config.data.options["path"] == "/o'b/train.rec"
    assert config.evaluation.sets[0].options["path"] == "/o'b/val.rec"


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    runner = CliRunner()

    def said(*words: str) -> str:
        error = runner.invoke(app, ["reproduce", "real-losses", *words]).exception
        assert isinstance(error, ValueError | OSError)
        return str(error)

    assert "give the faces as --data DIR" in said()
    assert "has no meaning for real-losses" in said("--scale", "paper")
    assert "is not a folder" in said("--data", str(tmp_path / "nowhere"))
    (tmp_path / "train").mkdir()
    assert "with 'val' in its name; it has none" in said("--data", str(tmp_path))
    (tmp_path / "val").mkdir()
    (tmp_path / "validation").mkdir()
    assert "it has val, validation" in said("--data", str(tmp_path))
