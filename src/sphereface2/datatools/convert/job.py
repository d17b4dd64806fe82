"""What a conversion writes: the images that are kept, their labels, and the names of people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import UNKNOWN, EncodedImages
from sphereface2.data.sources.image_file import Encoded, ending_of
from sphereface2.data.sources.recordio import names_of_people
from sphereface2.datatools.convert.safe_names import FileNames, safe_file, unique_parts


class Job:
    """The images of a source without those `left_out`, and people without any image.

    Images keep their numbers; people are numbered again where one has gone.
    """

    def __init__(self, images: EncodedImages, *, left_out: Sequence[int]) -> None:
        self.images = images
        kept = np.ones(len(images), np.bool_)
        kept[np.asarray(left_out, np.int64)] = False
        self.indices: NDArray[np.int64] = np.flatnonzero(kept)
        """The numbers of the images to write."""
        labels = images.labels[self.indices]
        found = np.unique(labels[labels >= 0])
        renumbered = np.full(len(images.people) + 1, -1, np.int64)  # the last for label -1
        renumbered[found] = np.arange(len(found))
        self.labels: NDArray[np.int64] = renumbered[images.labels]
        """The label of each image of the source; -1 for nobody known."""
        names = names_of_people(images)
        self.people = [names[label] for label in found.tolist()]
        self.has_unknown = bool((labels < 0).any())

    def __len__(self) -> int:
        return len(self.indices)

    def encoded(self, index: int) -> Encoded:
        """The bytes of an image."""
        return self.images.encoded(index)

    def person(self, index: int) -> str:
        """Whom an image shows."""
        label = int(self.labels[index])
        return self.people[label] if label >= 0 else UNKNOWN

    def file_names(self) -> FileNames:
        """A name of the form person/file.jpg for each image, safe to write and no two alike."""
        *folders, unknown = unique_parts([*_in_order(self.people), UNKNOWN])

        def name(index: int) -> str:
            label = int(self.labels[index])
            folder = folders[label] if label >= 0 else unknown
            return f"{folder}/{self._file(index)}"

        return FileNames(name, self.indices.tolist())

    def stored_name(self, index: int) -> str:
        """A name of the form person/file.jpg to store with an image."""
        return f"{self.person(index)}/{self._file(index)}"

    def _file(self, index: int) -> str:
        """The part of a name below the person, with which the source's name begins."""
        parts = self.images.name(index).split("/")[1:]
        person = self.images.person(index)
        if person in parts[:-1]:  # of a list: all/the/way/person/file.jpg
            parts = parts[parts.index(person) + 1 :]
        return safe_file("/".join(parts), lambda: ending_of(self.encoded(index)))


def people_text(people: Sequence[str]) -> bytes:
    """The content of a `people_file`."""
    lines = [person.replace("\n", "_").replace("\r", "_") for person in people]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _in_order(people: Sequence[str]) -> list[str]:
    """Numbers with zeros in front where the order of names would otherwise not be theirs."""
    if not all(person.isascii() and person.isdigit() for person in people):
        return list(people)
    if sorted(people) == list(people):
        return list(people)
    width = max(len(person) for person in people)
    return [person.zfill(width) for person in people]


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
