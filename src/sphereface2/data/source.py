"""What training images come from: the protocol every source of labelled faces keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
