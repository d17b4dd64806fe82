"""evaluate, extract and generate as a user meets them: what they print, write and refuse."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from sphereface2.cli import app
from sphereface2.cli.evaluate import _protocol_options
from sphereface2.evaluation.pair_scores import load_scores
from sphereface2.evaluation.protocols import PROTOCOLS
from sphereface2.evaluation.protocols.ijb import IjbResult
from sphereface2.evaluation.protocols.protocol import (
    Embeddings,
    ImageList,
    ListedFiles,
    Part,
    Protocol,
    ProtocolResult,
    Table,
    View,
)
from sphereface2.evaluation.thresholds import Measure
from sphereface2.evaluation.uncertainty import rate_of
from sphereface2.evaluation.verification import EvaluationResult
from sphereface2.registry import option_names
from tests.evaluation.test_protocols import faces, pair_list, save

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a model, crops of people, pairs of them, and a small IJB."""
    place = tmp_path_factory.mktemp("evaluate")
    save(place / "run" / "model")
    save(place / "other", seed=1)
    faces(place / "crops", 12, 4)
    pair_list(place, place / "mine.txt")
    done = run("generate", "small-ijb", str(place / "ijb"), "--scale", "0.07")
    assert done.exit_code == 0, done.output
    assert f"next: sphereface2 evaluate MODEL --protocol ijb-c --root {place / 'ijb'}" in " ".join(
        done.stderr.split()
    )
    return place


