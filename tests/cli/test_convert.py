"""`sphereface2 convert` as a user meets it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import run
from tests.datatools.test_convert import contents, fill, write_pairs


@pytest.fixture(autouse=True)
def _in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_reports_what_was_written_and_where(tmp_path: Path) -> None:
    fill(tmp_path / "crops")
    done = run("convert", "crops", "crops.rec")
    assert done.exit_code == 0, done.output
    first, last = done.stdout.splitlines()
    assert first.startswith("40 images of 4 people, ")
    assert " kB, in " in first
    assert first.endswith(" images/s")
    assert last == "recordio: crops.rec"
    assert "writing 40 images to crops.rec" in done.stderr
    assert contents(tmp_path / "crops.rec") == contents(tmp_path / "crops")


def test_pairs_and_unreadable_images(tmp_path: Path) -> None:
    write_pairs(tmp_path, "lfw")
    (tmp_path / "faces" / "p3" / "p3_0001.jpg").write_bytes(b"")
    words = ["convert", "pairs.txt", "lfw.bin", "--root", "faces"]
    stopped = run(*words)
    assert str(stopped.exception).startswith("1 of the 24 images of pairs.txt")
    done = run(*words, "--on-bad-image", "skip")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("28 pairs, 56 images of 12 people, ")
    assert "left out as unreadable: 2 pairs" in done.stdout


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nothing", "out.rec"], "there is no nothing to convert"),
        (["crops", "out", "--format", "recodio"], "did you mean 'recordio'?"),
        (["crops", "crops.bin"], "holds no pairs"),
        (["crops", "other"], "other is not empty and was not written by convert"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], part: str, tmp_path: Path) -> None:
    fill(tmp_path / "crops", count=4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    done = run("convert", *words)
    assert isinstance(done.exception, ValueError | OSError)
    assert done.output == ""
    assert part in str(done.exception)
    assert "\n" not in str(done.exception)


STOPPED_AT_THE_FIFTH_IMAGE = """
import signal, sys
from sphereface2.cli import main
from sphereface2.data.sources import folder

signal.signal(signal.SIGINT, signal.default_int_handler)  # the background of a shell ignores it
read, reads = folder.read_file, iter(range(100))

def read_file(path):
    if next(reads) == 4:
        signal.raise_signal(signal.SIGINT)
    return read(path)

folder.read_file = read_file
sys.argv = ["sphereface2", "convert", "crops", "out", "--workers", "1"]
main()
"""


@pytest.mark.usefixtures("quick_processes")
def test_ctrl_c_says_that_the_same_command_resumes(tmp_path: Path) -> None:
    fill(tmp_path / "crops")
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_THE_FIFTH_IMAGE],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert stopped.returncode == 130
    assert stopped.stderr.splitlines() == [
        "checking 40 images",
        "stopped; the same command resumes where it was",
    ]
    assert run("convert", "crops", "out").exit_code == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "crops")
