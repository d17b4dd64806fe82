"""The pairs of a list by the names of their images, which need not be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.lfw import is_lfw_header, is_lfw_pair
from sphereface2.data.pairs.pair_list import line_fields, text_lines
from sphereface2.data.pairs.verification_set import ten_folds
from sphereface2.data.sources.image_file import is_image_file


@dataclass(frozen=True, eq=False)
class NamedPairs:
    """A pair list for images that are known by name only.

    images: the names, each once; pairs: (n, 2) numbers of them; same, folds: (n,)
    """

    name: str
    images: Sequence[str]
    pairs: NDArray[np.int64]
    same: NDArray[np.bool_]
    folds: NDArray[np.int64]


def named_pairs(path: Path) -> NamedPairs:
    """LFW's pairs.txt, or a list `path1 path2 0|1`; LFW's images are NAME/NAME_0001."""
    lines = [
        (number, fields)
        for number, line in enumerate(text_lines(path, "pair list"), start=1)
        if any(fields := line_fields(line)) and not fields[0].startswith("#")
    ]
    if not lines:
        raise ValueError(f"{path} has no pairs")
    is_lfw = is_lfw_header(lines[0][1]) or is_lfw_pair(lines[0][1])
    header = [int(field) for field in lines[0][1]] if is_lfw_header(lines[0][1]) else []
    read = _lfw if is_lfw else _plain
    found = [read(fields, f"{path}, line {number}") for number, fields in lines[bool(header) :]]
    same = np.array([genuine for _, _, genuine in found], np.bool_)
    images = sorted({name for left, right, _ in found for name in (left, right)})
    number_of = {name: number for number, name in enumerate(images)}
    promised = 2 * int(np.prod(header)) if header else len(found)
    if promised != len(found):
        raise ValueError(f"{path}, line 1 promises {promised} pairs in all, {len(found)} follow")
    if len(header) == 2 and header[0] > 1:
        folds = np.repeat(np.arange(header[0], dtype=np.int64), 2 * header[1])
    else:
        folds = ten_folds(same, path)
    return NamedPairs(
        name=path.stem,
        images=images,
        pairs=np.array([(number_of[left], number_of[right]) for left, right, _ in found], np.int64),
        same=same,
        folds=folds,
    )


def without_ending(name: str) -> str:
    """A name as LFW's lists know it: without .jpg or the like."""
    return name.rpartition(".")[0] if is_image_file(name) else name


def _plain(fields: list[str], where: str) -> tuple[str, str, bool]:
    if len(fields) != 3 or fields[2] not in ("0", "1"):
        raise ValueError(f"{where}: expected 'path1 path2 0|1', got {' '.join(fields)!r}")
    return fields[0], fields[1], fields[2] == "1"


def _lfw(fields: list[str], where: str) -> tuple[str, str, bool]:
    if not is_lfw_pair(fields):
        raise ValueError(
            f"{where}: expected 'name i j' or 'name i name2 j', got {' '.join(fields)!r}"
        )
    people = (fields[0], fields[0] if len(fields) == 3 else fields[2])
    numbers = (int(fields[1]), int(fields[-1]))
    left, right = (
        f"{person}/{person}_{number:04d}" for person, number in zip(people, numbers, strict=True)
    )
    return left, right, len(fields) == 3
