"""`train --dry-run` as a user meets it; tests/runs/test_estimate.py has the numbers behind it."""

from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from sphereface2.cli.train import estimate_table, left_out, resume, train
from sphereface2.config.schema import RunConfig, load_config
from sphereface2.runs import estimate as estimating
from sphereface2.runs.estimate import Speed, estimate
from tests.runs.test_runs import NO_SETS, SETS, SMALL

TINY = ["backbone.name=sfnet4", "backbone.width=4", "training.batch_size=8", "device=cpu"]


@pytest.fixture(autouse=True)
def _steps_of_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(config: RunConfig, *, people: int, threads: int | None) -> Speed:
        return Speed(1.5, 0.4, 0.1, batch_size=config.training.batch_size, how="timed by nobody")

    monkeypatch.setattr(estimating, "probe", timed)


def run(*words: str) -> Any:
    app = typer.Typer()
    app.command("train")(train)
    app.command("resume")(resume)
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "160"})


def test_a_dry_run_says_what_it_needs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("train", "quickstart", *SMALL, *SETS, "--dry-run")
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    for part in (
        "training data synthetic: built in",
        "verification data synthetic: built in",
        "48 of 12 people (counted in the data)",
        "steps 6 of 16 images (2 epochs)",
        "image passes 96",
        "backbone + ",
        "on one rank",
        "activations in float32",
        "checkpoint",
        "time on this machine 12 s: 8 images/s, a step in 2 s (network 1.5 s, head 0.4 s, update",
        "how it was obtained timed by nobody",
        "at N images/s: 96 / N seconds",
    ):
        assert part in text, part
    assert not list(tmp_path.iterdir())


def test_missing_data_are_no_mistake(tmp_path: Path) -> None:
    done = run("train", "vggface2-sfnet64", *TINY, "--dry-run", "--data", str(tmp_path))
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "folder: missing, path not given yet" in text
    assert "3,141,890 of 8,631 people (VGGFace2 as published" in text
    assert "80,000 of 8 images" in text
    assert "lacks VGGFace2 (vggface2/, vggface2.rec" in text


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        (("WebFace4M", "WebFace12M", "WebFace42M"), "WebFace12M"),
        (("WebFace4M", "WebFace42M"), "WebFace4M"),
        (("WebFace42M",), "WebFace42M"),
    ],
)
def test_a_recipe_takes_the_set_that_it_is_made_for_or_a_sister_of_it(
    there: tuple[str, ...], taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in there:
        (tmp_path / name / "someone").mkdir(parents=True)
    asked: list[str] = []

    def seen(config: RunConfig, **options: Any) -> None:
        asked.append(str(config.data.options["path"]))
        raise ValueError("seen enough")

    monkeypatch.setattr("sphereface2.runs.estimate.estimate", seen)
    run("train", "webface-iresnet100", "--dry-run", "--data", str(tmp_path))
    assert asked == [str(tmp_path / taken)]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["quickstart", "head.radis=3", "--dry-run"], "did you mean 'radius'?"),
        (["vggface2-sfnet20", "--data", "nowhere"], "--data: nowhere does not exist"),
        (["own-faces", "--data", "."], "names no public data set; give data.path=PATH instead"),
    ],
)
def test_other_mistakes_are(
    words: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("train", *words)
    assert isinstance(done.exception, ValueError | FileNotFoundError)
    assert part in str(done.exception)
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("runs", "jobs", "said"),
    [
        (7, 2, "time on this machine 7 runs, 2 at once: 48 s one run 12 s: 8 images/s"),
        (7, 1, "time on this machine 7 runs, one after another: 1 min 24 s one run 12 s: 8"),
        (2, 16, "time on this machine 2 runs, 2 at once: 12 s one run 12 s: 8 images/s"),
        (1, 16, "time on this machine 12 s: 8 images/s"),
    ],
)
def test_several_runs_have_one_time(runs: int, jobs: int, said: str) -> None:
    config = load_config("quickstart", [*SMALL, *NO_SETS])
    screen = Console(width=160)
    with screen.capture() as shown:
        screen.print(estimate_table(estimate(config), title="so", runs=runs, jobs=jobs))
    text = " ".join(shown.get().split())
    assert said in text
    passes = f"{96 * runs} / N seconds" + (f" for {runs} runs" if runs > 1 else "")
    assert passes in text


# A new name for the backbone


def test_what_a_new_backbone_drops_is_said() -> None:
    sentence = left_out("real-faces", ["backbone.name=sfnet10", "backbone.width=8"])
    assert sentence is not None
    assert sentence.startswith("backbone.name=sfnet10 leaves out what real-faces sets for sfnet4 (")
    assert "input_size=48" in sentence
    assert "width" not in sentence
    for overrides in (["backbone.name=sfnet4", "backbone.width=8"], ["head.name=cosface"], []):
        assert left_out("real-faces", overrides) is None


def test_what_a_new_backbone_cannot_have_is_no_option_that_it_drops() -> None:
    sentence = left_out("real-faces-long", ["backbone.name=sfnet10"])
    assert sentence is not None
    assert "(input_size=64, embedding_dim=1024); what should stay" in sentence
    sentence = left_out("quickstart", ["backbone.name=iresnet18", "backbone.width=8"])
    assert sentence is not None
    assert "batch_norm" not in sentence
    # The network of other weights has its options from there.
    assert left_out("quickstart", ["backbone.name=start"]) is None


@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_a_training_and_a_dry_run_say_once_what_a_new_backbone_drops(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise ValueError("nothing is trained here")

    monkeypatch.setattr("sphereface2.runs.train.train", stop)
    monkeypatch.chdir(tmp_path)
    done = run("train", "real-faces", "data.path=crops", "backbone.name=sfnet10", *more)
    said = " ".join(done.output.split())
    assert said.count("leaves out what real-faces sets for sfnet4 (width=32, input_size=48") == 1
    assert said.count("such as backbone.width=32") == 1
