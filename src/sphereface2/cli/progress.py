"""The progress of a run on the terminal: a live bar, or a plain line now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from sphereface2.training.events import EvaluationRecord, Events, Notice, headline
from sphereface2.workers import Pace

_WORDS = 80  # columns that whole words need
_WIDE = 100  # columns that leave room for the learning rate


class ProgressDisplay(Events):
    """Shows the step, loss, images per second, time left and the last evaluation, in 80 columns.

    Where the console is not a terminal (a log file, say), it prints a line every
    `seconds_between_lines` and at each evaluation instead.
    """

    def __init__(
        self,
        console: Console,
        *,
        seconds_between_lines: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self.seconds_between_lines = seconds_between_lines
        self._clock = clock
        self._bar: Progress | None = None

    def started(self, *, step: int, total_steps: int) -> None:
        self._total = total_steps
        self._pace = Pace(seconds_between_lines=self.seconds_between_lines, clock=self._clock)
        self._pace.line_is_due(step)
        if self.console.is_terminal:
            self._bar = Progress(
                # Only the bar gives way where the terminal is narrow.
                BarColumn(bar_width=24),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[accuracy]}"),
                console=self.console,
            )
            self._task = self._bar.add_task(
                "training", total=total_steps, completed=step, numbers="", accuracy=""
            )
            self._bar.start()

    def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
        if self._bar is not None:
            images = "img/s" if self._is_narrow else "images/s"
            more = f" lr {learning_rate:.3g}" if self.console.width >= _WIDE else ""
            numbers = f"loss {loss:.4g}{more} {rate:.0f} {images}"
            self._bar.update(self._task, completed=step, numbers=numbers)
            return
        if self._pace.line_is_due(step) or step == self._total:
            numbers = f"loss {loss:.4g}  lr {learning_rate:.3g}  {rate:.0f} images/s"
            left = (self._total - step) / (self._pace.rate(step) or math.inf)
            self._print(f"step {step}/{self._total}  {numbers}  {_duration(left)} left")

    def evaluated(self, record: EvaluationRecord) -> None:
        accuracy = f"{headline(record.metrics or record.choice):.2%}"
        if self._bar is not None:
            word = "acc" if self._is_narrow else "accuracy"
            self._bar.update(self._task, accuracy=f"{word} {accuracy}")
        else:
            self._print(f"step {record.step}/{self._total}  accuracy {accuracy}")

    def noticed(self, notice: Notice) -> None:
        # Above the bar, where there is one: a line that stays.
        self._print(notice.text)

    def finished(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def _is_narrow(self) -> bool:
        return self.console.width < _WORDS

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
