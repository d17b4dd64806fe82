"""The reproduce command as a user meets it, with real runs of a moment each."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sphereface2.cli import app
from sphereface2.evaluation.experiment_results import SweepResult
from sphereface2.experiments.paper import reproduce
from sphereface2.experiments.paper.catalogue import EXPERIMENTS
from sphereface2.experiments.paper.settings import SMALL, gradients
from sphereface2.experiments.sweep.plan import plan_sweep
from sphereface2.runs import estimate as estimating
from sphereface2.runs.estimate import Speed
from tests.experiments.sweep.tiny import write_recipe


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *words], env={"COLUMNS": "160"})


def mistake(*words: str) -> str:
    """What a mistake is called; `main` prints it as one sentence and exits with 2."""
    done = run(*words)
    assert isinstance(done.exception, ValueError | OSError), done.output
    return str(done.exception)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ground = replace(SMALL, recipe=str(write_recipe(tmp_path)))
    monkeypatch.setattr(reproduce, "SMALL", ground)
    return tmp_path


def test_the_list_has_every_name_its_place_and_its_claim() -> None:
    reported = run("--list")
    assert reported.exit_code == 0
    words = " ".join(reported.stdout.split())
    assert all(each.claim in words for each in EXPERIMENTS.values())
    for name, each in EXPERIMENTS.items():
        line = next(line for line in reported.stdout.splitlines() if line.startswith(f"{name} "))
        assert each.where in line


@pytest.mark.usefixtures("quick_processes", "drawn_figures")
def test_a_table_leaves_its_numbers_in_every_form_and_is_not_trained_twice(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = replace(EXPERIMENTS["gradient"], rows=lambda ground: gradients(ground)[:2])
    monkeypatch.setitem(EXPERIMENTS, "gradient", two)
    made = run("gradient", "--seeds", "1", "--jobs", "2")
    assert made.exit_code == 0, made.output
    folder = tiny / "reproduced" / "gradient"
    result = SweepResult.load(folder / "result.json")
    assert [row.label for row in result.rows] == [
        "sphereface2-c, exact",
        "sphereface2-c, straight-through",
    ]
    assert all(set(run.values) == set(result.columns) for row in result.rows for run in row.runs)
    assert result.command == "sphereface2 reproduce gradient --seeds 1 --jobs 2"
    for row in result.rows:
        assert row.label in made.stdout
        assert row.label in (folder / "table.md").read_text()
        assert row.command.split(" --output ")[0] in (folder / "index.html").read_text()
    assert len(list(csv.reader((folder / "table.csv").read_text().splitlines()))) == 3
    assert (folder / "gradient.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "gradient.svg").read_text().count("<svg") == 1

    trained = {path: path.stat().st_mtime_ns for path in (tiny / "reproduced/runs").rglob("*.json")}
    again = run("gradient", "--seeds", "1")
    assert again.exit_code == 0
    assert again.stdout == made.stdout
    for path, time in trained.items():
        assert path.stat().st_mtime_ns == time


@pytest.mark.usefixtures("drawn_figures")
@pytest.mark.parametrize("name", ["fig-loss", "fig-margin", "fig-adjustment"])
def test_a_drawing_needs_no_training(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = run(name)
    assert made.exit_code == 0, made.output
    picture = tmp_path / "reproduced" / name / f"{name.removeprefix('fig-')}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture.relative_to(tmp_path)) in made.stdout
    assert not (tmp_path / "reproduced" / "runs").exists()


def test_a_dry_run_reports_what_the_papers_scale_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made_up = Speed(
        backbone_seconds=0.1, head_seconds=0.02, update_seconds=0.01, batch_size=512, how="made up"
    )
    monkeypatch.setattr(estimating, "probe", lambda *_, **__: made_up)
    reported = run("principles", "--scale", "paper", "--seeds", "1", "--dry-run")
    assert reported.exit_code == 0, reported.output
    assert "6 settings of vggface2-sfnet20 with 1 seed each" in reported.stdout
    assert "80,000" in reported.stdout
    assert "--data DIR" in reported.stdout
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    assert "principles" in mistake("principels")
    assert "--list" in mistake()
    assert "small" in mistake("principles", "--scale", "smal")
    assert "--data DIR" in mistake("principles", "--scale", "paper")
    missing = tmp_path / "nowhere"
    assert str(missing) in mistake("principles", "--scale", "paper", "--data", str(missing))
    assert "VGGFace2" in mistake("principles", "--scale", "paper", "--data", str(tmp_path))
    for name in ("open-set", "fig-loss", "fig-features-2d"):
        assert "one scale" in mistake(name, "--scale", "paper", "--data", str(tmp_path))
    assert "--scale paper" in mistake("principles", "--data", str(tmp_path))
    assert "'precision=fast' is for runs, which fig-loss has none of" in mistake(
        "fig-loss", "precision=fast"
    )


def test_the_command_that_is_reported_resumes_this_very_work(tmp_path: Path) -> None:
    plain = reproduce.Reproduction()
    assert plain.command("losses") == "sphereface2 reproduce losses"
    other = reproduce.Reproduction(tmp_path / "a b", seeds=(4,), jobs=2)
    assert other.command("losses") == (
        f"sphereface2 reproduce losses --seeds 4, --jobs 2 --output '{tmp_path / 'a b'}'"
    )


def test_what_is_given_changes_every_run() -> None:
    work = reproduce.Reproduction(overrides=("precision=fast", "head.margin=0.1"))
    assert work.command("principles") == (
        "sphereface2 reproduce principles precision=fast head.margin=0.1"
    )
    sweep = work.plan("sharpness")
    assert sweep is not None
    configs = [run.config for run in plan_sweep(sweep)]
    assert {config.precision for config in configs} == {"fast"}
    assert {config.head.options["margin"] for config in configs} == {0.1}
