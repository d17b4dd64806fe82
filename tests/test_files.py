"""Locks that one process holds at a time, and places that are found to be writable."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sphereface2.files import LockedError, file_lock, read_note, require_writable

# Takes a lock, starts a process in each way, and says the ids of all.
HOLDER = """
import os, subprocess, sys, time
from pathlib import Path
from sphereface2.files import file_lock
with file_lock(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    fork = os.fork()
    if not fork:
        time.sleep(600)
    print(child.pid, fork, flush=True)
    time.sleep(600)
"""


def is_free(path: Path) -> bool:
    try:
        with file_lock(path, patience=0):
            return True
    except LockedError:
        return False


def test_is_held_inside_and_gone_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "new" / "er" / ".lock"

    def work() -> None:
        with file_lock(path, while_waiting=lambda: pytest.fail("waited")) as lock:
            assert not is_free(path)
            lock.note(step=1234)
            lock.note(step=5)
            assert (read_note(path)["pid"], read_note(path)["step"]) == (os.getpid(), 5)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert list(tmp_path.iterdir()) == []


def test_folders_in_which_something_was_written_stay(tmp_path: Path) -> None:
    with file_lock(tmp_path / "new" / ".lock"):
        (tmp_path / "new" / "file").touch()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_says_that_it_waits_and_then_goes_on(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    steps = []
    other = path.open("w")
    fcntl.flock(other, fcntl.LOCK_EX)

    @contextmanager
    def waiting() -> Iterator[None]:
        steps.append("waits")
        path.unlink()  # as the process before does: the lock of this file is worth nothing now
        other.close()
        yield
        steps.append("goes on")

    with file_lock(path, while_waiting=waiting):
        assert not is_free(path)
        steps.append("works")
    assert steps == ["waits", "goes on", "works"]


def test_a_killed_process_holds_nothing_though_its_children_live(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    words = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        children = [int(word) for word in holder.stdout.readline().split()]
        try:
            assert not is_free(path)
            assert read_note(path)["pid"] == holder.pid
            holder.kill()
            holder.wait()
            for child in children:
                os.kill(child, 0)
            assert is_free(path)
        finally:
            holder.kill()
            for child in children:
                os.kill(child, signal.SIGKILL)


def test_what_can_be_written_passes_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("old")
    for path in (tmp_path, tmp_path / "a" / "b"):
        require_writable(path)
    for path in (tmp_path / "there.txt", tmp_path / "a" / "b.txt"):
        require_writable(path, is_file=True)
    assert [path.name for path in tmp_path.iterdir()] == ["there.txt"]


@pytest.mark.parametrize(
    ("place", "is_file", "sentence"),
    [
        ("file/run", False, "file is not a folder"),
        ("file", False, "file is not a folder"),
        ("file/x/report.html", True, "file is not a folder"),
        ("folder", True, "it is a folder; give the name of a file"),
        ("/dev/full", True, "it is not a plain file"),
        ("/proc/run", False, r"\(in /proc\)"),
        ("/proc/report.html", True, r"\(in /proc\)"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(
    place: str, is_file: bool, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    with pytest.raises((ValueError, OSError), match=f"^{path} cannot be written: .*{sentence}"):
        require_writable(path, is_file=is_file)


def test_who_holds_a_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    assert read_note(path) == {}
    writer = threading.Timer(0.1, lambda: path.write_text('{"pid": 5}'))
    writer.start()
    assert read_note(path, patience=30) == {"pid": 5}
    writer.join()
