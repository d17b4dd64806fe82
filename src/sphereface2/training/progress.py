"""The progress of a run on the terminal: a live bar, or a plain line now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sphereface2.durations import Pace
from sphereface2.training.events import EvaluationRecord, Events, Notice, headline


class ProgressDisplay(Events):
    """Shows loss, learning rate, images a second, time left and the last evaluation.

    Where the console is no terminal (a log file, say), it prints a line every
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
        self._accuracy = ""
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("training"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[accuracy]}"),
                console=self.console,
            )
            self._task = self._bar.add_task(
                "training", total=total_steps, completed=step, numbers="", accuracy=""
            )
            self._bar.start()

    def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
        numbers = f"loss {loss:.4g}  lr {learning_rate:.3g}  {rate:.0f} images/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, numbers=numbers)
            return
        if self._pace.line_is_due(step) or step == self._total:
            left = (self._total - step) / (self._pace.rate(step) or math.inf)
            self._print(f"step {step}/{self._total}  {numbers}  {_duration(left)} left")

    def evaluated(self, record: EvaluationRecord) -> None:
        self._accuracy = f"accuracy {headline(record.metrics or record.choice):.2%}"
        if self._bar is not None:
            self._bar.update(self._task, accuracy=self._accuracy)
        else:
            self._print(f"step {record.step}/{self._total}  {self._accuracy}")

    def noticed(self, notice: Notice) -> None:
        # Above the bar, where there is one: a line that stays.
        self._print(notice.text)

    def finished(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
