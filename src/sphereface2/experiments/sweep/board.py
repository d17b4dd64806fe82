"""How a sweep stands: the state of every run, and what wants to hear of its changes."""

import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from sphereface2.evaluation.results import EvaluationResult
from sphereface2.experiments.sweep.plan import PlannedRun
from sphereface2.experiments.sweep.store import Position

_ENOUGH = 0.02  # of a training, to say how long it takes


class Status(Enum):
    """Where a run is."""

    WAITING = "waiting"
    RUNNING = "running"
    ELSEWHERE = "another process is training it"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass
class RunState:
    """A planned run and what has become of it so far.

    worked: seconds that it took here, since this sweep was started; 0 if it was done before or
        by another process
    launched: when its worker was started, by time.time()
    had: the share of the training that an earlier process has done
    """

    plan: PlannedRun
    folder: Path
    status: Status = Status.WAITING
    position: Position = field(default_factory=Position)
    evaluation: EvaluationResult | None = None
    error: str = ""
    began: float = 0.0
    worked: float = 0.0
    launched: float = 0.0
    had: float | None = None

    @property
    def values(self) -> dict[str, float]:
        """Set -> accuracy in percent; empty until the run is done."""
        if self.evaluation is None:
            return {}
        subject = self.evaluation.model
        found = {name: self.evaluation.find(subject, name) for name in self.evaluation.sets}
        return {
            name: round(100 * row.accuracy, 4) for name, row in found.items() if row is not None
        }

    def judged_by(self, judged: str) -> str:
        """The set to judge by: the one asked for, or the last; only of a run that is done."""
        return judged if judged in self.values else list(self.values)[-1]

    @property
    def share(self) -> float:
        """How much of the training is done, between 0 and 1."""
        return self.position.step / self.position.total if self.position.total else 0.0

    def length(self) -> float | None:
        """Seconds that the whole run takes, by what was seen of it here; None: too little."""
        spent = self.worked or time.monotonic() - self.began
        here = (1.0 if self.worked else self.share) - (self.had or 0.0)
        return spent / here if here > _ENOUGH else None


class Board:
    """All runs of a sweep, setting by setting.

    judged: the set to judge by; "": the last
    """

    def __init__(self, states: list[RunState], *, jobs: int, judged: str = "") -> None:
        self.states = states
        self.jobs = jobs
        self.judged = judged
        self.is_stopping = False
        self.began = time.monotonic()

    def count(self, *statuses: Status) -> int:
        return sum(state.status in statuses for state in self.states)

    def settings(self) -> dict[str, list[RunState]]:
        """Label -> the runs of that setting."""
        rows: dict[str, list[RunState]] = {}
        for state in self.states:
            rows.setdefault(state.plan.setting.label, []).append(state)
        return rows

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def remaining(self) -> float | None:
        """Seconds to the end, if what is left goes as what was done; None: no way to tell yet."""
        running = [state for state in self.states if state.status is Status.RUNNING]
        seen = [state for state in self.states if state.worked > 0] or running
        lengths = [length for state in seen if (length := state.length()) is not None]
        if not lengths:
            return None
        length = sum(lengths) / len(lengths)
        left = [length] * self.count(Status.WAITING, Status.ELSEWHERE)
        left += [max(length * (1 - state.share), 0.0) for state in running]
        return max(sum(left) / self.jobs, max(left, default=0.0))


class SweepEvents:
    """What wants to hear of a sweep; by itself it does nothing with what it hears."""

    def started(self, board: Board) -> None:
        """Nothing is wrong with the settings; the first run is about to start."""

    def changed(self, board: Board, state: RunState) -> None:
        """A run has another status than before."""

    def ticked(self, board: Board) -> None:
        """About once a second."""

    def finished(self, board: Board) -> None:
        """The sweep is over, by success, by a stop or by an error."""
