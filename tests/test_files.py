"""Locks, writable places, and files and folders that are replaced whole or not at all."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sphereface2.files import (
    JsonLines,
    LockedError,
    WorkFolder,
    file_lock,
    naming,
    on_full_disk,
    put_in_place,
    read_note,
    replacing,
    require_writable,
    whole_folder,
    write_atomically,
)

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


def test_a_file_that_cannot_be_removed_is_not_a_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch, file_lock(tmp_path / "lock"):
        patch.setattr(Path, "unlink", fail)
    with file_lock(tmp_path / "lock", patience=0):
        pass
    assert not (tmp_path / "lock").exists()


def test_folders_in_which_something_was_written_stay(tmp_path: Path) -> None:
    with file_lock(tmp_path / "new" / ".lock"):
        (tmp_path / "new" / "file").touch()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_says_that_it_waits_and_then_continues(tmp_path: Path) -> None:
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
        steps.append("resumes")

    with file_lock(path, while_waiting=waiting):
        assert not is_free(path)
        steps.append("works")
    assert steps == ["waits", "resumes", "works"]


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
            end = time.monotonic() + 60
            while not is_free(path) and time.monotonic() < end:
                time.sleep(0.05)  # a child that has only just been made lets go as its first act
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


# -- whole or not at all -------------------------------------------------------------------------


def fill(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "file").write_text(text)


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, "old \udcff", durable=True)
    assert path.read_bytes() == b"old \xff"
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    with pytest.raises(OSError, match="full") as raised, replacing(path) as made:  # noqa: PT012
        made.write_text("half of")
        assert path.read_bytes() == b"old \xff"
        raise OSError(28, "full")
    assert raised.value.filename == str(path)
    assert path.read_bytes() == b"old \xff"
    with replacing(path, by=tmp_path / "elsewhere") as made:
        assert made == tmp_path / "elsewhere"
        made.write_text("new")
    assert path.read_text() == "new"
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["file", "new"]


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def test_a_folder_is_replaced_whole_or_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "model"
    with replacing(place, durable=True) as made:
        fill(made, "first")
    with replacing(place) as made:
        fill(made, "second")
    assert (place / "file").read_text() == "second"
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.suffix == ".part":
            raise OSError("cannot move")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="cannot move"), replacing(place) as made:
        fill(made, "third")
    assert (place / "file").read_text() == "second"
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_folder_is_found_though_a_kill_came_between_two_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "last"
    fill(place, "old")
    fill(tmp_path / "new", "new")
    renames = []
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        renames.append(path)
        if len(renames) == 2:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            put_in_place(tmp_path / "new", place)
    assert not place.exists()
    assert (whole_folder(place) / "file").read_text() == "old"
    put_in_place(tmp_path / "new", place)
    assert (whole_folder(place) / "file").read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["last"]


def test_a_work_folder_is_locked_noted_and_delivered(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out.rec")
    places = [tmp_path / "out.idx", tmp_path / "out.rec"]
    for place in places:
        place.write_text("old")
    with pytest.raises(KeyboardInterrupt), work.locked():  # noqa: PT012
        assert work.noted() is None
        work.note({"images": 3})
        with pytest.raises(ValueError, match=r"another process is writing to .*partial; wait"):
            work.locked().__enter__()
        raise KeyboardInterrupt
    assert work.noted() == {"images": 3}
    with work.locked():
        for number in range(2):
            (work.path / str(number)).write_text("new")
        work.deliver([(work.path / str(number), place) for number, place in enumerate(places)])
    assert [place.read_text() for place in places] == ["new", "new"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.idx", "out.rec"]


def test_a_folder_of_someone_else_is_never_worked_in(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out")
    fill(work.path, "a diary")
    with pytest.raises(ValueError, match=r"out\.partial is in the way and holds no interrupted"):
        work.locked().__enter__()
    assert [each.name for each in work.path.iterdir()] == ["file"]


def test_a_file_of_lines_loses_only_what_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    lines = JsonLines(path, remedy="copy it", durable=True)
    lines.add({"a": "ö\udcff"}, [1, 2])
    lines.add("third")
    lines.close()
    with path.open("ab") as file:
        file.write(b'{"torn": 1')
    again = JsonLines(path, remedy="copy it")
    assert again.lines == [{"a": "ö\udcff"}, [1, 2], "third"]
    again.add(4)
    again.close()
    assert path.read_bytes().endswith(b'"third"\n4\n')


def test_a_file_of_lines_that_is_damaged_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"no json\n")
    with pytest.raises(ValueError, match=r"lines.jsonl is damaged: Expecting value.*; copy it$"):
        JsonLines(path, remedy="copy it")
    path.write_bytes(b"[1]\n")
    lines = JsonLines(path, remedy="copy it")
    not_of_photos = r"lines.jsonl is damaged: its lines are not those of photos; copy it$"
    with pytest.raises(ValueError, match=not_of_photos), lines.read_as("photos"):
        lines.lines[0]["photo"]


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches the disk, and what is renamed, in their order."""
    seen: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(handle: int) -> None:
        seen.append(f"fsync {Path(f'/proc/self/fd/{handle}').readlink().name}")
        fsync(handle)

    def renamed(before: Path, after: Path) -> None:
        seen.append(f"rename {Path(after).name}")
        rename(before, after)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "replace", renamed)
    return seen


