"""What training images come from: the protocol every source of labelled faces keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sphereface2.data.encoded import BadImage

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is in all."""


class Images(Protocol):
    """A numbered collection of uint8 RGB pictures of shape (height, width, 3)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]: ...

    def prepare(self, *, workers: int, progress: Progress | None) -> None:
        """Do the work that is better done once up front; nothing where there is none."""
        ...


class Source(Protocol):
    """A numbered collection of uint8 RGB pictures, each with the label of its person.

    Labels run from 0 to ``num_classes - 1``; label -1 means that the person is not known.
    """

    @property
    def num_classes(self) -> int: ...

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of every image, known without decoding one."""
        ...

    @property
    def image_size(self) -> int | None:
        """The side of the square images, or None where they differ."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]: ...

    def prepare(self, *, workers: int, progress: Progress | None) -> None:
        """Do the work that is better done once up front; nothing where there is none."""
        ...


# -- what a source may say beyond the protocol ---------------------------------------------------


def bad_images(source: Source) -> tuple[BadImage, ...]:
    """The unreadable images that a source has met so far; none where it cannot meet any."""
    found: tuple[BadImage, ...] = getattr(source, "bad", ())
    return found


def exclude(source: Source, bad: Sequence[BadImage]) -> None:
    """Tell a source of unreadable images that another process met in its copy of it."""
    if bad:
        source.exclude(bad)  # type: ignore[attr-defined]  # who has met bad images has it


def notes_on(source: Source) -> tuple[str, ...]:
    """What a source has to say about its images, a sentence each."""
    found: tuple[str, ...] = getattr(source, "notes", ())
    return found


def suits_processes(source: Source) -> bool:
    """Whether processes, each with its own copy of the source, read it faster than threads."""
    suits: bool = getattr(source, "suits_processes", False)
    return suits
