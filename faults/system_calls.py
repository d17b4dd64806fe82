"""Every system call of a task fails once: python -m faults.system_calls [TASK ...]

strace lets the N-th call of a kind fail, for every N whose call touches the files of the task.
After each fault there is one sentence and exit code 2, or the task has done what it should; then
the command that resumes it gives the same result to the last bit. An undisturbed run is traced as
well: what is renamed into place has reached the disk before, and its name after (`check_order`).

The N-th is counted in each thread, so that of a task with several threads several may meet a
fault in one trial. Commands run in forks of this process, which has loaded what they import: only
their own calls are counted, and a trial takes a fraction of a second.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.forks import Ended, Fork
from faults.outcomes import Outcomes, arguments, finish
from faults.tasks import TASKS, Result, Task, lay_out, make_materials
from faults.trials import accompany, compare, rehearse, resumed, start

# A call, and the errors with which it fails.
CALLS = {
    "write": ("EIO", "ENOSPC"),
    "pwrite64": ("EIO", "ENOSPC"),
    "writev": ("ENOSPC",),
    "sendfile": ("EIO",),
    "copy_file_range": ("EIO",),
    "fsync": ("EIO", "ENOSPC"),
    "fdatasync": ("EIO",),
    "rename": ("EIO", "ENOSPC"),
    "openat": ("EIO", "ENOSPC"),
    "mkdir": ("ENOSPC",),
    "ftruncate": ("EIO",),
    "unlink": ("EIO",),
    "unlinkat": ("EIO",),
    "rmdir": ("EIO",),
    "link": ("EIO",),
    "read": ("EIO",),
    "pread64": ("EIO",),
    "getdents64": ("EIO",),
    "mmap": ("ENOMEM",),
    "flock": ("EIO",),
    "fcntl": ("EIO",),
}
_READING = ("openat", "read", "pread64", "getdents64", "mmap", "fcntl")
_ONLY_FIRST = {"sweep"}
"""Tasks of which one process is disturbed: those that it starts are trainings, a task of their own.
"""


@contextmanager
def traced(fork: Fork, *options: str, log: Path, follow: bool = True) -> Iterator[None]:
    """strace watches the fork from its first call until it ends; its log has what it saw."""
    words = ["strace", *(["-f"] if follow else []), "-qq", "-y", "-s", "300", "-o", str(log)]
    with subprocess.Popen(
        [*words, *options, "-p", str(fork.pid)], stderr=subprocess.PIPE, text=True
    ) as strace:
        status = Path(f"/proc/{fork.pid}/status")
        while "TracerPid:\t0" in status.read_text():
            if strace.poll() is not None:
                assert strace.stderr is not None
                raise RuntimeError(f"strace cannot attach: {strace.stderr.read().strip()}")
            time.sleep(0.002)
        fork.go()
        try:
            yield
        finally:
            with suppress(subprocess.TimeoutExpired):
                strace.wait(5)
            strace.terminate()


# -- what a command did ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A system call; number: the how-manieth of its name in its thread, from 1."""

    thread: int
    name: str
    number: int
    text: str
    worked: bool

    def touches(self, folder: Path) -> bool:
        """Whether it is about a file in the folder, which is the working directory."""
        if self.name == "mmap" and "MAP_ANONYMOUS" in self.text:
            return False
        text = re.sub(r"AT_FDCWD(<[^>]*>)?, ", "", self.text)  # where the process is, says nothing
        return str(folder) in text or re.match(r'\w+\("[^/"]', text) is not None


# Where only one thread is traced, strace leaves its number out.
_LINE = re.compile(r"(?:(\d+) +)?(?:<\.\.\. )?(\w+)(\(| resumed>)(.*)")


def read_calls(log: Path) -> list[Call]:
    """The calls of a log in their order; of one that was interrupted in the log, its beginning."""
    counts: Counter[tuple[int, str]] = Counter()
    calls: list[Call] = []
    waiting: dict[int, int] = {}
    for line in log.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        thread, name, kind, rest = int(match[1] or 0), match[2], match[3], match[4]
        failed = re.search(r" = -1 E", rest) is not None
        if kind != "(":
            index = waiting.pop(thread, None)
            if index is not None:
                begun = calls[index]
                calls[index] = Call(thread, name, begun.number, begun.text + rest, not failed)
            continue
        counts[thread, name] += 1
        if rest.endswith("<unfinished ...>"):
            waiting[thread] = len(calls)
        calls.append(Call(thread, name, counts[thread, name], f"{name}({rest}", not failed))
    return calls


