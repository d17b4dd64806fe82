"""Planning: names of runs, and every mistake found before a run starts."""

import hashlib
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from sphereface2.config.schema import dump_config, load_config
from sphereface2.evaluation.verification import EvaluationResult
from sphereface2.experiments.sweep.board import Status
from sphereface2.experiments.sweep.engine import look_up_runs, run_sweep
from sphereface2.experiments.sweep.plan import (
    Setting,
    Sweep,
    by_hand,
    check_buildable,
    plan_sweep,
    train_command,
)
from sphereface2.runs.folder import EVALUATION
from sphereface2.runs.train import resolve
from tests.experiments.sweep.tiny import pretend_done, tiny_sweep, write_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("tiny"))


def test_a_run_is_named_after_its_resolved_config(recipe: Path) -> None:
    run = plan_sweep(tiny_sweep(recipe, "head.margin=0.2", seeds=(7,)))[0]
    config = resolve(load_config(recipe, ["head.margin=0.2", "seed=7"]))
    digest = hashlib.sha256(dump_config(config).encode()).hexdigest()
    assert run.name == f"sphereface2-c-{digest[:10]}"
    assert run.config_yaml == dump_config(config)
    words = shlex.split(train_command(str(recipe), run, runs=Path("sweeps/tiny/runs")))
    assert words[:2] == ["sphereface2", "train"]
    assert resolve(load_config(words[2], words[3:5])) == config
    assert words[5:] == ["--output", f"sweeps/tiny/runs/{run.name}"]


@pytest.mark.parametrize("store", ["runs", "./runs", "sweeps/../runs"])
def test_runs_by_hand_do_not_go_into_the_store(store: str) -> None:
    assert by_hand(Path(store)) == Path("runs-by-hand")
    assert by_hand(Path("sweeps/tiny/runs")) == Path("runs")


def test_spelling_out_a_default_is_the_same_run(recipe: Path) -> None:
    one = plan_sweep(tiny_sweep(recipe, "training.flip=true"))[0]
    other = plan_sweep(tiny_sweep(recipe, "optimizer.momentum=0.9"))[0]
    assert one.name == other.name


