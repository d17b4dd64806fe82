"""A list of a source's images that the `list` source reads, without those that are left out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sphereface2.data.encoded import EncodedImages
from sphereface2.data.image_list import ImageList


def clean_list(
    source: EncodedImages, numbers: Iterable[int], *, root: Path | None = None
) -> Iterator[str]:
    """A line `path<TAB>person` for each of the images.

    The paths of a folder start from the folder, those of a list from `root` or else its folder, as
    its own do; an image of a .rec or .parquet file has the path that `sphereface2 convert` gives
    it in a folder.
    """
    for number in numbers:
        person = source.person(number) if source.labels[number] >= 0 else "-1"
        yield f"{_path(source, number, root)}\t{person}\n"


def _path(source: EncodedImages, number: int, root: Path | None) -> str:
    if not isinstance(source, ImageList):
        return source.name(number)
    path = source.image_path(number)
    start = source.path.parent if root is None else root
    return (path.relative_to(start) if path.is_relative_to(start) else path.absolute()).as_posix()


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write to a file beside `path`, then rename; names that are not UTF-8 keep their bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.writelines(lines)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
