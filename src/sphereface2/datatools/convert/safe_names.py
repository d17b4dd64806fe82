"""Names that are safe to write: never outside the target, never two images under one name."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

import numpy as np

from sphereface2.data.sources.image_file import is_image_file

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
    for text in texts:
        part = safe_part(text)
        number = 2
        while part in taken:
            part = f"{safe_part(text)}~{number}"
            number += 1
        taken.add(part)
        parts.append(part)
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
        digest = hashlib.sha256()
        marks = np.empty(len(indices), np.uint64)
        for place, index in enumerate(indices):
            content = os.fsencode(name(index))
            digest.update(content + b"\0")
            marks[place] = _mark(content)
        self.digest = digest.hexdigest()
        """Stands for all names together."""
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
        number = 2
        while True:
            candidate = f"{path.with_suffix('')}~{number}{path.suffix}"
            mark = _mark(os.fsencode(candidate))
            if mark not in taken:
                taken.add(mark)
                return candidate
            number += 1


def _mark(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