@pytest.mark.parametrize(
    ("overrides", "seeds", "part"),
    [
        ((), (0,), "no settings"),
        (("head.margin=0.2",), (), "no seeds"),
        (("head.margin=0.2",), (1, 2, 1), "seed 1 is given twice"),
        (("head.margin=0.2", "head.m=0.2"), (0,), "come to the same config"),
        (("head.margin=0.2", "head.margin=0.2"), (0,), "same config|are called"),
        (("seed=3",), (0,), "--seeds"),
        (("head.margn=0.2",), (0,), "did you mean 'margin'"),
        (("head.name=cosfcae",), (0,), "did you mean 'cosface'"),
        (("training.epoch=2",), (0,), "did you mean 'training.epochs'"),
        (("head.margin=big",), (0,), "head.margin"),
        (("evaluation.sets=[]",), (0,), "nothing to measure"),
    ],
)
def test_mistakes_are_found_in_the_plan(
    recipe: Path, overrides: tuple[str, ...], seeds: tuple[int, ...], part: str
) -> None:
    with pytest.raises(ValueError, match=part):
        plan_sweep(tiny_sweep(recipe, *overrides, seeds=seeds))


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("head.radius=-1", "setting 'head.radius=-1': .*radius must be above 0"),
        ("training.batch_size=64", "batch_size"),
        ("device=cuda:77", "device=cuda:77"),
        ("data.path=nowhere", "nowhere"),
        ("evaluation.sets.0.path=gone.txt", "gone.txt"),
    ],
)
def test_what_only_building_shows_is_found_before_the_first_run(
    recipe: Path, tmp_path: Path, override: str, part: str
) -> None:
    sweep = tiny_sweep(recipe, "head.margin=0.2", override)
    with pytest.raises((ValueError, FileNotFoundError), match=part):
        run_sweep(sweep, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_good_plan_can_be_built(recipe: Path) -> None:
    check_buildable(plan_sweep(tiny_sweep(recipe, "head.margin=0.2", "head.name=cosface")))


def test_what_is_done_is_not_run_again(recipe: Path, tmp_path: Path) -> None:
    sweep = tiny_sweep(recipe, "head.margin=0.2", "head.margin=0.3", seeds=(0, 5))
    pretend_done(tiny_sweep(recipe, "head.margin=0.3", seeds=(5,)), tmp_path)
    statuses = [state.status for state in look_up_runs(sweep, runs=tmp_path)]
    assert statuses == [Status.WAITING, Status.WAITING, Status.WAITING, Status.DONE]
    pretend_done(sweep, tmp_path)
    result = run_sweep(sweep, runs=tmp_path)
    assert result.columns == ("plain", "cross-age", "combined")
    assert result.judged_by == "combined"
    assert [[run.seed for run in row.runs] for row in result.rows] == [[0, 5], [0, 5]]
    row = result.rows[1]
    assert 50 < row.runs[1].values["combined"] <= 100
    assert (row.method, row.overrides) == ("sphereface2-c", ("head.margin=0.3",))
    assert "seed: 0" in row.config.splitlines()


def test_what_was_done_before_there_was_an_option_is_not_run_again(
    recipe: Path, tmp_path: Path
) -> None:
    sweep = tiny_sweep(recipe, "head.margin=0.2", "head.margin=0.3")
    pretend_done(sweep, tmp_path)
    for number, run in enumerate(plan_sweep(sweep)):
        folder = (tmp_path / run.name).rename(tmp_path / f"sphereface2-c-older-{number}")
        # The second one is of a version in which the option was always on.
        lines = (folder / "config.yaml").read_text().splitlines()
        assert lines.count("  discriminant: false") == 1
        kept = [] if number == 0 else ["  discriminant: true"]
        lines = [each for line in lines for each in (kept if "discriminant" in line else [line])]
        (folder / "config.yaml").write_text("\n".join(lines) + "\n")
        result = EvaluationResult.load(folder / EVALUATION)
        training = {k: v for k, v in result.config["training"].items() if k != "discriminant"}
        replace(result, config={**result.config, "training": training}).save(folder / EVALUATION)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.yaml").write_text("of: another program\n")
    found = look_up_runs(sweep, runs=tmp_path)
    assert [state.status for state in found] == [Status.DONE, Status.WAITING]
    assert found[0].folder.name == found[0].plan.name == "sphereface2-c-older-0"
    assert found[1].plan.name == plan_sweep(sweep)[1].name


def test_the_versions_are_those_that_measured_the_runs(recipe: Path, tmp_path: Path) -> None:
    sweep = tiny_sweep(recipe, "head.margin=0.2", seeds=(0, 1, 2))
    pretend_done(sweep, tmp_path)
    for run, torch in zip(plan_sweep(sweep), ("2.8", "2.9", "2.8"), strict=True):
        path = tmp_path / run.name / EVALUATION
        versions = {"python": "3.11", "torch": torch}
        replace(EvaluationResult.load(path), versions=versions).save(path)
    found = run_sweep(sweep, runs=tmp_path).versions
    assert found == {"python": "3.11", "torch": "2.8 and 2.9 (runs differ)"}


def test_a_foreign_evaluation_does_not_count_as_done(recipe: Path, tmp_path: Path) -> None:
    sweep = tiny_sweep(recipe, "head.margin=0.2")
    other = tiny_sweep(recipe, "head.margin=0.3")
    pretend_done(other, tmp_path)
    own, foreign = (tmp_path / plan_sweep(each)[0].name for each in (sweep, other))
    own.mkdir()
    (own / "evaluation.json").write_bytes((foreign / "evaluation.json").read_bytes())
    assert look_up_runs(sweep, runs=tmp_path)[0].status is Status.WAITING
    (own / "evaluation.json").write_text("{")
    assert look_up_runs(sweep, runs=tmp_path)[0].status is Status.WAITING
    (own / "config.yaml").write_bytes((foreign / "config.yaml").read_bytes())
    with pytest.raises(ValueError, match="not the config that its folder is named after"):
        look_up_runs(sweep, runs=tmp_path)


def test_settings_carry_what_the_paper_says(recipe: Path, tmp_path: Path) -> None:
    setting = Setting("ours", ("head.margin=0.2",), {"combined": 93.4})
    sweep = Sweep(
        "t", "T", str(recipe), (setting,), (0,), "Table 2", "small", "c", {"combined": "All"}
    )
    pretend_done(sweep, tmp_path)
    result = run_sweep(sweep, runs=tmp_path)
    assert result.rows[0].published == {"combined": 93.4}
    assert (result.where, result.command) == ("Table 2", "c")
    assert result.published_columns == {"combined": "All"}
    assert run_sweep(replace(sweep, judged="plain"), runs=tmp_path).judged_by == "plain"
