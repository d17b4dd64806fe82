"""How a training ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sphereface2.model_step import ModelStep


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended, and where what it made is."""

    steps: int
    """Updates done, over all parts of the run."""
    total_steps: int
    interrupted: bool
    """Whether it was stopped before its end; it can be resumed."""
    model_step: ModelStep
    """The step to export."""
    checkpoint: Path
    """The checkpoint of that step."""
    last_checkpoint: Path
    seconds: float
    """Time spent, over all parts of the run."""
    stopped_by: int | None = None
    """The signal that interrupted it, if one did."""
    was_finished: bool = False
    """Whether the run was over before, so that nothing was done."""
