"""The right to work on a run folder: one process at a time, and how far that process is.

The lock is the operating system's, so it ends with the process, however that ends.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sphereface2.training.events import Events

CLAIM = "worker.lock"
_WIDTH = 64  # every state has the same length, so that none shows the end of the one before


class TakenError(Exception):
    """Another process works on this run."""


@dataclass(frozen=True)
class Position:
    """How far a training is; total 0: not known yet."""

    step: int = 0
    total: int = 0


class Claim(Events):
    """A held lock; as the events of a training it keeps the step in the lock's file."""

    def __init__(self, handle: int, *, every: float = 0.5) -> None:
        self._handle = handle
        self._every = every
        self._total = 0
        self._written = 0.0

    def started(self, *, step: int, total_steps: int) -> None:
        self._total = total_steps
        self.write(Position(step, total_steps))

    def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
        if time.monotonic() - self._written >= self._every or step == self._total:
            self.write(Position(step, self._total))

    def write(self, position: Position) -> None:
        self._written = time.monotonic()
        text = json.dumps({"step": position.step, "total": position.total})
        os.pwrite(self._handle, text.ljust(_WIDTH).encode(), 0)


@contextmanager
def claimed(folder: Path, *, patience: float = 1.0) -> Iterator[Claim]:
    """Hold the folder's lock; a TakenError if another process has it, and keeps it.

    `patience` is in seconds: whoever looks whether a run is taken holds its lock for an instant.
    """
    handle = os.open(folder / CLAIM, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + patience
        while not _lock(handle):
            if time.monotonic() > deadline:
                raise TakenError(f"another process works on {folder}")
            time.sleep(0.02)
        claim = Claim(handle)
        claim.write(Position())
        yield claim
    finally:
        os.close(handle)


def is_taken(folder: Path) -> bool:
    """Whether a process works on this run now."""
    try:
        handle = os.open(folder / CLAIM, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _lock(handle)
    finally:
        os.close(handle)


def read_position(folder: Path, *, since: float = 0.0) -> Position:
    """How far the process that works on this run, or the last that did, has come.

    since: the time from which it counts, as time.time() tells it
    """
    try:
        if (folder / CLAIM).stat().st_mtime < since:
            return Position()
        values = json.loads((folder / CLAIM).read_bytes())
        return Position(int(values["step"]), int(values["total"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Position()


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
