"""The command line as a user meets it: what it prints, and where, and how it ends."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from sphereface2 import __version__
from sphereface2.backbones import build_backbone
from sphereface2.cli import app, main
from sphereface2.data.transforms import Preprocessing
from sphereface2.models.folder import save_model
from tests.runs.test_runs import SETS, SMALL, write_crops


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100"})


def run_program(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "sphereface2", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


# Python's own start opens the streams, buffered or not: a fork of a loaded process would not.
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is always full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["recipes"], ["train", "nobody"]])
def test_what_cannot_be_printed_is_one_sentence(words: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sphereface2", *words],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("sphereface2: ")
    assert done.stderr.count("\n") == 1
    if words == ["recipes"]:
        assert "no space left on device" in done.stderr


def test_waiting_threads_leave_their_core(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_DISPLAY_ENV": "verbose"}
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        environment.pop(name, None)
    shown = subprocess.run(
        [sys.executable, "-m", "sphereface2", "heads"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "GOMP_SPINCOUNT = '0'" in shown.stderr  # what OpenMP made of it, in rounds of waiting


OWN_CHOICE = """
import os, sys
from sphereface2.__main__ import main
sys.argv = ["sphereface2", "--version"]
try:
    main()
finally:
    print(os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize(("given", "kept"), [(None, "passive"), ("ACTIVE", "ACTIVE")])
def test_a_users_own_way_of_waiting_stays(given: str | None, kept: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    if given is not None:
        environment["OMP_WAIT_POLICY"] = given
    command = [sys.executable, "-c", OWN_CHOICE]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split()[-1] == kept


@pytest.mark.usefixtures("quick_processes", "drawn_figures")
def test_train_and_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = run_program("train", "quickstart", *SMALL, *SETS, cwd=tmp_path)
    assert (trained.returncode, trained.stdout) == (0, ""), trained.stderr
    assert "next: sphereface2 evaluate runs/quickstart" in trained.stderr
    monkeypatch.chdir(tmp_path)
    evaluated = run("evaluate", "runs/quickstart")
    assert evaluated.exit_code == 0, evaluated.output
    for word in ("sphereface2-c", "raw pixels", "untrained network", "combined", "EER", "TAR@FAR"):
        assert word in evaluated.stdout
    assert "report: runs/quickstart/report.html" in evaluated.stdout
    again = run("train", "quickstart", *SMALL)
    assert "runs/quickstart already holds a run" in str(again.exception)


MISTAKES = [
    (["train", "quickstrat"], "did you mean 'quickstart'?"),
    (["train", "quickstart", "head.name=sphreface2-c"], "did you mean 'sphereface2-c'?"),
    (["train", "quickstart", "head.radis=30"], "did you mean 'radius'?"),
    (["train", "quickstart", "head.nmae=cosface"], "did you mean 'head.name'?"),
    (["train", "quickstart", "head.name=arcface", "head.radius=3"], "did you mean 'scale'?"),
    (["train", "quickstart", "training.batchsize=30"], "did you mean 'training.batch_size'?"),
    (["train", "quickstart", "head.balance=1.5"], "balance must lie in [0, 1], got 1.5"),
    (["train", "quickstart", "head.radius=0"], "radius must be above 0"),
    (["train", "quickstart", "head.sharpness=-2"], "sharpness must be above 0"),
    (["train", "quickstart", "head.radius=big"], "head.radius"),
    (["train", "quickstart", "data.people=1"], "people"),
    (["train", "quickstart", "epochs"], "epochs"),
    (["train", "broken.yaml"], "broken.yaml"),
    (["train", "own-faces"], "data.path has no value yet; give it as data.path=VALUE"),
    (["train", "own-faces", "data.path=nowhere"], "nowhere"),
    (["train", "own-faces", "data.path=123"], "123 does not exist; give the folder"),
    (
        ["train", "own-faces", "data.path=alone"],
        "alone has images of one person only; training needs at least two people, each "
        "in a folder of their own",
    ),
    (["resume", "nowhere"], "nowhere is not a run folder"),
    (["evaluate", "nowhere"], "nowhere is not a run folder"),
    (["trian", "quickstart"], "no such command 'trian' (did you mean 'train'?); see"),
    (["train"], "missing argument 'recipe'; see 'sphereface2 train --help'"),
    (["train", "quickstart", "--outptu", "x"], "--outptu (did you mean --output?)"),
    (["sweep", "quickstart", "--jobs", "0"], "--jobs must be at least 1, got '0'; see"),
    (["sweep", "quickstart", "--jobs", "x"], "--jobs must be a whole number, got 'x'; see"),
    (["train", "quickstart", "--output"], "requires an argument; see 'sphereface2 train --help'"),
    (["regroup", "split", "a", "b", "x"], ": FACE... must be a whole number, got 'x'; see"),
    (["gallery", "lst"], "(did you mean 'list'?); see 'sphereface2 gallery --help'"),
    (["evaluate", "a", "--checkpoint", "bets"], "unknown --checkpoint 'bets'; did you mean 'best'"),
]


@pytest.mark.parametrize(("words", "part"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_gets_one_sentence_and_exit_code_two(
    words: list[str],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken.yaml").write_text("head: [unclosed\n")
    (tmp_path / "alone" / "anna").mkdir(parents=True)
    (tmp_path / "alone" / "anna" / "1.png").write_bytes(b"never decoded")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sphereface2", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed, said = capsys.readouterr()
    assert printed == ""
    assert said.startswith("sphereface2: ")
    assert part in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_program_itself_ends_with_the_sentence(tmp_path: Path) -> None:
    done = run_program("train", "quickstrat", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sphereface2: unknown recipe 'quickstrat'")
    assert done.stderr.count("\n") == 1


def test_what_a_file_says_does_not_steer_the_terminal(tmp_path: Path) -> None:
    torch.save({"a\x1b[31m.weight": torch.ones(2)}, tmp_path / "a.pth")
    done = run_program("import", "a.pth", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "(the first are a\\x1b[31m.weight)" in done.stderr


OUTPUTS = [
    ["train", "quickstart", "--output", "file/out"],
    ["sweep", "quickstart", "--output", "file/out"],
    ["sweep", "quickstart", "--runs", "file/out"],
    ["reproduce", "principles", "--output", "file/out"],
    ["generate", "small-ijb", "file/out"],
    ["align", "faces", "file/out"],
    ["convert", "faces", "file/out.rec"],
    ["inspect", "faces", "--output", "file/out"],
    ["extract", "model", "faces", "file/out.npy"],
    ["compare", "faces", "model", "--output", "file/out.html"],
    ["calibrate", "model", "--on", "synthetic", "--picture", "file/out.png"],
    ["evaluate", "model", "--on", "synthetic", "--output", "file/out"],
]


@pytest.mark.parametrize("words", OUTPUTS, ids=lambda words: f"{words[0]} {words[-2]}")
def test_an_output_that_cannot_be_written_is_noticed_before_the_work(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    write_crops(tmp_path / "faces" / "anna", 2)
    options = {"width": 4, "input_size": 16, "embedding_dim": 8}
    network = build_backbone("sfnet4", seed=0, **options)
    size = Preprocessing(16)
    save_model(tmp_path / "model", network, name="sfnet4", options=options, preprocessing=size)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = run(*words)
    assert "cannot be written: file is not a folder" in str(done.exception)
    assert done.output == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_are_listed_with_their_defaults() -> None:
    whole, part = run("settings"), run("settings", "optimizer")
    for key in ("seed=0", "optimizer.betas=[0.9, 0.999]", "schedule.warmup=0.0", "head (must be"):
        assert key in whole.stdout
    for key in ("training.start_from=null", "training.flip=true", "augmentation=none"):
        assert key in whole.stdout
    assert "optimizer.matrix_step=0.03" in part.stdout
    assert "schedule" not in part.stdout
    assert run("settings", "optimizer.momentum").stdout == part.stdout
    assert "did you mean 'optimizer'" in str(run("settings", "optimiser").exception)


def test_lists_name_everything() -> None:
    from sphereface2.backbones import BACKBONES
    from sphereface2.data.augmentation import AUGMENTATIONS
    from sphereface2.data.pairs import VERIFICATION_SETS
    from sphereface2.data.sources import SOURCES
    from sphereface2.heads import HEADS
    from sphereface2.registry import option_names

    tables: dict[str, Mapping[str, Callable[..., object]]] = {
        "heads": HEADS,
        "backbones": BACKBONES,
        "augmentations": AUGMENTATIONS,
        "sources": SOURCES,
        "sets": VERIFICATION_SETS,
    }
    for command, table in tables.items():
        done = run(command)
        assert done.exit_code == 0
        words = done.stdout.split()
        assert set(table) <= set(words)
        options = {key for factory in table.values() for key in option_names(factory)}
        assert options <= {re.split("[=,]", word)[0] for word in words}
        assert "None" not in done.stdout


def test_the_list_of_heads_shows_the_margin_of_each_type() -> None:
    rows = run("heads").stdout.split("sphereface2-")[1:]
    assert [row[0] + "=" + row.split(" margin=")[1].split(",")[0] for row in rows] == [
        "c=0.4",
        "a=0.5",
        "m=1.7",
    ]


def test_one_entry_of_a_list_is_explained() -> None:
    shown = run("sets", "drawn").stdout
    assert shown.startswith("Pairs of the people in a folder")
    assert "Images of nobody\nknown (label -1) stay out." in shown
    assert "Options: path (must be given), root=null, pairs=6000, impostors=null" in shown
    # Its options come from SphereFace2, and so does what is said of them.
    shown = run("heads", "sphereface2-m").stdout
    assert shown.startswith("SphereFace2 with the multiplicative margin")
    assert shown.count("sharpness: t of the similarity adjustment g") == 1
    assert "margin=1.7" in shown
    # Its pull, with the options that are given: s(1 - p) of CosFace at a right angle is s.
    assert "Pull: 64 at 0 and" in run("heads", "cosface").stdout
    assert "Pull with scale=30, margin=0.4: 30 at 0 and" in (
        run("heads", "cosface", "scale=30", "head.margin=0.4").stdout
    )
    assert "The term on pairs pulls samples alone" in run("heads", "unitsface").stdout
    assert "No pull to compare: that is of class weights" in run("heads", "triplet").stdout
    assert "its class weights are of any length" in run("heads", "softmax").stdout
    wrong = run("heads", "cosface", "scal=30")
    assert "has no option 'scal'; did you mean 'scale'?" in str(wrong.exception)
    wrong = run("heads", "cosface", "30")
    assert "an option of the head looks like scale=30; got '30'" in str(wrong.exception)
    wrong = run("sources", "foldr")
    assert "unknown source 'foldr'; did you mean 'folder'?" in str(wrong.exception)


def test_the_version_is_shown() -> None:
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"sphereface2 {__version__}\n")


def test_help_names_the_commands() -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert all(command in done.stdout for command in ("train", "resume", "evaluate", "recipes"))


def test_want_of_memory_is_said_in_a_sentence_and_a_bug_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sphereface2.cli.app", lambda **_: torch.empty(1 << 50))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("sphereface2: out of memory (")
    assert "smaller batches" in said
    monkeypatch.setattr("sphereface2.cli.app", lambda **_: torch.empty(2).view(3))
    with pytest.raises(RuntimeError, match="shape"):
        main()


def test_ctrl_c_while_it_loads_is_quiet() -> None:
    code = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "sphereface2.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from sphereface2.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "sphereface2: stopped\n")