_RENAMES = ("rename", "renameat", "renameat2")
_REMADE = re.compile(r"/aligned/\w+/\w+\.png$")
"""Of many small files: empty ones are seen and made again, and all reach the disk in the end."""


def check_order(calls: Iterable[Call], folder: Path) -> tuple[int, list[str]]:
    """How many files and folders were renamed into place, and each that a power cut could spoil.

    What is written reaches the disk (fsync) before the rename that gives it its name, and the
    folder with the name after it; else a power cut leaves an empty file under a trusted name.
    """
    unsynced: set[str] = set()  # files with content that may not be on the disk
    names: dict[str, str] = {}  # folders whose names may not be, and for the sake of what
    spoilt: list[str] = []
    count = 0
    for call in calls:
        if not call.worked:
            continue
        opened = re.match(r"\w+\(\d+<([^>]*)>", call.text)
        if call.name in ("write", "pwrite64", "writev", "ftruncate") and opened:
            if opened[1].startswith(f"{folder}/"):
                unsynced.add(opened[1])
        elif call.name in ("fsync", "fdatasync") and opened:
            unsynced.discard(opened[1])
            names.pop(opened[1], None)
        elif call.name == "sync":
            unsynced.clear()
            names.clear()
        elif call.name in _RENAMES:
            before, after = _two_paths(call.text, folder)
            if not after.startswith(f"{folder}/"):
                continue
            count += 1
            inside = [each for each in unsynced if each == before or each.startswith(f"{before}/")]
            for each in inside:
                unsynced.discard(each)
                if _REMADE.search(each.replace(before, after)):
                    continue
                there = after + each.removeprefix(before)
                spoilt.append(f"{_relative(there, folder)} is renamed before it is on the disk")
            names[str(Path(after).parent)] = after
        elif call.name in ("unlink", "unlinkat", "rmdir"):
            gone = _first_path(call.text, folder)
            unsynced.discard(gone)
            for each in [each for each, what in names.items() if gone in (each, what)]:
                del names[each]
    spoilt += [
        f"the name of {_relative(each, folder)} never reaches the disk" for each in names.values()
    ]
    return count, spoilt


def _relative(path: str, folder: Path) -> str:
    return re.sub(r"\b[0-9a-f]{8}\b", "*", path.removeprefix(f"{folder}/"))


def _two_paths(text: str, folder: Path) -> tuple[str, str]:
    names = re.findall(r'"((?:[^"\\]|\\.)*)"', text)[:2]
    first, second = (os.path.normpath(folder / name) for name in names)
    return first, second


def _first_path(text: str, folder: Path) -> str:
    base = re.search(r"\(\d+<([^>]*)>", text)
    name = re.search(r'"((?:[^"\\]|\\.)*)"', text)
    return os.path.normpath(Path(base[1] if base else folder) / (name[1] if name else ""))


# -- trials ----------------------------------------------------------------------------------------


