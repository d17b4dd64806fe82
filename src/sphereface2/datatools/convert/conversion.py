"""A conversion: the images to write, safe names for them, and a work folder that can resume."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import UNKNOWN, EncodedImages, OnBadImage
from sphereface2.data.sources.image_file import Encoded, ending_of, is_image_file
from sphereface2.files import WorkFolder, on_full_disk, printable


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
        names = images.names_of_people()
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


def _in_order(people: Sequence[str]) -> list[str]:
    """Numbers with zeros in front where the order of names would otherwise not be theirs."""
    are_numbers = all(person.isascii() and person.isdigit() for person in people)
    if not are_numbers or sorted(people) == list(people):
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


# -- names that are safe to write: never outside the target, never two images under one name -------

_LONGEST = 200
"""Bytes of one part of a path; file systems take 255, and an ending may be added."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f/\\]")


def safe_part(text: str) -> str:
    """One part of a path: no separators or control characters, not hidden, not too long."""
    part = _FORBIDDEN.sub("_", text)
    if not part or part.startswith("."):
        part = f"_{part}"  # hidden files are not read back, and .. leads outside
    content = os.fsencode(part)
    if len(content) > _LONGEST:
        ending = PurePosixPath(part).suffix
        ending = ending if len(os.fsencode(ending)) < 10 else ""
        mark = hashlib.blake2b(content, digest_size=4).hexdigest()
        # A cut may fall into the middle of a character: what is left of that goes too.
        kept = content[: _LONGEST - 20].decode("utf-8", "ignore")
        part = f"{kept}~{mark}{ending}"
    return part


def unique_parts(texts: Sequence[str]) -> list[str]:
    """`safe_part` of each text, all of them different."""
    taken: set[str] = set()
    parts = []
    for part in map(safe_part, texts):
        numbered = (f"{part}~{number}" for number in count(2))
        parts.append(next(each for each in chain([part], numbered) if each not in taken))
        taken.add(parts[-1])
    return parts


def safe_file(relative: str, ending: Callable[[], str]) -> str:
    """A relative path below a person's folder that ends as an image does.

    `ending` is asked for the right ending where the name has none of an image.
    """
    parts = [safe_part(part) for part in relative.split("/") if part not in ("", ".", "..")]
    *folders, file = parts or ["_"]
    if not is_image_file(file):
        file += ending()
    # A folder that ends as an image does could stand in the way of a file of the same name.
    return "/".join([f"{each}_" if is_image_file(each) else each for each in folders] + [file])


class FileNames:
    """The name of each image in a new folder; of equal names the later ones get a number.

    Only a 64-bit mark of each name is kept: there may be millions.
    """

    def __init__(self, name: Callable[[int], str], indices: Sequence[int]) -> None:
        self._name = name
        self._renamed: dict[int, str] = {}
        marks = np.fromiter((_mark(name(index)) for index in indices), np.uint64, len(indices))
        known, first = np.unique(marks, return_index=True)
        if len(known) < len(marks):
            again = np.setdiff1d(np.arange(len(marks)), first)
            taken = set(known.tolist())
            for index in [indices[place] for place in again.tolist()]:
                self._renamed[index] = self._free_name(name(index), taken)

    def __getitem__(self, index: int) -> str:
        return self._renamed.get(index) or self._name(index)

    @staticmethod
    def _free_name(name: str, taken: set[int]) -> str:
        path = PurePosixPath(name)
        numbered = (f"{path.with_suffix('')}~{number}{path.suffix}" for number in count(2))
        free = next(each for each in numbered if _mark(each) not in taken)
        taken.add(_mark(free))
        return free


def _mark(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(os.fsencode(name), digest_size=8).digest(), "little")


# -- on its way: made in a work folder beside the target -------------------------------------------

MARK = ".converted.json"
"""In each folder that is written: what is in it, and that it may be replaced."""


@dataclass(frozen=True)
class Written:
    """What a conversion has made."""

    products: list[tuple[Path, Path]]
    """A finished file or folder of the work folder, and its place; the last one counts most."""
    new: int
    """Images that this run has written; the others were there."""
    bytes: int
    notes: tuple[str, ...] = ()


class Conversion(WorkFolder):
    """The work folder of a conversion.

    An interrupted conversion of the same source with the same options is resumed; another one is
    refused, or removed with `overwrite`.
    """

    NOTE = "request.json"

    def __init__(
        self,
        source: Path,
        target: Path,
        *,
        root: Path | None,
        form: str,
        on_bad_image: OnBadImage,
        overwrite: bool,
    ) -> None:
        super().__init__(target)
        self.source, self.root, self.form = source, root, form
        self.on_bad_image, self.overwrite = on_bad_image, overwrite
        self.request: dict[str, Any] = {}

    def is_about(self, source: Path, **content: Any) -> None:
        """What is converted; content: what stands for that of the source, as its size and time."""
        self.request = {
            "source": printable(source.resolve()),
            "root": None if self.root is None else printable(self.root.resolve()),
            "format": self.form,
            "on_bad_image": self.on_bad_image,
            **content,
        }

    def facts(self) -> dict[str, Any] | None:
        """What an interrupted run with this request has noted; None if there is none."""
        known = self.noted()
        return known if known is not None and known.get("request") == self.request else None

    def require_free(self, *places: Path) -> None:
        """Refuse places that exist: without `overwrite` all, and folders that are not ours."""
        if "moves" in (self.facts() or {}):
            return  # an earlier run has made everything, and was stopped while it named it
        for place in places:
            if place.is_dir():
                if not any(place.iterdir()):
                    continue
                if not (place / MARK).is_file():
                    raise ValueError(
                        f"{printable(place)} is not empty and was not written by convert; give a "
                        "new folder"
                    )
            if os.path.lexists(place) and not self.overwrite:
                self.tidy()
                raise ValueError(
                    f"{printable(place)} already exists; give --overwrite to replace it"
                )

    def carry_out(self, make: Callable[[], Written], **facts: Any) -> Written:
        """Make everything, or what an interrupted run has left to do, and give it its name.

        `facts` are kept for the next run, should this one be stopped.
        """
        full_disk = on_full_disk(self.path, kept="what is converted stays there")
        with full_disk, self.locked():
            known = self.facts()
            if known is None:
                if self.noted() is not None and not self.overwrite:
                    raise ValueError(
                        f"{printable(self.path)} holds an interrupted conversion of other images "
                        "or with other options; give --overwrite to start again"
                    )
                self.empty()
            if known is not None and "moves" in known:
                moves = [(self.path / made, Path(place)) for made, place in known["moves"]]
                written = Written(moves, 0, known["bytes"])
            else:
                noted = {"request": self.request, **facts}
                self.note(noted)
                written = make()
                # From here on the target may be there in part: a run that finds this note
                # continues with the moving, whatever else it finds.
                moves_noted = [
                    [str(made.relative_to(self.path)), str(place.absolute())]
                    for made, place in written.products
                ]
                self.note({**noted, "moves": moves_noted, "bytes": written.bytes})
            self.deliver(written.products)
        return written
