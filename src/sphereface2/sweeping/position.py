"""How far a run is that another process trains: kept in the file of the run's lock."""

import time
from dataclasses import dataclass
from pathlib import Path

from sphereface2.files import Lock, read_note
from sphereface2.run_folder import LOCK
from sphereface2.training.events import Events


@dataclass(frozen=True)
class Position:
    """How far a training is; total 0: not known yet."""

    step: int = 0
    total: int = 0


class PositionNote(Events):
    """Notes in the file of a held lock how far the training is."""

    def __init__(self, lock: Lock, *, every: float = 0.5) -> None:
        self._lock = lock
        self._every = every
        self._total = 0
        self._written = 0.0

    def started(self, *, step: int, total_steps: int) -> None:
        self._total = total_steps
        self._write(step)

    def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
        if time.monotonic() - self._written >= self._every or step == self._total:
            self._write(step)

    def _write(self, step: int) -> None:
        self._written = time.monotonic()
        self._lock.note(step=step, total=self._total)


def read_position(folder: Path, *, since: float = 0.0) -> Position:
    """How far the process that works on this run, or was killed while it did, has come.

    since: the time from which it counts, as time.time() gives it
    """
    try:
        if (folder / LOCK).stat().st_mtime < since:
            return Position()
        note = read_note(folder / LOCK)
        return Position(int(note["step"]), int(note["total"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Position()
