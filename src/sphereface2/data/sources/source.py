"""What training images come from: the protocol every source of labelled faces keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sphereface2.progress import Progress

if TYPE_CHECKING:
    from sphereface2.data.sources.encoded import BadImage


class Images(Protocol):
    """A numbered collection of uint8 RGB pictures of shape (height, width, 3)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]: ...


class PreparedImages(Images, Protocol):
    """Images that may have work to do before the first of them is asked for."""

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


class Faces:
    """The images of a source, or some of them by their numbers, without their labels."""

    def __init__(self, source: Source, numbers: NDArray[np.int64] | None = None) -> None:
        self.source = source
        self.numbers = range(len(source)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        return self.source[int(self.numbers[index])][0]

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Prepare the source; nothing where that is done."""
        self.source.prepare(workers=workers, progress=progress)


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


class DerivedSource:
    """A source made of another one; what it does not change is as there."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def image_size(self) -> int | None:
        return self.source.image_size

    @property
    def bad(self) -> tuple[BadImage, ...]:
        """The unreadable images, as far as they are known."""
        return bad_images(self.source)

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say about the images, a sentence each."""
        return notes_on(self.source)

    @property
    def suits_processes(self) -> bool:
        return suits_processes(self.source)

    def exclude(self, bad: Sequence[BadImage]) -> None:
        """Leave out unreadable images that another process met."""
        exclude(self.source, bad)

    def __len__(self) -> int:
        return len(self.source)

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Prepare the source."""
        self.source.prepare(workers=workers, progress=progress)


_SAMPLE = 64  # images whose pixels stand for all of a set's in its digest


def images_digest(images: Images) -> str:
    """Stands for the images of a set: how many there are, and the pixels of 64 of them.

    One that cannot be read counts as such: what becomes of it is not decided here.
    """
    digest = hashlib.sha256(str(len(images)).encode())
    for index in np.unique(np.linspace(0, len(images) - 1, _SAMPLE).astype(int)).tolist():
        try:
            image = np.ascontiguousarray(images[index])
        except (ValueError, OSError):
            digest.update(b"missing")
            continue
        digest.update(str(image.shape).encode())
        digest.update(image.tobytes())
    return digest.hexdigest()[:16]