@pytest.mark.skipif(sys.platform != "linux", reason="open files have their names in /proc")
def test_what_is_put_in_place_has_reached_the_disk_and_then_its_name(
    tmp_path: Path, reached: list[str]
) -> None:
    place = tmp_path / "place"
    write_atomically(place / "file", "content", by=tmp_path / "part")
    assert reached == ["fsync part", "rename file", "rename file", "fsync place"]  # made on the way
    reached.clear()
    with replacing(place / "folder", by=place / "made") as made:
        (made / "below").mkdir(parents=True)
        (made / "below" / "deep").touch()
    assert sorted(reached[:3]) == ["fsync below", "fsync deep", "fsync made"]
    assert reached[3:] == ["rename folder", "fsync place"]
    reached.clear()
    work = WorkFolder(tmp_path / "out")
    with work.locked():
        work.note({})
        (work.path / "made").write_text("content")
        reached.clear()
        work.deliver([(work.path / "made", tmp_path / "out")])
    assert reached == ["fsync made", "rename out", f"fsync {tmp_path.name}"]


def test_an_error_without_a_name_gets_one(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    with (
        Path(os.devnull).open("rb") as device,
        pytest.raises(OSError, match="reports") as failed,
        naming(reports),
    ):
        os.fsync(device.fileno())  # there is no disk to reach
    assert failed.value.filename == str(reports)
    with (
        pytest.raises(OSError, match="reports") as failed,
        on_full_disk(reports, kept="all"),
    ):
        raise OSError(errno.EIO, "Input/output error")
    assert failed.value.filename == str(reports)
    hidden = tmp_path / ".hidden"
    with pytest.raises(FileNotFoundError) as failed, naming(tmp_path / "shown", instead=hidden):
        hidden.read_bytes()
    assert failed.value.filename == str(tmp_path / "shown")


def test_what_a_killed_process_has_half_written_is_removed_by_the_next(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from sphereface2.files import replacing

with replacing(Path(sys.argv[1])) as made:
    made.mkdir()
    (made / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "model")], check=False)
    (left,) = tmp_path.iterdir()
    assert [path.name for path in left.iterdir()] == ["half"]
    foreign = tmp_path / ".model.123456-1-12345678.part"  # of another host, where it may run
    foreign.touch()
    with replacing(tmp_path / "other") as made:
        made.touch()
        assert {path.name for path in tmp_path.iterdir()} == {made.name, foreign.name}
