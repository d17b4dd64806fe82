"""What a source of labelled faces is, and how the labels that files hold become classes."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sphereface2.workers import Progress, unseen

T = TypeVar("T")


class Images(Protocol):
    """A numbered collection of uint8 RGB pictures of shape (height, width, 3)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]: ...


class PreparedImages(Images, Protocol):
    """Images that may have work to do before the first of them is asked for."""

    def prepare(self, *, workers: int, progress: Progress) -> None:
        """Do the work that is better done once up front; nothing where there is none."""
        ...


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be used, and why."""

    index: int
    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.location} ({self.reason})"


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

    def prepare(self, *, workers: int, progress: Progress) -> None:
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

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        self.source.prepare(workers=workers, progress=progress)


class ImageWriter(ABC):
    """Writes images into one file; leaving its `with` block without an error completes the file."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the file and give it its name."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is not finished; nothing after `finish`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()


# -- what a source may say beyond the protocol ---------------------------------------------------


def bad_images(source: Source) -> tuple[BadImage, ...]:
    """The unreadable images that a source has met so far; none where it cannot meet any."""
    found: tuple[BadImage, ...] = getattr(source, "bad", ())
    return found


def exclude(source: Source, bad: Sequence[BadImage]) -> None:
    """Leave out unreadable images that another process met in its copy of the source."""
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
        self.num_classes = source.num_classes

    @property
    def image_size(self) -> int | None:
        return self.source.image_size

    @property
    def bad(self) -> tuple[BadImage, ...]:
        return bad_images(self.source)

    @property
    def notes(self) -> tuple[str, ...]:
        return notes_on(self.source)

    @property
    def suits_processes(self) -> bool:
        return suits_processes(self.source)

    def exclude(self, bad: Sequence[BadImage]) -> None:
        exclude(self.source, bad)

    def __len__(self) -> int:
        return len(self.source)

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        self.source.prepare(workers=workers, progress=progress)


def layer_of(source: object, kind: type[T]) -> T | None:
    """The layer of this kind in a source that is made of others; None if there is none."""
    while not isinstance(source, kind):
        if not isinstance(source, DerivedSource):
            return None
        source = source.source
    return source


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
        digest.update(str(image.shape).encode() + image.tobytes())
    return digest.hexdigest()[:16]


# -- classes from labels: numbers with gaps, or names, become 0 to K - 1 -------------------------

# 3, -1, and 3.000000, as im2rec writes it. Python reads no number of more digits than this.
_WHOLE = re.compile(r"(-?\d{1,4000})(?:\.0*)?")

Where = Callable[[int], str]
"""The place of the image with this number, for messages: a file and the line or key in it."""


def classes_of_numbers(
    numbers: NDArray[np.int64] | NDArray[np.uint64], where: Where
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels from 0 to K - 1 in the order of the numbers, and the number of each class.

    -1 means that the person is not known, and stays.
    """
    # An unsigned column may hold -1 as its largest number, so those are not taken for people.
    if int(numbers.max(initial=0)) > np.iinfo(np.int64).max:
        most = int(numbers.argmax())
        raise ValueError(
            f"{where(most)}: the label {numbers[most]} is above 2^63 - 1, the largest number that "
            "a label can be; write such labels as texts"
        )
    numbers = numbers.astype(np.int64, copy=False)
    least = int(numbers.min(initial=0))
    if least < -1:
        raise ValueError(_negative(where(int(numbers.argmin())), least))
    found, labels = np.unique(numbers, return_inverse=True)
    if least == -1:
        return labels.astype(np.int64) - 1, found[1:]
    return labels.astype(np.int64, copy=False), found


def classes_of_texts(texts: Sequence[str], where: Where) -> tuple[NDArray[np.int64], list[str]]:
    """Labels from 0 to K - 1 and the name of each class, for numbers or names written as text.

    If all are whole numbers, however large, the classes are in the order of the numbers, and
    otherwise in that of the names. -1 means that the person is not known, and stays.
    """
    names = sorted(set(texts))
    whole = {name: match[1] for name in names if (match := _WHOLE.fullmatch(name)) is not None}
    if whole and names == sorted([*whole, "nan"]):
        raise ValueError(
            f"{where(texts.index('nan'))}: the label 'nan' is not a number, and all others are; "
            "-1 means an unknown person"
        )
    if len(whole) == len(names):
        values = {name: int(text) for name, text in whole.items()}
        least = min(names, key=values.__getitem__)
        if values[least] < -1:
            raise ValueError(_negative(where(texts.index(least)), values[least]))
        spelling: dict[int, str] = {}
        for name, value in values.items():
            spelling.setdefault(value, whole[name])  # 0007 stays 0007
        kept = sorted(value for value in spelling if value >= 0)
        people = [spelling[value] for value in kept]
        class_of = {value: label for label, value in enumerate(kept)} | {-1: -1}
        label_of = {name: class_of[value] for name, value in values.items()}
    else:
        people = [name for name in names if name != "-1"]
        label_of = {name: label for label, name in enumerate(people)} | {"-1": -1}
    return np.fromiter((label_of[text] for text in texts), np.int64, len(texts)), people


def gaps_note(numbers: NDArray[np.int64]) -> list[str]:
    """A sentence if the numbers of the classes leave some out, otherwise none."""
    missing = int(numbers[-1]) - int(numbers[0]) + 1 - len(numbers) if len(numbers) else 0
    if not missing:
        return []
    return [
        f"the labels {numbers[0]} to {numbers[-1]} leave out {missing} of them; the "
        f"{len(numbers)} people found are numbered from 0"
    ]


def _negative(where: str, label: int) -> str:
    return f"{where}: the label is {label}; labels start from 0, and -1 means an unknown person"
