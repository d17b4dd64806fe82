"""How a sweep stands, and how that is shown: a table on a terminal, elsewhere a line per run."""

import statistics
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from sphereface2.evaluation.verification import EvaluationResult
from sphereface2.experiments.sweep.plan import PlannedRun
from sphereface2.workers import in_words

_ENOUGH = 0.02  # of a training, to say how long it takes
_SHOWN_RUNS = 3  # running seeds that a row names before it only counts them
_LINE_EVERY = 60.0  # seconds between lines in a log that say how far the running ones are


class Status(Enum):
    """Where a run is."""

    WAITING = "waiting"
    RUNNING = "running"
    ELSEWHERE = "another process is training it"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Position:
    """How far a training is; total 0: not known yet."""

    step: int = 0
    total: int = 0


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
        found = [] if self.evaluation is None else self.evaluation.results_of()
        return {row.set_name: round(100 * row.accuracy, 4) for row in found}

    def judged_by(self, judged: str, far: float | None = None) -> tuple[str, float]:
        """What to judge by and its percent: of the set asked for, or the last; if done.

        far: judge by the TAR at this FAR, not by the accuracy
        """
        assert self.evaluation is not None
        name = judged if judged in self.values else list(self.values)[-1]
        row = self.evaluation.find(self.evaluation.model, name)
        points = [each for each in row.tar_at_far if each.target == far] if row is not None else []
        return (f"TAR@FAR {far:g}", 100 * points[0].rate) if points else (name, self.values[name])

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
    far: judge by the TAR at this FAR; None: by the accuracy
    """

    def __init__(
        self, states: list[RunState], *, jobs: int, judged: str = "", far: float | None = None
    ) -> None:
        self.states = states
        self.jobs = jobs
        self.judged = judged
        self.far = far
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
        """Seconds to the end, if what is left goes as what was done; None: not known yet."""
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


class SweepDisplay(SweepEvents):
    """Shows the board on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._next_line = _LINE_EVERY

    def started(self, board: Board) -> None:
        done, total = board.count(Status.DONE), len(board.states)
        text = f"{total} runs, {done} done already"
        text += f", {board.jobs} at once" if done < total else ""
        self.console.print(text, highlight=False, soft_wrap=True)
        if self.console.is_terminal and done < total:
            self._live = Live(board_table(board), console=self.console, auto_refresh=False)
            self._live.start()

    def changed(self, board: Board, state: RunState) -> None:
        if self._live is not None:
            self.ticked(board)
        elif state.status in (Status.DONE, Status.FAILED, Status.ELSEWHERE):
            self.console.print(_line(board, state), highlight=False, markup=False, soft_wrap=True)

    def ticked(self, board: Board) -> None:
        if self._live is not None:
            self._live.update(board_table(board), refresh=True)
        elif board.elapsed >= self._next_line:
            self._next_line = board.elapsed + _LINE_EVERY
            self.console.print(_progress_line(board), highlight=False, markup=False, soft_wrap=True)

    def finished(self, board: Board) -> None:
        if self._live is not None:
            self.ticked(board)
            # The table of the result takes its place, if there is one.
            self._live.transient = board.count(Status.DONE) == len(board.states)
            self._live.stop()
            self._live = None


def board_table(board: Board) -> Table:
    """One row per setting: its seeds that are done, those that run, and what they reach so far."""
    table = Table(caption=_standing(board), caption_justify="left", box=None, pad_edge=False)
    table.add_column("setting", overflow="fold")
    table.add_column("done", justify="right", no_wrap=True)
    table.add_column("running", overflow="fold")
    table.add_column(f"{_judged(board)} (%)", justify="right", no_wrap=True)
    for label, states in board.settings().items():
        done = sum(state.status is Status.DONE for state in states)
        reached = _spread(board, states)
        table.add_row(escape(label), f"{done}/{len(states)}", _at_work(states), reached)
    return table


def _standing(board: Board) -> str:
    over = board.count(Status.DONE, Status.FAILED)
    remaining = board.remaining()
    text = f"{over} of {len(board.states)} runs, {in_words(board.elapsed)} so far"
    if board.is_stopping and board.count(Status.RUNNING):
        return f"{text}, stopping"
    return (
        f"{text}, some {in_words(remaining)} to go" if remaining and not board.is_stopping else text
    )


def _progress_line(board: Board) -> str:
    """How the sweep stands, as in `3 of 12 runs, 5 min so far; margin=0.2 seed 1: step 25/100`."""
    at_work = [
        f"{label} {part}"
        for label, states in board.settings().items()
        for part in _at_work([each for each in states if each.status is Status.RUNNING]).split("\n")
        if part
    ]
    return "; ".join([_standing(board), *at_work])


def _line(board: Board, state: RunState) -> str:
    """A run that changed, as in `[3/12] margin=0.2, seed 1: combined 87.50 %, 41 s`."""
    over = board.count(Status.DONE, Status.FAILED)
    what = f"[{over}/{len(board.states)}] {state.plan.setting.label}, seed {state.plan.seed}"
    if state.status is Status.FAILED:
        return f"{what}: failed: {state.error}"
    if state.status is Status.ELSEWHERE:
        return f"{what}: waits, since another process is training it"
    judged, reached = state.judged_by(board.judged, board.far)
    how = in_words(state.worked) if state.worked else "trained by another process"
    return f"{what}: {judged} {reached:.2f} %, {how}"


def _judged(board: Board) -> str:
    names = (state.judged_by(board.judged, board.far)[0] for state in board.states if state.values)
    return next(names, board.judged or "accuracy")


def _at_work(states: list[RunState]) -> str:
    parts = []
    for state in states:
        position = state.position
        if state.status is Status.RUNNING:
            steps = f"step {position.step}/{position.total}" if position.total else "starting"
            parts.append(f"seed {state.plan.seed}: {steps}")
        elif state.status is Status.STOPPED and position.total:
            parts.append(f"seed {state.plan.seed}: stopped at step {position.step}")
        elif state.status is Status.ELSEWHERE:
            parts.append(f"seed {state.plan.seed}: another process has it")
        elif state.status is Status.FAILED:
            parts.append(f"[red]seed {state.plan.seed} failed: {escape(state.error)}[/red]")
    more = len(parts) - _SHOWN_RUNS
    return "\n".join([*parts[:_SHOWN_RUNS], *([f"and {more} more"] if more > 0 else [])])


def _spread(board: Board, states: list[RunState]) -> str:
    """Mean ± sample deviation of what is judged by over the seeds that are done."""
    numbers = [state.judged_by(board.judged, board.far)[1] for state in states if state.values]
    if not numbers:
        return ""
    mean = f"{statistics.fmean(numbers):.2f}"
    return f"{mean} ± {statistics.stdev(numbers):.2f}" if len(numbers) > 1 else mean
