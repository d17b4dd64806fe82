"""How commands show what they do: a console on stderr, and a bar for each piece of work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from sphereface2.data.source import Progress


def console() -> "Console":
    """Progress goes to stderr: what a command prints on stdout is its result."""
    from rich.console import Console

    return Console(stderr=True, quiet=rank() != 0)


def rank() -> int:
    """The number that torchrun gave this process, 0 without it."""
    return int(os.environ.get("RANK", "0"))


class Watch:
    """Shows a bar for each piece of work on a terminal, and a plain line elsewhere."""

    def __init__(self, console: "Console") -> None:
        self.console = console

    @contextmanager
    def __call__(self, title: str) -> "Iterator[Progress | None]":
        if not self.console.is_terminal:
            self.console.print(title, highlight=False)
            yield None
            return
        from rich.progress import Progress

        with Progress(console=self.console, transient=True) as bar:
            task = bar.add_task(title, total=None)

            def progress(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            yield progress
