"""How a training ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError


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


# Which step of its training a model is, and how that step was chosen.

Which = Literal["last", "best"]


@dataclass(frozen=True)
class ModelStep:
    """Which step of a training a model is, and how that step was chosen.

    which: the last step, or the best of some evaluations
    steps: of the training; above `step` for the last one of a run that is unfinished, 0: unknown
    evaluations, sets, accuracy: of the choice; how many, on which sets, and what it reached there
    own_sets: whether those sets served the choice alone, so that others are judged fairly
    """

    which: Which
    step: int
    steps: int
    evaluations: int = 0
    sets: tuple[str, ...] = ()
    own_sets: bool = False
    accuracy: float | None = None

    @classmethod
    def of_model(cls, extra: object, history: Sequence[Mapping[str, Any]] = ()) -> ModelStep | None:
        """What `extra` of a model folder says; None where it does not come from a training.

        `history` are the lines of the run's metrics.jsonl: models without `model_step` are the
        best on the sets that were evaluated along the way.
        """
        if not isinstance(extra, Mapping):
            return None
        said, best = extra.get("model_step"), extra.get("best_step")
        steps = extra.get("steps", best)
        if said is not None:
            try:
                return TypeAdapter(cls).validate_python(said)
            except ValidationError:
                return None
        if not isinstance(steps, int):
            return None
        judged = [line for line in history if line.get("kind") == "evaluation"]
        if not isinstance(best, int) or (best == steps and len(judged) < 2):
            return cls("last", steps, steps)
        sets = tuple(judged[0].get("metrics") or ()) if judged else ()
        return cls("best", best, steps, len(judged), sets, accuracy=extra.get("best_metric"))

    def in_words(self, judged: Collection[str] = ()) -> str:
        """A sentence for a table of results on the sets `judged`."""
        if self.which == "last":
            if self.step == self.steps:
                return f"the last step, {self.step:,}"
            of = f" of {self.steps:,}" if self.steps else ""
            return f"step {self.step:,}{of}, unfinished"
        step = f"step {self.step:,} of {self.steps:,}"
        if self.evaluations == 1:
            return f"{step}, the only one that was evaluated"
        names = ", ".join(name for name in self.sets if name != "combined")
        best = f"the best of {self.evaluations or 'the'} evaluations on"
        if self.own_sets:
            return f"{step}, {best} sets of their own ({names})"
        if not self.sets or set(self.sets) & set(judged):
            return f"{step}, {best} these very pairs: reads too high"
        return f"{step}, {best} {names}"
