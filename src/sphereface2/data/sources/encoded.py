"""Sources whose images are stored as encoded files: the start-up check, and what bad images do."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import Encoded, check_header, decode, to_array
from sphereface2.data.sources.source import BadImage
from sphereface2.data.transforms import resize
from sphereface2.files import printable
from sphereface2.workers import Progress, counted, first_of, in_threads, unseen

OnBadImage = Literal["stop", "skip"]
_Sizes = Counter[tuple[int, int]]
UNKNOWN = "unknown"
"""The person of an image whose label is -1."""

_CHUNK = 256
_OF_ONE_SIZE = 0.9
_LFW_SIZE = (250, 250)


class EncodedImages(ABC):
    """Training images that are stored as encoded files; subclasses say where.

    `prepare` checks the structure of every file. With `on_bad_image` "stop" it raises a
    ValueError if one is bad. With "skip" a bad image is replaced wherever it is asked for by the
    next readable image of its person, or else by the next readable image at all, with the label
    of that; so neither length nor order changes. This holds too for an image whose decoding fails
    only later.
    """

    suits_processes = True
    """Whether processes read it faster than threads: it keeps no images in memory."""

    def __init__(
        self,
        *,
        labels: NDArray[np.int64],
        people: Sequence[str],
        image_size: int | None = None,
        on_bad_image: OnBadImage = "stop",
        path: Path = Path(),
        notes: Sequence[str] = (),
        unread: Mapping[str, str] | None = None,
    ) -> None:
        if image_size is not None and image_size < 1:
            raise ValueError(f"data.image_size must be at least 1, got {image_size}")
        if on_bad_image not in ("stop", "skip"):
            raise ValueError(f"data.on_bad_image must be 'stop' or 'skip', got {on_bad_image!r}")
        self.path = path
        self.labels = labels
        self.people = list(people)
        """The name of each class."""
        self.image_size = image_size
        self.on_bad_image = on_bad_image
        self.notes = tuple(notes)
        """What the user should know about the data, a sentence each."""
        self.unread = dict(unread or {})
        """Files beside the images, of kinds that cannot be read, each with the reason."""
        self.bad: tuple[BadImage, ...] = ()
        """The images that cannot be used, as far as they are known."""
        self._is_checked = False
        self._stand_ins = _StandIns(labels)

    @abstractmethod
    def encoded(self, index: int, /) -> Encoded:
        """The bytes of an image as they are stored."""

    @abstractmethod
    def location(self, index: int, /) -> str:
        """Where an image is, for messages: a path, or "train.rec, key 17"."""

    @abstractmethod
    def name(self, index: int, /) -> str:
        """A relative path of the form person/file.jpg under which the image can be written."""

    def quick_pixels(self, index: int, /) -> NDArray[np.uint8] | None:
        """A checked image as an array; None if that fails, of whatever cause."""
        return to_array(self.encoded(index))

    def names_of_people(self) -> list[str]:
        """The name of each class, which may be kept beside a file that holds numbers only."""
        return self.people

    @property
    def num_classes(self) -> int:
        return len(self.people)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        # The short way of the millions of images that are as they should be: what is asked here
        # for each of them is paid for in images per second.
        if self._is_checked and index >= 0 and index not in self._stand_ins.bad:
            image = self.quick_pixels(index)
            if image is not None:
                if self.image_size is not None:
                    image = resize(image, self.image_size)
                return image, self.labels.item(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        chosen = self._stand_ins.find(index % len(self))
        while True:
            try:
                # After the check a header is not looked at again: decoding is then the first to
                # touch a memory-mapped file, and other threads run while the disk is waited for.
                stored, location = self.encoded(chosen), self.location(chosen)
                image = decode(stored, location, looked=self._is_checked)
                break
            except (ValueError, OSError) as error:
                if self.on_bad_image == "stop":
                    raise
                self.exclude([BadImage(chosen, self.location(chosen), _reason(error))])
                chosen = self._stand_ins.find(index % len(self))
        if self.image_size is not None:
            image = resize(image, self.image_size)
        return image, int(self.labels[chosen])

    def person(self, index: int) -> str:
        """The name of the person whom an image shows."""
        label = int(self.labels[index])
        return self.people[label] if label >= 0 else UNKNOWN

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        """Check the structure of every image file, in `workers` threads."""
        if self._is_checked:
            return
        found: list[BadImage] = []
        sizes: _Sizes = Counter()
        starts = range(0, len(self), _CHUNK)
        with closing(in_threads(self._check, starts, workers=workers)) as checked:
            for start, (bad, chunk_sizes) in checked:
                found += bad
                sizes += chunk_sizes
                progress(min(start + _CHUNK, len(self)), len(self))
        if self.on_bad_image == "stop" and found:
            self.bad = tuple(found)
            raise ValueError(
                f"{len(found)} of the {counted(len(self), 'image')} cannot be used: "
                f"{first_of(found)}; 'sphereface2 inspect {printable(self.path)}' lists all, and "
                "data.on_bad_image=skip trains without them"
            )
        self.exclude(found)
        self._is_checked = True
        self.notes += tuple(_unaligned(sizes))

    def _check(self, start: int, stopped: threading.Event) -> tuple[list[BadImage], _Sizes]:
        bad: list[BadImage] = []
        sizes: _Sizes = Counter()
        for index in range(start, min(start + _CHUNK, len(self))):
            if stopped.is_set():
                break
            try:
                header = check_header(self.encoded(index))
                sizes[header.width, header.height] += 1
            except (ValueError, OSError) as error:
                bad.append(BadImage(index, self.location(index), _reason(error)))
        return bad, sizes

    def exclude(self, bad: Sequence[BadImage]) -> None:
        """Let the next readable image stand in for each of these from now on."""
        self.bad = self._stand_ins.exclude(bad)
        if len(self.bad) == len(self):
            first = self.bad[0]
            raise ValueError(
                f"none of the {counted(len(self), 'image')} of {printable(self.path)} can be "
                f"used, the first ({first.location}) because {first.reason}"
            )


class _StandIns:
    """Which image stands in for a bad one: a function of the labels and of what is bad only."""

    def __init__(self, labels: NDArray[np.int64]) -> None:
        self._labels = labels
        self.bad: dict[int, BadImage] = {}
        self._found: dict[int, int] = {}
        self._order = np.empty(0, np.int64)
        self._sorted = np.empty(0, np.int64)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def exclude(self, bad: Sequence[BadImage]) -> tuple[BadImage, ...]:
        """Take these out as well; returns all that are out."""
        with self._lock:
            self.bad.update({each.index: each for each in bad})
            self._found.clear()
            return tuple(self.bad[index] for index in sorted(self.bad))

    def find(self, index: int) -> int:
        """The image itself, or the next good one of its person, or the next good one at all."""
        if index not in self.bad:
            return index
        with self._lock:
            if index not in self._found:
                self._found[index] = self._next_good(index)
            return self._found[index]

    def _next_good(self, index: int) -> int:
        if not len(self._order):
            self._order = np.argsort(self._labels, kind="stable")
            self._sorted = self._labels[self._order]
        label = self._labels[index]
        first, last = np.searchsorted(self._sorted, [label, label + 1])
        same_person = self._order[first:last]
        place = int(np.searchsorted(same_person, index))
        candidates: Iterator[int] = chain(
            same_person[place + 1 :].tolist(),
            same_person[:place].tolist(),
            range(index + 1, len(self._labels)),
            range(index),
        )
        good = next((each for each in candidates if each not in self.bad), None)
        if good is None:
            raise ValueError("none of the images can be used")
        return good


def _unaligned(sizes: _Sizes) -> Iterator[str]:
    """A sentence if the sizes of the images are not those of aligned crops."""
    (width, height), count = sizes.most_common(1)[0]
    if count < _OF_ONE_SIZE * sizes.total():
        shown = " and ".join(f"{wide}×{high}" for (wide, high), _ in sizes.most_common(2))
        what = f"they have {len(sizes):,} sizes, such as {shown}"
    elif (width, height) == _LFW_SIZE:
        what = f"they are {width}×{height}, as LFW's photos are"
    else:
        return
    yield (
        f"the images look unaligned: {what}; 'sphereface2 align PHOTOS CROPS' makes aligned crops "
        "of photos"
    )


def _reason(error: ValueError | OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    # The sentence for an image that cannot be decoded has the bare reason as its cause.
    return str(error.__cause__ or error)


def file_name(person: str, relative: str) -> str:
    """`relative` within a folder of the person, unless it lies in one; never outside of it."""
    parts = [part for part in relative.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    folder = person.replace("/", "_").replace("\\", "_") or "_"
    if folder.startswith("."):
        folder = f"_{folder}"  # a hidden folder would not be read back
    if len(parts) > 1 and parts[0] == folder:
        parts = parts[1:]
    return "/".join([folder, *parts])


def people_file(rec: Path) -> Path:
    """Beside a .rec, which holds numbers only: the names of the people, one per line."""
    return rec.with_name(f"{rec.stem}.people.txt")
