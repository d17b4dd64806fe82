"""How commands meet the terminal and torchrun: what they print, bars for work, the ranks."""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import typer

from sphereface2.training.events import EvaluationRecord, Events, Notice, headline
from sphereface2.workers import Pace, in_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    from sphereface2.workers import Progress

RESUMES = "the same command resumes where it was"
_WORDS = 80  # columns that whole words need
_WIDE = 100  # columns that leave room for the learning rate


def console() -> "Console":
    """Progress goes to stderr: what a command prints on stdout is its result."""
    from rich.console import Console

    return Console(stderr=True, quiet=rank() != 0)


def stdout() -> "Console":
    """What a command prints on stdout, its result, goes here."""
    from rich.console import Console

    return Console()


def printable(text: str) -> str:
    """Text whose control characters are spelled out: a name in a file must not steer a terminal."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", lambda found: ascii(found[0])[1:-1], text)


def say(out: "Console", text: str, *, wrap: bool = False, style: str | None = None) -> None:
    """Print a sentence in which nothing is markup; what may be copied is not wrapped."""
    out.print(printable(text), style=style, highlight=False, markup=False, soft_wrap=not wrap)


def print_answer(value: object, *sentences: str, as_json: bool) -> None:
    """Print a result: for programs as JSON, else in sentences."""
    from json import dumps

    for line in [dumps(value, indent=1)] if as_json else sentences:
        print(line)


def rank() -> int:
    """The number that torchrun gave this process, 0 without it."""
    return int(os.environ.get("RANK", "0"))


class Watch:
    """Shows a bar for each piece of work on a terminal, and plain lines now and then elsewhere."""

    def __init__(self, console: "Console", *, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock

    @contextmanager
    def __call__(self, title: str) -> "Iterator[Progress]":
        if not self.console.is_terminal:
            say(self.console, title)
            yield self._lines(title)
            return
        from rich.progress import Progress

        with Progress(console=self.console, transient=True) as bar:
            task = bar.add_task(title, total=None)

            def progress(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            yield progress

    def _lines(self, title: str) -> "Progress":
        pace = Pace(clock=self._clock)

        def progress(done: int, total: int) -> None:
            if not pace.line_is_due(done) or done >= total:
                return
            line = f"{title}: {done:,} of {total:,}"
            if rate := pace.rate(done):
                line += (
                    f", {rate:,.{1 if rate < 10 else 0}f}/s, {in_words((total - done) / rate)} left"
                )
            say(self.console, line)

        return progress


class ProgressDisplay(Events):
    """Shows the step, loss, images per second, time left and the last evaluation, in 80 columns.

    Where the console is not a terminal (a log file, say), it prints a line every
    `seconds_between_lines` and at each evaluation instead.
    """

    def __init__(
        self,
        console: "Console",
        *,
        seconds_between_lines: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self.seconds_between_lines = seconds_between_lines
        self._clock = clock
        self._bar: RichProgress | None = None

    def started(self, *, step: int, total_steps: int) -> None:
        self._total = total_steps
        self._pace = Pace(seconds_between_lines=self.seconds_between_lines, clock=self._clock)
        self._pace.line_is_due(step)
        if self.console.is_terminal:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )
            from rich.table import Column

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
            say(self.console, f"step {step}/{self._total}  {numbers}  {_duration(left)} left")

    def evaluated(self, record: EvaluationRecord) -> None:
        accuracy = f"{headline(record.metrics or record.choice):.2%}"
        if self._bar is not None:
            word = "acc" if self._is_narrow else "accuracy"
            self._bar.update(self._task, accuracy=f"{word} {accuracy}")
        else:
            say(self.console, f"step {record.step}/{self._total}  accuracy {accuracy}")

    def noticed(self, notice: Notice) -> None:
        # Above the bar, where there is one: a line that stays.
        say(self.console, notice.text)

    def finished(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def _is_narrow(self) -> bool:
        return self.console.width < _WORDS


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@contextmanager
def all_ranks(*, after_loss: str | None = None) -> Iterator[AbstractContextManager[None]]:
    """Join the processes that torchrun started, until the end of the block.

    Gives a block in which a mistake that one of them finds ends them all. `after_loss` is what to
    do after one of them was lost, where that is not to resume a training.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield nullcontext()
        return
    from sphereface2.training.distributed import LostRankError, ReportedElsewhereError, joined

    try:
        with joined() as team:
            yield team.together()
            with team.together():
                pass  # all leave in step, whatever rank 0 alone had to do at last
    except ReportedElsewhereError:
        raise typer.Exit(2) from None
    except LostRankError as error:
        said = f"{error.lost}; {after_loss}" if after_loss else str(error)
        print(f"sphereface2: {said}", file=sys.stderr)
        raise typer.Exit(1) from None


@contextmanager
def stoppable(command: str | None = None) -> Iterator[None]:
    """Work that Ctrl-C stops and the same command resumes; `command` is how it is written."""
    try:
        yield
    except KeyboardInterrupt as stop:
        how = RESUMES if command is None else f"resume with the same command: {command}"
        say(console(), f"{str(stop) or 'stopped'}; {how}")
        raise typer.Exit(getattr(stop, "exit_code", 130)) from None
