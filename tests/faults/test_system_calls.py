"""A short selection of `python -m faults.system_calls`: order of calls, and some that fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faults.system_calls import Call, check_order, read_calls
from faults.tasks import TASKS, Result, call, lay_out, write_noise

FOLDER = Path("/data")


def _cannot_trace() -> str:
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, text=True)
    return f"strace may not trace: {tried.stderr.strip()[-80:]}" if tried.returncode else ""


traceable = pytest.mark.skipif(bool(_cannot_trace()), reason=_cannot_trace())


def calls(*texts: str) -> list[Call]:
    return [Call(1, text.partition("(")[0], 1, text, True) for text in texts]


WRITTEN = 'write(3</data/.a.part>, "x", 1) = 1'
SYNCED = "fsync(3</data/.a.part>) = 0"
RENAMED = 'rename(".a.part", "a") = 0'
NAMED = "fsync(4</data>) = 0"


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ([WRITTEN, SYNCED, RENAMED, NAMED], []),
        ([WRITTEN, RENAMED, NAMED], ["a is renamed before it is on the disk"]),
        ([WRITTEN, RENAMED, SYNCED, NAMED], ["a is renamed before it is on the disk"]),
        ([SYNCED, WRITTEN, RENAMED, NAMED], ["a is renamed before it is on the disk"]),
        ([WRITTEN, SYNCED, RENAMED], ["the name of a never reaches the disk"]),
        ([WRITTEN, SYNCED, NAMED, RENAMED], ["the name of a never reaches the disk"]),
    ],
)
def test_the_order_of_fsync_and_rename(order: list[str], found: list[str]) -> None:
    assert check_order(calls(*order), FOLDER) == (1, found)


def test_a_folder_is_on_the_disk_with_all_that_is_in_it() -> None:
    inside = 'write(3</data/made/deep/file>, "x", 1) = 1'
    rename = 'rename("made", "/data/place") = 0'
    lost = ["place/deep/file is renamed before it is on the disk"]
    assert check_order(calls(inside, rename, NAMED), FOLDER) == (1, lost)
    assert check_order(calls(inside, "sync() = 0", rename, NAMED), FOLDER) == (1, [])


def test_calls_are_counted_in_each_thread(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        '7 openat(AT_FDCWD</data>, "a", O_RDONLY <unfinished ...>\n'
        '8 openat(AT_FDCWD</data>, "b", O_RDONLY) = -1 ENOENT (No such file or directory)\n'
        "7 <... openat resumed>) = 3</data/a>\n"
        "7 +++ exited with 0 +++\n"
        '8 openat(AT_FDCWD</data>, "c", O_RDONLY) = 4</data/c>\n'
    )
    found = [(each.thread, each.number, each.worked) for each in read_calls(log)]
    assert found == [(7, 1, True), (8, 1, False), (8, 2, True)]


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "materials"
    folder.mkdir()
    write_noise(folder)
    return folder


@pytest.fixture(scope="module")
def expected(materials: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What an undisturbed conversion leaves."""
    folder = lay_out(materials, tmp_path_factory.mktemp("faults") / "undisturbed")
    assert call(TASKS["convert"].command, folder).returncode == 0
    return TASKS["convert"].result(folder)


@traceable
def test_what_convert_writes_reaches_the_disk_before_it_has_its_name(
    materials: Path, tmp_path: Path
) -> None:
    folder, log = lay_out(materials, tmp_path / "trial"), tmp_path / "log"
    watched = "trace=write,ftruncate,fsync,fdatasync,sync,rename,unlink,rmdir"
    before = ("strace", "-f", "-y", "-s", "300", "--seccomp-bpf", "-o", str(log), "-e", watched)
    done = call(TASKS["convert"].command, folder, before=before)
    assert done.returncode == 0, done.stderr
    renamed, spoilt = check_order(read_calls(log), folder)
    assert renamed > 5
    assert spoilt == []


# A thread whose stack and heap are there, of one that has ended: its first call of mmap is for the
# frames of Python.
STARTS_THREAD = """
import os, subprocess, sys, threading, time
from sphereface2.workers import catch_unraisable

catch_unraisable()
first = threading.Thread(target=str)
first.start()
first.join()
words = ["strace", "-f", "-qq", "-o", sys.argv[1], "-e", "inject=mmap:error=ENOMEM:when=1"]
strace = subprocess.Popen([*words, "-p", str(os.getpid())])
while "TracerPid:\\t0" in open("/proc/self/status").read():
    time.sleep(0.01)
thread = threading.Thread(target=print, args=["it runs"])
thread.start()
thread.join()
os._exit(0)
"""


@traceable
def test_a_thread_without_memory_for_its_first_frame_begins_all_the_same(tmp_path: Path) -> None:
    words = [sys.executable, "-u", "-c", STARTS_THREAD, str(tmp_path / "log")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert "(INJECTED)" in (tmp_path / "log").read_text()
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr


@traceable
@pytest.mark.parametrize(
    ("name", "error", "path", "words"),
    [
        ("fsync", "EIO", "noise.rec.partial/noise.rec.part", "input/output error"),
        ("rename", "ENOSPC", "noise.rec.partial/noise.rec", "make room and run the same command"),
        ("getdents64", "EIO", "noise/person1", "noise/person1: input/output error"),
    ],
)
def test_a_call_that_fails_is_one_sentence_and_the_same_command_resumes(
    name: str, error: str, path: str, words: str, materials: Path, expected: Result, tmp_path: Path
) -> None:
    task, folder = TASKS["convert"], lay_out(materials, tmp_path / "trial")
    fault = ("-e", f"inject={name}:error={error}", "-P", path, "-P", str(folder / path))
    trace = ("strace", "-f", "-o", os.devnull, "-e", f"trace={name}")
    failed = call(task.command, folder, before=(*trace, *fault))
    assert failed.returncode == 2
    said = [line for line in failed.stderr.splitlines() if line.startswith("sphereface2: ")]
    assert len(said) == 1
    assert words in said[0]
    assert "Traceback" not in failed.stderr
    assert not (folder / "noise.rec").exists()
    assert call(task.command, folder).returncode == 0
    assert task.result(folder) == expected
