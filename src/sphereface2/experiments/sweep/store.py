"""What a run folder of the store holds: a config that fits its name, and whether it is done."""

import time
from dataclasses import dataclass
from pathlib import Path

from sphereface2.config.schema import RunConfig
from sphereface2.evaluation.results import EvaluationResult
from sphereface2.experiments.sweep.plan import PlannedRun
from sphereface2.files import Lock, read_note, write_atomically
from sphereface2.runs.folder import CONFIG, EVALUATION, LOCK
from sphereface2.training.checkpoint import Checkpoint, has_checkpoint, load_checkpoint
from sphereface2.training.events import Events

LOG = "log.txt"


def require_own_config(folder: Path, run: PlannedRun) -> None:
    """A ValueError if something else than this run stands in its folder."""
    path = folder / CONFIG
    if path.exists() and path.read_text(encoding="utf-8") != run.config_yaml:
        raise ValueError(
            f"{path} is not the config that its folder is named after; remove or rename {folder}"
        )


def write_config(folder: Path, run: PlannedRun) -> None:
    """Make the folder one that a worker can start from; what is in it stays."""
    require_own_config(folder, run)
    if not (folder / CONFIG).exists():
        write_atomically(folder / CONFIG, run.config_yaml)


def finished(folder: Path, config: RunConfig) -> EvaluationResult | None:
    """The evaluation of a run that is done: one with this very config, else None."""
    if not (folder / EVALUATION).is_file():
        return None
    try:
        result = EvaluationResult.load(folder / EVALUATION)
    except ValueError:
        return None
    # `sphereface2 evaluate RUN evaluation.sets=...` may have judged it by something else.
    return result if result.config == config.model_dump(mode="json") else None


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """How far the training has come, and in how long; None if that is not known any more."""
    last = folder / "checkpoints" / "last"
    return load_checkpoint(last) if has_checkpoint(last) else None


# How far a run is that another process trains: kept in the file of the run's lock.


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
