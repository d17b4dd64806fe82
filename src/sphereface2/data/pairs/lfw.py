"""LFW's pairs.txt: `name i j` is a genuine pair, `name i name2 j` a pair of two people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.verification_set import (
    Missing,
    NamedPairs,
    PairFormat,
    VerificationSet,
    first_lines,
    read_lines,
    set_of_list,
    ten_folds,
)
from sphereface2.data.sources.image_file import IMAGE_SUFFIXES, is_image_file
from sphereface2.files import printable
from sphereface2.registry import DataPath

_Image = tuple[str, int]
"""A person's name and the number of the image."""


def lfw_pairs(
    *,
    path: DataPath,
    root: DataPath | None = None,
    title: str | None = None,
    suffix: str | None = None,
    missing: Missing = "error",
) -> list[VerificationSet]:
    """The pairs of a list in the form of LFW's pairs.txt, as one verification set.

    The images are `root`/NAME/NAME_0001.jpg, of photos or of aligned crops alike; `root` is the
    folder of the file if not given. Their ending is found, or else is `suffix`. The first line
    says how many folds of how many genuine and as many impostor pairs follow (`10 300`); where it
    gives only the pairs (`300`) or is missing, folds are as in `ten_folds`. `missing: skip` leaves
    out pairs whose images are not there or cannot be read.
    """
    return set_of_list(
        read_lfw,
        path,
        root=root,
        title=title,
        missing=missing,
        files_of=lambda names, folder: _files(names, folder, suffix),
    )


def read_lfw(list_file: Path) -> NamedPairs:
    """The pairs of a list by the names of their images, NAME/NAME_0001 without an ending."""
    lines = read_lines(list_file)
    header: list[int] = []
    if lines and _is_header(lines[0][1]):
        number, fields = lines.pop(0)
        header = [int(field) for field in fields]
        if min(header) < 1:
            raise ValueError(f"{list_file}, line {number}: counts must be at least 1")
    if not lines:
        raise ValueError(f"{list_file} has no pairs; expected lines 'name i j' and 'name i name j'")
    pairs = [_pair(fields, f"{list_file}, line {number}") for number, fields in lines]
    same = np.array([first[0] == second[0] for first, second in pairs], np.bool_)
    images = sorted({image for pair in pairs for image in pair})
    number_of = {image: number for number, image in enumerate(images)}
    names, people = np.unique([name for name, _ in images], return_inverse=True)
    return NamedPairs(
        name=list_file.stem,
        images=[f"{name}/{name}_{number:04d}" for name, number in images],
        pairs=np.array([[number_of[image] for image in pair] for pair in pairs], np.int64),
        same=same,
        folds=_folds(header, [number for number, _ in lines], same, list_file),
        people=people.astype(np.int64),
        names=names.tolist(),
    )


def _sniff(path: Path) -> bool:
    """Whether a header with a longer line behind it comes first, or else a pair."""
    lines = first_lines(path, 2)
    if lines and _is_header(lines[0]):
        return len(lines) == 1 or len(lines[1]) in (3, 4)
    return bool(lines) and _is_pair(lines[0]) and not is_image_file(lines[0][0])


def _is_header(fields: Sequence[str]) -> bool:
    """Whether a line is `folds pairs`, or `pairs` alone."""
    return len(fields) in (1, 2) and all(_is_number(field) for field in fields)


def _is_pair(fields: Sequence[str]) -> bool:
    """Whether a line is `name i j` or `name i name2 j`."""
    if len(fields) not in (3, 4) or not all(fields):
        return False
    return _is_number(fields[1]) and _is_number(fields[-1])


def _is_number(field: str) -> bool:
    return field.isascii() and field.isdigit() and len(field) < 10


def _pair(fields: list[str], where: str) -> tuple[_Image, _Image]:
    if not _is_pair(fields):
        raise ValueError(
            f"{where}: expected 'name i j' (one person) or 'name i name2 j' (two people), "
            f"got {printable(' '.join(fields))!r}"
        )
    first = (fields[0], int(fields[1]))
    second = (fields[0] if len(fields) == 3 else fields[2], int(fields[-1]))
    if first == second:
        raise ValueError(f"{where}: image {first[1]} of {first[0]} is paired with itself")
    if len(fields) == 4 and first[0] == second[0]:
        raise ValueError(f"{where}: both names are {first[0]}; a pair of one person is 'name i j'")
    return first, second


def _folds(
    header: list[int], lines: list[int], same: NDArray[np.bool_], list_file: Path
) -> NDArray[np.int64]:
    folds, wanted = (header if len(header) == 2 else [1, *header]) if header else (1, None)
    if wanted is not None and len(same) != 2 * folds * wanted:
        raise ValueError(
            f"{list_file}, line 1 promises {folds} x {wanted} genuine and as many impostor pairs, "
            f"{2 * folds * wanted} in all, but {len(same)} follow"
        )
    if wanted is None or folds == 1:
        return ten_folds(same, list_file)
    genuine = same.reshape(folds, 2 * wanted).sum(axis=1)
    for fold in np.flatnonzero(genuine != wanted)[:1].tolist():
        first, last = lines[2 * wanted * fold], lines[2 * wanted * (fold + 1) - 1]
        raise ValueError(
            f"{list_file}, lines {first} to {last}: fold {fold + 1} has {genuine[fold]} genuine "
            f"pairs, line 1 promises {wanted}"
        )
    return np.repeat(np.arange(folds, dtype=np.int64), 2 * wanted)


def _files(names: Sequence[str], folder: Path, suffix: str | None) -> list[Path]:
    """The file of each image; where there is none, the name it should have."""
    if suffix is not None:
        return [folder / f"{name}.{suffix.removeprefix('.')}" for name in names]
    present: dict[str, dict[str, str]] = {}
    files = []
    for name in names:
        person, _, stem = name.rpartition("/")
        if person not in present:  # one look into each folder, not one for each guess
            present[person] = _images_in(folder / person)
        files.append(folder / person / present[person].get(stem, f"{stem}{IMAGE_SUFFIXES[0]}"))
    return files


def _images_in(folder: Path) -> dict[str, str]:
    """The image files of a folder by their name without ending; .jpg goes before .png."""
    found: dict[str, str] = {}
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    for ending in reversed(IMAGE_SUFFIXES):
        matching = sorted(name for name in names if name.lower().endswith(ending))
        found.update({name[: -len(ending)]: name for name in matching})
    return found


LFW = PairFormat(lfw_pairs, sniff=_sniff, read=read_lfw)
