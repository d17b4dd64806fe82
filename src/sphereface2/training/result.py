"""How a training ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended, and where what it made is."""

    steps: int
    """Updates done, over all parts of the run."""
    total_steps: int
    interrupted: bool
    """Whether it was stopped before its end; it can be resumed."""
    best_metric: float | None
    best_step: int | None
    last_checkpoint: Path
    best_checkpoint: Path
    """The checkpoint to export: the best evaluated one, or the last one without an evaluation."""
    seconds: float
    """Time spent, over all parts of the run."""
    stopped_by: int | None = None
    """The signal that interrupted it, if one did."""
    was_finished: bool = False
    """Whether the run was over before, so that nothing was done."""
