"""A sweep as it goes: a table on a terminal, a line for each finished run elsewhere."""

import statistics

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from sphereface2.experiments.sweep.board import Board, RunState, Status, SweepEvents
from sphereface2.progress import in_words

_SHOWN_RUNS = 3  # running seeds that a row names before it only counts them


class SweepDisplay(SweepEvents):
    """Shows the board on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None

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

    def finished(self, board: Board) -> None:
        if self._live is not None:
            self.ticked(board)
            # The table of the result takes its place, if there is one.
            self._live.transient = board.count(Status.DONE) == len(board.states)
            self._live.stop()
            self._live = None


def board_table(board: Board) -> Table:
    """One row a setting: its seeds that are done, those that run, and what they reach so far."""
    over = board.count(Status.DONE, Status.FAILED)
    remaining = board.remaining()
    caption = f"{over} of {len(board.states)} runs, {in_words(board.elapsed)} so far"
    if board.is_stopping and board.count(Status.RUNNING):
        caption += ", stopping"
    elif remaining and not board.is_stopping:
        caption += f", some {in_words(remaining)} to go"
    table = Table(caption=caption, caption_justify="left", box=None, pad_edge=False)
    table.add_column("setting", overflow="fold")
    table.add_column("done", justify="right", no_wrap=True)
    table.add_column("running", overflow="fold")
    table.add_column(f"{_judged(board)} (%)", justify="right", no_wrap=True)
    for label, states in board.settings().items():
        done = sum(state.status is Status.DONE for state in states)
        reached = _spread(states, board.judged)
        table.add_row(escape(label), f"{done}/{len(states)}", _at_work(states), reached)
    return table


def _line(board: Board, state: RunState) -> str:
    """A run that changed, as in `[3/12] margin=0.2, seed 1: combined 87.50 %, 41 s`."""
    over = board.count(Status.DONE, Status.FAILED)
    what = f"[{over}/{len(board.states)}] {state.plan.setting.label}, seed {state.plan.seed}"
    if state.status is Status.FAILED:
        return f"{what}: failed: {state.error}"
    if state.status is Status.ELSEWHERE:
        return f"{what}: waits, since another process is training it"
    judged = state.judged_by(board.judged)
    how = in_words(state.worked) if state.worked else "trained by another process"
    return f"{what}: {judged} {state.values[judged]:.2f} %, {how}"


def _judged(board: Board) -> str:
    for state in board.states:
        if state.values:
            return state.judged_by(board.judged)
    return board.judged or "accuracy"


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


def _spread(states: list[RunState], judged: str) -> str:
    """Mean ± sample deviation of the judged set over the seeds that are done."""
    numbers = [state.values[state.judged_by(judged)] for state in states if state.values]
    if not numbers:
        return ""
    mean = f"{statistics.fmean(numbers):.2f}"
    return f"{mean} ± {statistics.stdev(numbers):.2f}" if len(numbers) > 1 else mean
