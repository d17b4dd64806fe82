"""What a process and those that it started hold: memory, descriptors, and who they are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def family(process: int) -> list[int]:
    """A process and all that it started, as far as they run."""
    found = [process]
    for each in found:
        with suppress(OSError):  # it may end at any time
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def status(process: int) -> dict[str, str]:
    """The lines of /proc/PID/status; empty once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def is_running(process: int) -> bool:
    """Whether it exists, and not only until somebody asks for its exit code."""
    return status(process).get("State", "Z")[0] not in "ZX"


def megabytes(process: int) -> float:
    """Memory of its own, in MB: neither its files nor what it shares by /dev/shm."""
    return int(status(process).get("RssAnon", "0 kB").split()[0]) / 1024


def seconds_used(process: int) -> float:
    """Seconds of the processor that it and those that it waited for have used; 0.0 once gone."""
    try:
        own = time.clock_gettime(~process << 3 | 2)  # as clock_getcpuclockid(3) numbers it
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return own + sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")  # cutime, cstime


def wants_processor(process: int) -> bool:
    """Whether one of its threads runs, or would if it were its turn."""
    with suppress(OSError):  # it may end at any time
        for task in Path(f"/proc/{process}/task").iterdir():
            if (task / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


def descriptors(process: int) -> int:
    """How many files, sockets and pipes it has open."""
    try:
        return len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208 - as fast as it can be
    except OSError:
        return 0


def shared_memory() -> set[str]:
    """The names in /dev/shm."""
    return set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()  # noqa: PTH208


def left_running(processes: Iterable[int], *, seconds: float) -> list[int]:
    """Those that still run after so many seconds; sooner if none does.

    Time in which they wait for a busy processor does not count.
    """
    left = [each for each in processes if is_running(each)]
    before = sum(map(seconds_used, left))
    rested, looked = 0.0, time.monotonic()
    while left and max(rested, sum(map(seconds_used, left)) - before) < seconds:
        time.sleep(0.02)
        since = time.monotonic() - looked
        looked += since
        rested += 0.0 if any(map(wants_processor, left)) else since
        left = [each for each in left if is_running(each)]
    return left


def left_in_memory(names: Iterable[str], *, seconds: float) -> list[str]:
    """Those in /dev/shm that no process has held for so many seconds; others' come and go."""
    deadline = time.monotonic() + seconds
    left = set(names)
    while left and time.monotonic() < deadline:
        held = "".join(map(_maps, everybody()))
        left = {name for name in left & shared_memory() if f"{SHARED_MEMORY}/{name}" not in held}
        time.sleep(0.1 if left else 0)
    return sorted(left)


def everybody() -> list[int]:
    """All processes of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _maps(process: int) -> str:
    """The files that a process has in its memory; empty once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/maps").read_text()
    return ""
