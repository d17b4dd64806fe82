"""Training images in folders: one folder for each person."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import EncodedImages, OnBadImage
from sphereface2.data.sources.image_file import (
    IMAGE_SUFFIXES,
    READ_KINDS,
    is_image_file,
    kind_of,
    not_read,
    read_array,
    read_file,
    start_of,
)
from sphereface2.files import printable
from sphereface2.registry import DataPath
from sphereface2.workers import counted


class PackedNames:
    """The names of millions of files in a row, found by where they end.

    A list of strings takes three times as much, and forked processes that use it end up with a
    copy each, because every string holds its count of references.
    """

    def __init__(self, names: Iterable[str]) -> None:
        # Bytes that are not UTF-8 come as lone surrogates, which this takes as they are.
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        self._text = b"".join(encoded)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self._ends = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"name {index} of {len(self)}")
        place = index % len(self)
        start, end = self._ends.item(place), self._ends.item(place + 1)
        return self._text[start:end].decode("utf-8", "surrogatepass")


class NamedFiles(EncodedImages):
    """Images that are files below one folder, `self.files` of them by name."""

    root: str
    files: PackedNames

    def image_path(self, index: int) -> Path:
        """The file of one image."""
        return Path(self.root, self.files[index])

    def encoded(self, index: int, /) -> bytes:
        return read_file(os.path.join(self.root, self.files[index]))  # noqa: PTH118 - in a hot path

    def quick_pixels(self, index: int, /) -> NDArray[np.uint8] | None:
        return read_array(os.path.join(self.root, self.files[index]))  # noqa: PTH118 - as above

    def location(self, index: int, /) -> str:
        return printable(self.image_path(index))

    def name(self, index: int, /) -> str:
        return self.files[index]


class ImageFolder(NamedFiles):
    """The images of `path`/PERSON/**, labelled by the sorted order of the people's names.

    Images may lie at any depth below a person's folder. A folder without an image is not a person.
    With `image_size` each image is brought to that size as it is read.
    """

    def __init__(
        self, *, path: DataPath, image_size: int | None = None, on_bad_image: OnBadImage = "stop"
    ) -> None:
        folder = _require_folder(path, "data.path", "the folder with a folder for each person")
        self.root = str(folder)
        found: list[str] = []
        people: list[str] = []
        labels: list[int] = []
        unread: dict[str, str] = {}
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith(".") or not entry.is_dir() or leads_back(str(entry)):
                continue
            images = find_images(entry)
            if images.names:
                labels += [len(people)] * len(images.names)
                people.append(printable(entry.name))
                found += [f"{entry.name}/{name}" for name in images.names]
            unread |= {f"{entry.name}/{name}": why for name, why in images.unread.items()}
        notes = unread_note(folder, unread)
        if not found:
            raise ValueError(
                f"data.path: no images in the folders of {printable(folder)}; expected "
                f"PERSON/IMAGE with one of the endings {', '.join(IMAGE_SUFFIXES)}"
                + "".join(f"; {note}" for note in notes)
            )
        self.files = PackedNames(found)
        super().__init__(
            path=folder,
            labels=np.array(labels, np.int64),
            people=people,
            image_size=image_size,
            on_bad_image=on_bad_image,
            notes=notes,
            unread=unread,
        )


# The image files below a folder, recognised by their names or else by how they begin.


def _require_folder(path: str, key: str, wanted: str) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{key}: {printable(folder)} {kind}; give {wanted}")
    return folder


# Endings of photos that are not read, and of files that are never opened to see what they are.
_OTHER_KINDS = {
    **dict.fromkeys((".heic", ".heif"), "HEIC"),
    **dict.fromkeys((".avif", ".avifs"), "AVIF"),
    **dict.fromkeys((".jp2", ".j2k"), "JPEG 2000"),
    **dict.fromkeys((".jxl",), "JPEG XL"),
    **dict.fromkeys(
        (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".raw"), "raw photo"
    ),
    **dict.fromkeys((".psd",), "Photoshop"),
}
_NOT_IMAGES = {
    ".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".html", ".md", ".pts", ".log", ".yaml",
    ".yml", ".npy", ".npz", ".pkl", ".mat", ".rec", ".idx", ".lst", ".bin", ".parquet", ".zip",
    ".gz", ".tar", ".pdf", ".mp4", ".mov", ".avi", ".py", ".db", ".ini",
}  # fmt: skip


@dataclass
class FoundImages:
    """What a walk found, with names below the folder and / between their parts."""

    names: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    """Images of kinds that cannot be read, each with a sentence about why."""


def find_images(folder: Path) -> FoundImages:
    """The images at any depth below `folder`, in the order of their names.

    Hidden files and folders are passed over. Links to folders are followed, except to one that
    holds the link: that would never end.
    """
    found = FoundImages()
    root = str(folder)
    for parent, folders, files in os.walk(root, onerror=_refuse, followlinks=True):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not leads_back(f"{parent}/{name}")
        ]
        below = os.path.relpath(parent, root).replace(os.sep, "/")
        prefix = "" if below == "." else f"{below}/"
        for name in files:
            if is_image_file(name) or (kind := _kind(parent, name)) in READ_KINDS:
                found.names.append(f"{prefix}{name}")
            elif kind is not None:
                found.unread[f"{prefix}{name}"] = not_read(kind)
    found.names.sort()
    return found


def _refuse(error: OSError) -> None:
    """A folder that cannot be listed is not one without images."""
    raise error


def leads_back(folder: str) -> bool:
    """Whether a folder is a link to one that holds it, in which a walk would never end."""
    if not os.path.islink(folder):  # noqa: PTH114 - a Path for each folder is slow
        return False
    here = Path(folder).absolute()
    target = here.resolve()
    return any(above.resolve() == target for above in here.parents)


def unread_note(folder: Path, unread: Iterable[str]) -> list[str]:
    """A sentence about the images of other kinds in a folder, if there are any."""
    names = [printable(name) for name in sorted(unread)]
    if not names:
        return []
    these = f"{counted(len(names), 'image')} of other kinds in {printable(folder)}"
    if len(names) == 1:
        return [f"{these} is not read: {names[0]}; convert it to JPEG or PNG"]
    return [f"{these} are not read, such as {names[0]}; convert them to JPEG or PNG"]


def _kind(parent: str, name: str) -> str | None:
    """The kind of a file whose ending is not that of an image which is read."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in _NOT_IMAGES or name.startswith("."):
        return None
    if suffix in _OTHER_KINDS:
        return _OTHER_KINDS[suffix]
    kind = kind_of(start_of(f"{parent}/{name}"))
    return None if kind == "bmp" else kind  # "BM" alone is the start of many a word


# Images of nobody in particular: a folder of any structure, without people.


class LooseImages(NamedFiles):
    """All images at any depth below `path`, in the order of their names, with label -1."""

    def __init__(
        self, *, path: DataPath, image_size: int | None = None, on_bad_image: OnBadImage = "stop"
    ) -> None:
        folder = _require_folder(path, "open_set.data.path", "a folder of images")
        self.root = str(folder)
        found = find_images(folder)
        self.files = PackedNames(found.names)
        notes = unread_note(folder, found.unread)
        if not len(self.files):
            raise ValueError(
                f"open_set.data.path: no images below {printable(folder)}; expected files with one "
                f"of the endings {', '.join(IMAGE_SUFFIXES)}"
                + "".join(f"; {note}" for note in notes)
            )
        super().__init__(
            labels=np.full(len(self.files), -1, np.int64),
            people=[],
            image_size=image_size,
            on_bad_image=on_bad_image,
            path=folder,
            notes=notes,
            unread=found.unread,
        )