@pytest.fixture
def place(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder of its own, with the things that were made by their plain names."""
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("drawn_figures")
def test_a_benchmark_by_a_model_and_by_saved_embeddings(place: Path) -> None:
    done = run("evaluate", "run", "--protocol", "ijb-c", "--root", "ijb", "--device", "cpu")
    assert done.exit_code == 0, done.output
    for part in (
        "ijb-c 1:1", "ijb-c 1:N standard", "ijb-c 1:N legacy", "TAR@FAR=0.01", "rank 1",
        "not", "· template: mean within media", "· legacy: galleries merged", "· made data",
    ):  # fmt: skip
        assert part in done.stdout
    out = place / "evaluations" / "run-ijb-c"
    assert files(out) == {
        "embeddings.json", "embeddings.npy", "embeddings.txt", "report.html", "result.json"
    }  # fmt: skip
    assert "report: evaluations/run-ijb-c/report.html" in done.stdout
    first = IjbResult.load(out / "result.json")
    saved = run(
        "evaluate", "--embeddings", str(out / "embeddings.npy"), "--protocol", "ijb-c",
        "--root", "ijb", "--part", "1:1", "--output", "second",
    )  # fmt: skip
    assert saved.exit_code == 0, saved.output
    assert files(place / "second") == {"report.html", "result.json"}
    assert IjbResult.load(place / "second" / "result.json").verification == first.verification
    # The paper's numbers stand beside those of the real benchmark only.
    assert "Beside the paper" not in (place / "second" / "report.html").read_text()
    (place / "real").mkdir()
    for path in (place / "ijb").iterdir():
        if path.suffix != ".json":
            (place / "real" / path.name).symlink_to(path)
    real = run(
        "evaluate", "--embeddings", str(out / "embeddings.npy"), "--protocol", "ijb-c",
        "--root", "real", "--part", "1:1", "--output", "third",
    )  # fmt: skip
    assert real.exit_code == 0, real.output
    page = (place / "third" / "report.html").read_text()
    for label in ("ijbc_11_1n", "ijbb_sa_sota (right)", "ijbc_margin_type"):
        assert label in page


@dataclass(frozen=True)
class CountResult(ProtocolResult):
    images: int
    bright: Measure

    def view(self) -> View:
        table = Table("what there is", ("kind", "images"), (("all", self.images),))
        part = Part("brightness", measures=[self.bright], headline=[self.bright], tables=[table])
        return View([part], f"{self.images} images")


@dataclass(kw_only=True)
class Count(Protocol[CountResult]):
    """As small as a protocol can be: how many embeddings begin with more than `least`."""

    name: ClassVar[str] = "count"

    least: Annotated[float, "the first number of an embedding"] = 0.0
    kind: Annotated[Literal["all", "half"], "which images"] = "all"

    def read(self, root: Path) -> list[ImageList]:
        names = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*.png"))
        names = names[:: 2 if self.kind == "half" else 1]
        return [ImageList("embeddings", names, lambda: ListedFiles(root, names))]

    def measure(self, embeddings: Embeddings) -> CountResult:
        first = embeddings["embeddings"].folded[:, 0]
        rate = rate_of(np.asarray(first > self.least), None)
        return CountResult(
            "count", (f"more than {self.least:g}",), first.size, Measure("first", rate)
        )


def test_a_new_protocol_is_one_class_and_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _protocol_options.cache_clear()
    monkeypatch.setitem(PROTOCOLS, "count", Count)
    try:
        helped = " ".join(run("evaluate", "--help").stdout.replace("│", " ").split())
        assert "count: the first number of an embedding." in helped
        assert "megaface, tinyface, count; their own options are listed below" in helped
        words = ["evaluate", "run", "--protocol", "count", "--root", "crops", "--device", "cpu"]
        done = run(*words, "--least", "0.01", "--kind", "half")
        assert done.exit_code == 0, done.output
        printed = " ".join(done.stdout.split())
        assert all(word in printed for word in ("brightness", "what there is", "· more than 0.01"))
        out = place / "evaluations" / "run-count"
        result = CountResult.load(out / "result.json")
        vectors = np.load(out / "embeddings.npy")
        assert result.images == len(vectors) == 24
        assert result.bright.rate.successes == np.count_nonzero(vectors[:, 0] > 0.01)
        assert "what there is" in (out / "report.html").read_text()
        saved = run(
            "evaluate", "--embeddings", str(out / "embeddings.npy"), "--protocol", "count",
            "--root", "crops", "--kind", "half", "--least", "0.01", "--output", "again",
        )  # fmt: skip
        assert saved.exit_code == 0, saved.output
        assert CountResult.load(place / "again" / "result.json").bright == result.bright
        said = str(run(*words, "--kind", "hafl").exception)
        assert "protocol.kind: must be 'all' or 'half', got 'hafl'; did you mean 'half'?" in said
        said = str(run(*words, "--refined").exception)
        assert said == "--refined is for --protocol megaface; leave it out"
        said = str(run("evaluate", "run", "--on", "crops", "--least", "1").exception)
        assert said == "--least is for --protocol count; leave it out"
    finally:
        _protocol_options.cache_clear()


def test_options_of_one_name_are_the_same_in_every_protocol() -> None:
    kinds: dict[str, Any] = {}
    for factory in PROTOCOLS.values():
        hints = get_type_hints(factory.__init__, include_extras=True)
        for name in option_names(factory):
            kind, helped = get_args(hints[name])
            assert kinds.setdefault(name, kind) == kind
            assert helped


def test_sets_after_one_option(place: Path) -> None:
    words = ["--on", "mine.txt", "crops", "--root", "crops", "--device", "cpu"]
    done = run("evaluate", "run", *words)
    assert done.exit_code == 0, done.output
    assert all(word in done.stdout for word in ("mine", "crops", "combined", "cosface", "EER"))
    out = place / "evaluations" / "run-mine+crops"
    assert {"evaluation.json", "report.html", "scores.npz"} <= files(out)
    assert EvaluationResult.load(out / "evaluation.json").sets == ("mine", "crops", "combined")
    label, scored = load_scores(out / "scores.npz")
    assert (label, [each.name for each in scored]) == ("cosface", ["mine", "crops"])
    before = run("evaluate", "--on", "mine.txt", "run", "--on", "crops", *words[3:])
    assert before.exit_code == 0, before.output
    assert before.stdout == done.stdout


def test_extract_then_evaluate_without_the_model(place: Path) -> None:
    done = run("extract", "run", "crops", "x.npy", "--device", "cpu", "--no-flip")
    assert done.exit_code == 0, done.output
    assert "48 embeddings of 6 dimensions" in done.stderr
    assert (place / "x.txt").read_text().splitlines()[5] == "p1/1.png\tp1"
    assert json.loads((place / "x.json").read_text())["flip"] is False
    judged = run("evaluate", "--embeddings", "x.npy", "--on", "mine.txt")
    assert judged.exit_code == 0, judged.output
    assert "Beside the paper" not in (place / "evaluations/x-mine/report.html").read_text()
    (place / "LFW.txt").symlink_to(place / "mine.txt")
    paper = run("evaluate", "--embeddings", "x.npy", "--on", "LFW.txt")
    assert paper.exit_code == 0, paper.output
    page = (place / "evaluations/x-LFW/report.html").read_text()
    assert "Beside the paper" in page
    assert "99.58" in page  # SphereFace2-M on LFW
    assert files(place / "evaluations" / "x-mine") == {
        "evaluation.json", "report.html", "scores.npz"
    }  # fmt: skip
    again = run("extract", "run", "crops", "x.npy", "--device", "cpu")
    assert "x.npy exists already" in str(again.exception)
    assert run("extract", "run", "crops", "x.npy", "--device", "cpu", "--overwrite").exit_code == 0
    assert json.loads((place / "x.json").read_text())["flip"] is True


def test_a_small_benchmark_is_evaluated_as_its_last_line_says(place: Path) -> None:
    done = run("generate", "small-ijb", "made", "--scale", "0.07", "--seed", "1")
    assert done.exit_code == 0, done.output
    command = done.stderr.strip().splitlines()[-1].removeprefix("next: sphereface2 ")
    judged = run(*command.replace("MODEL", "run").split(), "--device", "cpu")
    assert judged.exit_code == 0, judged.output
    assert "made data" in judged.stdout
    assert not [path for path in place.iterdir() if path.name.endswith(".part")]


MISTAKES = [
    (["evaluate"], "there is nothing to judge: give a run folder, a MODEL"),
    (["evaluate", "other"], "other is a model folder, which has no sets of its own"),
    (["evaluate", "nowhere"], "nowhere is not a run folder"),
    (["evaluate", "--on", "mine.txt"], "there is nothing to judge: give a MODEL or --embeddings"),
    (["evaluate", "nowhere", "--on", "mine.txt"], "there is no run or model folder nowhere"),
    (["evaluate", "run", "--on", "mine.txt"], "mine.txt are missing"),
    (["evaluate", "run", "--on", "mine.txt", "a.b=1"], "'a.b=1' changes the config of a run"),
    (["evaluate", "run", "--on", "lfv.bin"], "there is no verification set 'lfv.bin'"),
    (
        ["evaluate", "run", "--on", "crops", "--norm", "unit"],
        "--norm is for --protocol ijb-b or ijb-c",
    ),
    (["evaluate", "run", "--protocol", "ijbc"], "unknown protocol 'ijbc'; did you mean 'ijb-c'?"),
    (["evaluate", "run", "--protocol", "ijb-c"], "ijb-c needs --root DIR"),
    (["evaluate", "run", "--protocol", "ijb-c", "--root", "crops"], "ijbc_face_tid_mid.txt"),
    (["evaluate", "run", "--protocol", "ijb-c", "--root", "ijb", "--norm", "l2"], "'unit'"),
    (
        ["evaluate", "run", "--protocol", "megaface", "--root", "ijb", "--norm", "unit"],
        "--norm is for --protocol ijb-b or ijb-c; leave it out",
    ),
    (["evaluate", "run", "--protocol", "megaface", "--root", "ijb"], "has no templatelists"),
    (["evaluate", "run", "--protocol", "ijb-c", "--on", "mine.txt"], "has its own images"),
    (["evaluate", "--embeddings", "no.npy", "--on", "mine.txt"], "there is no file or folder no"),
    (["evaluate", "--embeddings", "y.npy"], "say what to judge it on"),
    (["evaluate", "--embeddings", "y.npy", "--on", "mine.txt"], "34 of 36 images"),
    (["evaluate", "run", "--embeddings", "y.npy", "--on", "mine.txt"], "5 dimensions; 6 are"),
    (
        ["evaluate", "run", "--protocol", "ijb-c", "--root", "ijb", "--device", "x"],
        "device must be",
    ),
    (["extract", "run", "crops", "y.bin"], "embeddings are written as .npy"),
    (["extract", "run", "nothing", "z.npy"], "there is no file or folder nothing"),
    (["extract", "crops", "crops", "z.npy"], "crops holds no model"),
    (["generate", "small", "made"], "unknown benchmark 'small'; did you mean 'small-ijb'?"),
    (["generate", "ijb-c", "made"], "by 'python -m benchmarks.generate ijb-c DIR'"),
    (["generate", "small-ijb", "crops"], "crops already exists and is not empty"),
    (["generate", "small-ijb", "made", "--scale", "0"], "--scale must be above 0"),
]


@pytest.mark.parametrize(("words", "part"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_sentence_and_writes_nothing(
    words: list[str], part: str, place: Path
) -> None:
    np.save(place / "y.npy", np.ones((2, 5), np.float32))
    (place / "y.txt").write_text("p0/0.png\np0/1.png\n")
    before = set(place.iterdir())
    done = run(*words)
    assert isinstance(done.exception, ValueError | OSError), done.output
    assert part in " ".join(str(done.exception).split())
    assert done.stdout == ""
    assert set(place.iterdir()) == before


def test_embeddings_of_another_model_are_refused(place: Path) -> None:
    assert run("extract", "other", "crops", "x.npy", "--device", "cpu").exit_code == 0
    done = run("evaluate", "run", "--embeddings", "x.npy", "--on", "mine.txt")
    assert isinstance(done.exception, ValueError)
    assert str(done.exception) == (
        "x.npy was extracted with another model than run/model; extract again, or leave the model "
        "out"
    )


@pytest.mark.usefixtures("quick_processes")
def test_two_ranks_share_the_work_and_ctrl_c_keeps_it(place: Path) -> None:
    words = ["evaluate", "run", "--protocol", "ijb-c", "--root", "ijb", "--part", "1:1",
             "--device", "cpu", "--batch-size", "4"]  # fmt: skip
    # Stopped by hand while it embeds ...
    started = subprocess.Popen(
        [sys.executable, "-m", "sphereface2", *words, "--output", "both"],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    begun = place / "both" / "embeddings.npy.partial" / "what.json"
    while started.poll() is None and not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=300)
    if started.returncode != 0:  # else it was faster than the signal
        assert started.returncode == 130
        assert "the same command resumes" in said
    # ... it continues with two ranks to the same result.
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone",
         "-m", "sphereface2", *words, "--output", "both"],
        env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert run(*words, "--output", "alone").exit_code == 0
    one, two = (np.load(place / name / "embeddings.npy") for name in ("alone", "both"))
    np.testing.assert_array_equal(one, two)
    assert (place / "alone" / "result.json").read_bytes() == (
        place / "both" / "result.json"
    ).read_bytes()
