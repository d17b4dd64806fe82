"""What is fuzzed: a reader of the package, sound examples of its input, and what it may raise."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PARTS = b"\n--8<--\n"
"""Separates the files of an input that has several; mutations keep to one of them."""

ALLOWED: tuple[type[Exception], ...] = (ValueError, OSError)
"""What the command line turns into one sentence; all else is a crash."""


@dataclass(frozen=True)
class Parser:
    """One reader under test.

    seeds: sound inputs, made in an empty folder; each is the parts of one input
    read: hands parts to the reader of the package, in an empty folder; there may be fewer or more
        parts than in the seeds
    """

    seeds: Callable[[Path], Sequence[Sequence[bytes]]]
    read: Callable[[Path, Sequence[bytes]], None]


def joined(parts: Sequence[bytes]) -> bytes:
    return PARTS.join(parts)


def write_parts(
    folder: Path, names: Sequence[str], parts: Sequence[bytes], *, optional: bool = True
) -> None:
    """Write each part under its name; an empty one is a file that is not there if `optional`."""
    for name, content in zip(names, parts, strict=False):
        if content or not optional:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def part(parts: Sequence[bytes], number: int) -> bytes:
    """A part, or nothing where there are fewer."""
    return parts[number] if number < len(parts) else b""


def emptied(folder: Path) -> Path:
    """The folder without what the input before has left in it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)  # noqa: PTH108 - a Path for each of a million files is slow
    return folder
