"""How commands show what they do: a console on stderr, and a bar for each piece of work."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sphereface2.progress import Pace, in_words

if TYPE_CHECKING:
    from rich.console import Console

    from sphereface2.progress import Progress


def console() -> "Console":
    """Progress goes to stderr: what a command prints on stdout is its result."""
    from rich.console import Console

    return Console(stderr=True, quiet=rank() != 0)


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
            self._print(title)
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
            self._print(line)

        return progress

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)
