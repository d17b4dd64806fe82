"""How commands meet the terminal and torchrun: what they print, a bar for each work, the ranks."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import typer

from sphereface2.workers import Pace, in_words

if TYPE_CHECKING:
    from rich.console import Console

    from sphereface2.workers import Progress

RESUMES = "the same command resumes where it was"


def console() -> "Console":
    """Progress goes to stderr: what a command prints on stdout is its result."""
    from rich.console import Console

    return Console(stderr=True, quiet=rank() != 0)


def printable(text: str) -> str:
    """Text whose control characters are spelled out: a name in a file must not steer a terminal."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", lambda found: ascii(found[0])[1:-1], text)


def say(out: "Console", text: str, *, wrap: bool = False, style: str | None = None) -> None:
    """Print a sentence in which nothing is markup; what may be copied is not wrapped."""
    out.print(printable(text), style=style, highlight=False, markup=False, soft_wrap=not wrap)


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
def stoppable() -> Iterator[None]:
    """Work that Ctrl-C stops and the same command resumes."""
    try:
        yield
    except KeyboardInterrupt:
        say(console(), f"stopped; {RESUMES}")
        raise typer.Exit(130) from None
