"""The image files below a folder, told by their names or else by how they begin."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sphereface2.data.image_file import (
    READ_KINDS,
    is_image_file,
    kind_of,
    not_read,
    printable,
    start_of,
)
from sphereface2.durations import counted

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
    for parent, folders, files in os.walk(root, followlinks=True):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not leads_back(f"{parent}/{name}")
        ]
        below = os.path.relpath(parent, root).replace(os.sep, "/")
        prefix = "" if below == "." else f"{below}/"
        for name in files:
            if is_image_file(name):
                found.names.append(f"{prefix}{name}")
                continue
            kind = _kind(parent, name)
            if kind in READ_KINDS:
                found.names.append(f"{prefix}{name}")
            elif kind is not None:
                found.unread[f"{prefix}{name}"] = not_read(kind)
    found.names.sort()
    return found


def leads_back(folder: str) -> bool:
    """Whether a folder is a link to one that holds it, in which a walk would never end."""
    if not os.path.islink(folder):  # noqa: PTH114 - a Path for each folder is slow
        return False
    here = Path(folder).absolute()
    target = here.resolve()
    return any(above.resolve() == target for above in here.parents)


def unread_note(folder: Path, unread: Iterable[str]) -> list[str]:
    """A sentence about the images of other kinds in a folder, if there are any."""
    names = sorted(unread)
    if not names:
        return []
    these = f"{counted(len(names), 'image')} of other kinds in {printable(folder)}"
    if len(names) == 1:
        return [f"{these} is not read: {printable(names[0])}; convert it to JPEG or PNG"]
    first = printable(names[0])
    return [f"{these} are not read, such as {first}; convert them to JPEG or PNG"]


def _kind(parent: str, name: str) -> str | None:
    """The kind of a file whose ending is not that of an image which is read."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in _NOT_IMAGES or name.startswith("."):
        return None
    if suffix in _OTHER_KINDS:
        return _OTHER_KINDS[suffix]
    kind = kind_of(start_of(f"{parent}/{name}"))
    return None if kind == "bmp" else kind  # "BM" alone is the start of many a word
