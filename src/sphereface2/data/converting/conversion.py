"""What a conversion came to, and how its progress is shown."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from sphereface2.data.source import Progress

Watch = Callable[[str], AbstractContextManager[Progress | None]]
"""Shows the progress of a named piece of work: `with watch("checking") as progress: ...`."""


def unwatched(title: str) -> AbstractContextManager[Progress | None]:
    """Work that nobody watches."""
    return nullcontext()


@dataclass(frozen=True)
class Converted:
    """What a conversion came to."""

    path: Path
    format: str
    images: int
    people: int | None
    """None where nobody knows: a .bin has pairs, no people."""
    pairs: int | None
    """None for images that are not paired."""
    bytes: int
    """Of the images, or of the file that holds them."""
    written: int
    """Images written by this run; the others were there from an earlier, interrupted one."""
    skipped: int
    """Images, or pairs, left out because an image cannot be read."""
    seconds: float
    notes: tuple[str, ...] = ()
    """What the user should know, a sentence each."""