@dataclass
class Bench:
    """Where the trials of a task happen, one after the other; the result to compare with."""

    task: Task
    work: Path
    materials: Path
    expected: Result = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.work / "trial"

    @property
    def only_first(self) -> bool:
        return self.task.name in _ONLY_FIRST

    def rehearse(self) -> None:
        """Run it undisturbed, once more with its calls seen."""
        self.expected = rehearse(
            self.task, self.folder, self.work, self.materials, forks=self.only_first
        )
        lay_out(self.materials, self.folder)
        self._do("-e", f"trace={','.join(dict.fromkeys((*CALLS, *_RENAMES, 'sync')))}")
        wrong = compare(self.task, self.folder, self.expected)
        if wrong:
            raise RuntimeError(f"{self.task.name}, traced: {wrong}")
        self.calls = read_calls(self.work / "strace.log")

    def _do(self, *options: str) -> Ended:
        """Run it with strace beside it."""
        forks = self.only_first
        fork = start(self.task.command, self.folder, self.work, waits=True, forks=forks)
        log = self.work / "strace.log"
        log.unlink(missing_ok=True)
        with traced(fork, *options, log=log, follow=not self.only_first):
            return accompany(self.task, fork)

    def numbers(self, name: str) -> list[int]:
        """Which calls of a name are tried: those about the task's own files, in any thread.

        All that write. Of those that read the same file again and again, the first and the last.
        """
        own = [call for call in self.calls if call.name == name and call.touches(self.folder)]
        if name not in _READING:
            return sorted({call.number for call in own})
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for call in own:
            if "O_CREAT" in call.text or "O_RDWR" in call.text or "O_WRONLY" in call.text:
                first[str(call.number)] = call.number
                continue
            what = (
                call.text.partition(">,")[0] if name != "openat" else call.text.partition(" = ")[0]
            )
            kind = re.sub(r"\d+", "0", what)
            first.setdefault(kind, call.number)
            last[kind] = call.number
        return sorted({*first.values(), *last.values()})

    def fail(self, name: str, number: int, error: str) -> tuple[list[str], dict[str, Any]]:
        """Let the N-th call fail: what was lost, and what was seen."""
        lay_out(self.materials, self.folder)
        ended = self._do("-e", f"trace={name}", "-e", f"inject={name}:error={error}:when={number}")
        hit = [call for call in read_calls(self.work / "strace.log") if "(INJECTED)" in call.text]
        facts: dict[str, Any] = {
            "hit": len(hit),
            "call": hit[0].text[:200] if hit else "",
            "code": -1 if ended.code is None else ended.code,
            "sentence": ended.sentence,
        }
        lost, other = [ended.fault()], ""
        if ended.code == 0:
            # What was left out and reported is not lost if the same command adds it.
            other = compare(self.task, self.folder, self.expected)
            lost.append("" if ended.reports else other)
        if ended.code != 0 or other:
            forks = self.only_first
            lost.append(resumed(self.task, self.folder, self.work, self.expected, forks=forks))
        return [each for each in lost if each], facts


def main() -> None:
    parser = arguments(__doc__, TASKS, metavar="TASK")
    parser.add_argument("--calls", nargs="*", choices=list(CALLS), help="only these")
    parser.add_argument("--at-most", type=int, default=0, help="places of a call; 0: all")
    given = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("strace is not installed; apt-get install strace")
    outcomes = Outcomes(given.work / "system_calls.json")
    most = 2 if given.quick else given.at_most
    # A sweep takes ten seconds each time, too long for a short selection.
    usual = [name for name in TASKS if not (given.quick and name in _ONLY_FIRST)]
    for name in given.names or usual:
        try_task(TASKS[name], outcomes, given.work, calls=given.calls or list(CALLS), most=most)
    finish(outcomes)


def try_task(
    task: Task, outcomes: Outcomes, work: Path, *, calls: Sequence[str], most: int = 0
) -> None:
    """Let the calls of a task fail, those that were not tried before."""
    place = (work / "system_calls" / task.name).resolve()
    place.mkdir(parents=True, exist_ok=True)
    bench = Bench(task, place, make_materials((work / "materials").resolve()))
    bench.rehearse()
    command = f"python -m faults.system_calls {task.name}"
    count, spoilt = check_order(bench.calls, bench.folder)
    outcomes.add(
        f"{task.name}: order of fsync and rename", "all", *spoilt, tried=count, command=command
    )
    for name in calls:
        numbers = bench.numbers(name)
        chosen = _spread(numbers, most)
        for done, number in enumerate(chosen, 1):
            for error in (CALLS[name][number % len(CALLS[name])],):  # by turns
                fault, case = f"{task.name}: {name}", f"{number} {error}"
                if outcomes.has(fault, case):
                    continue
                lost, facts = bench.fail(name, number, error)
                outcomes.add(fault, case, *lost[:1], command=command, all_lost=lost, **facts)
                mark = f"LOST {'; '.join(lost)}" if lost else facts["sentence"] or "recovered"
                print(f"{fault} {case} ({done}/{len(chosen)}): {mark}", flush=True)


def _spread(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many of them, from first to last."""
    if not most or len(numbers) <= most:
        return list(numbers)
    steps = (len(numbers) - 1) / max(1, most - 1)
    return [numbers[round(index * steps)] for index in range(most)]


if __name__ == "__main__":
    main()
