"""The sweep command as a user meets it; tests/experiments/sweep/ has the processes behind it."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sphereface2.cli.sweep import sweep
from sphereface2.evaluation.experiment_results import SeedRun, SweepResult
from sphereface2.experiments.sweep import engine
from sphereface2.experiments.sweep.plan import settings_of_grid
from tests.experiments.sweep.tiny import pretend_done, tiny_sweep, write_recipe

GRID = ["head.margin=0.2,0.3", "head.sharpness=1,3"]


def run(*words: str) -> Any:
    app = typer.Typer()
    app.command("sweep")(sweep)
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "160"})


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path)
    return "tiny.yaml"


def pretend_all_done(recipe: str, runs: str) -> None:
    wanted = replace(tiny_sweep(Path(recipe)), settings=settings_of_grid(GRID), seeds=(0, 1))
    pretend_done(wanted, Path(runs))


def test_the_plan_is_reported_without_running(recipe: str) -> None:
    reported = run(recipe, *GRID, "--seeds", "2", "--output", "out", "--dry-run")
    assert reported.exit_code == 0, reported.output
    first, *lines = reported.stdout.splitlines()
    assert first == "8 runs, 0 done already"
    assert len(lines) == 8
    assert lines[1].startswith(
        "to do  sphereface2 train tiny.yaml head.margin=0.2 head.sharpness=1 seed=1 "
        "--output out/runs/sphereface2-c-"
    )
    assert not Path("out").exists()
    pretend_all_done(recipe, "out/runs")
    reported = run(recipe, *GRID, "--seeds", "0,1,7", "--output", "out", "--dry-run")
    assert reported.stdout.startswith("12 runs, 8 done already\ndone   sphereface2 train")
    # What is called done is where the plan says that it is.
    _, *lines = reported.stdout.splitlines()
    assert sum(Path(line.split()[-1], "config.yaml").exists() for line in lines) == 8


def test_a_sweep_leaves_its_table_in_four_forms(recipe: str) -> None:
    pretend_all_done(recipe, "store")
    words = [recipe, *GRID, "--seeds", "2", "--output", "out", "--runs", "store"]
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert "margin=0.3, sharpness=1" in done.stdout
    assert "8 runs, 8 done already" in done.stderr
    assert {path.name for path in Path("out").iterdir()} == {
        "result.json",
        "table.md",
        "table.csv",
        "index.html",
    }
    result = SweepResult.load(Path("out/result.json"))
    assert result.command == "sphereface2 sweep " + " ".join(words)
    assert [row.label for row in result.rows][:2] == [
        "margin=0.2, sharpness=1",
        "margin=0.2, sharpness=3",
    ]
    assert result.seeds == (0, 1)
    with Path("out/table.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4


def test_a_recipe_alone_is_one_setting(recipe: str) -> None:
    pretend_done(replace(tiny_sweep(Path(recipe)), settings=settings_of_grid([])), Path("store"))
    done = run(recipe, "--seeds", "1", "--runs", "store")
    assert done.exit_code == 0, done.output
    result = SweepResult.load(Path("sweeps/tiny/result.json"))
    assert [(row.label, row.overrides) for row in result.rows] == [("the recipe as it is", ())]


def test_a_table_is_replaced_only_by_one_that_holds_all_of_it(recipe: str) -> None:
    pretend_all_done(recipe, "store")
    common = ["--runs", "store", "--output", "out"]
    fewer = [GRID[0], "head.sharpness=1"]
    for grid, seeds in ((fewer, "0,"), (GRID, "0,"), (GRID, "2"), (GRID, "2")):
        done = run(recipe, *grid, "--seeds", seeds, *common)
        assert done.exit_code == 0, done.output
    before = Path("out/result.json").read_bytes()
    for words in ([*fewer, "--seeds", "2"], [*GRID, "--seeds", "1"], ["--seeds", "2"]):
        for more in ([], ["--dry-run"]):
            done = run(recipe, *words, *common, *more)
            assert isinstance(done.exception, ValueError)
            assert "out/result.json is of another sweep" in str(done.exception)
            assert "give another --output" in str(done.exception)
    assert Path("out/result.json").read_bytes() == before
    Path("out/result.json").write_text("{}")
    done = run(recipe, *GRID, "--seeds", "2", *common)
    assert "of another sweep" in str(done.exception)


@pytest.mark.parametrize(
    ("source", "name"),
    [("tiny.yaml", "tiny"), ("runs/margin-0.4", "margin-0.4"), ("runs/margin-0.4/", "margin-0.4")],
)
def test_the_output_is_named_after_the_recipe(
    recipe: str, source: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("runs/margin-0.4").mkdir(parents=True)
    Path("runs/margin-0.4/config.yaml").write_text(Path(recipe).read_text())

    def stopped(*words: Any, **options: Any) -> SweepResult:
        raise engine.SweepStopped(done=0, total=1)

    monkeypatch.setattr(engine, "run_sweep", stopped)
    assert f"--output sweeps/{name}\n" in run(source, *GRID).stderr


def test_a_failed_run_is_reported_in_one_sentence(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_all_done(recipe, "sweeps/tiny/runs")

    run_sweep = engine.run_sweep

    def with_failure(*words: Any, **options: Any) -> SweepResult:
        result = run_sweep(words[0], runs=options["runs"])
        failed = SeedRun(1, "some-run", error="the loss turned nan")
        rows = (replace(result.rows[0], runs=(result.rows[0].runs[0], failed)), *result.rows[1:])
        return replace(result, rows=rows)

    monkeypatch.setattr(engine, "run_sweep", with_failure)
    done = run(recipe, *GRID, "--seeds", "2")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert (
        "1 of 8 runs failed, the first at 'margin=0.2, sharpness=1', seed 1: the loss turned nan "
        "(log: sweeps/tiny/runs/some-run/log.txt); the same command tries them again"
    ) in done.stderr


def test_a_stop_says_how_to_resume(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*words: Any, **options: Any) -> SweepResult:
        raise engine.SweepStopped(done=3, total=8)

    monkeypatch.setattr(engine, "run_sweep", stopped)
    done = run(recipe, *GRID, "schedule.name=[x, y]", "--seeds", "2", "--jobs", "2")
    assert done.exit_code == 130
    assert (
        "stopped with 3 of 8 runs done; resume with the same command: sphereface2 sweep tiny.yaml "
        "head.margin=0.2,0.3 head.sharpness=1,3 'schedule.name=[x, y]' --seeds 2 "
        "--output sweeps/tiny --jobs 2"
    ) in done.stderr
    assert not Path("sweeps").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["tinny", *GRID], "unknown recipe 'tinny'"),
        (["tiny.yaml", "head.margn=0.2"], "did you mean 'margin'"),
        (["tiny.yaml", "head.radius=1,-1"], "radius must be above 0"),
        (["tiny.yaml", *GRID, "--seeds", "none"], "--seeds"),
        (["tiny.yaml", *GRID, "--seeds", "1,1"], "seed 1 is given twice"),
    ],
)
def test_a_mistake_stops_before_anything_is_written(
    recipe: str, words: list[str], part: str
) -> None:
    for more in ([], ["--dry-run"]):
        done = run(*words, *more)
        assert isinstance(done.exception, ValueError)
        assert part in str(done.exception)
        assert not Path("sweeps").exists()
