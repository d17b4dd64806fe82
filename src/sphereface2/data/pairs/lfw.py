"""LFW's pairs.txt: `name i j` is a genuine pair, `name i name2 j` a pair of two people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.pair_list import (
    ImageFiles,
    line_fields,
    require_files,
    root_folder,
    text_lines,
)
from sphereface2.data.pairs.verification_set import Missing, VerificationSet, ten_folds
from sphereface2.data.sources.image_file import IMAGE_SUFFIXES
from sphereface2.registry import DataPath

_Image = tuple[str, int]
"""A person's name and the number of the image."""


@dataclass(frozen=True)
class _Pair:
    first: _Image
    second: _Image
    line: int

    @property
    def is_genuine(self) -> bool:
        return self.first[0] == self.second[0]


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
    list_file = Path(path)
    if not list_file.is_file():
        raise FileNotFoundError(f"there is no list of pairs {list_file}")
    folder = root_folder(list_file, root)
    header, pairs = _parse(list_file)
    same = np.array([pair.is_genuine for pair in pairs], np.bool_)
    folds = _folds(header, pairs, same, list_file)
    keys = sorted({image for pair in pairs for image in (pair.first, pair.second)})
    number = {key: index for index, key in enumerate(keys)}
    files = _files(keys, folder, suffix)
    if missing == "error":
        require_files(files, list_file, folder)
    return [
        VerificationSet(
            name=list_file.stem if title is None else title,
            images=ImageFiles(files),
            pairs=np.array([(number[p.first], number[p.second]) for p in pairs], np.int64),
            same=same,
            folds=folds,
            people=np.unique([name for name, _ in keys], return_inverse=True)[1].astype(np.int64),
            names=sorted({name for name, _ in keys}),
            missing=missing,
        )
    ]


def is_lfw_header(fields: Sequence[str]) -> bool:
    """Whether a line is `folds pairs`, or `pairs` alone."""
    return len(fields) in (1, 2) and all(_is_number(field) for field in fields)


def is_lfw_pair(fields: Sequence[str]) -> bool:
    """Whether a line is `name i j` or `name i name2 j`."""
    if len(fields) not in (3, 4) or not all(fields):
        return False
    return _is_number(fields[1]) and _is_number(fields[-1])


def _parse(list_file: Path) -> tuple[list[int], list[_Pair]]:
    header: list[int] = []
    pairs: list[_Pair] = []
    for number, line in enumerate(text_lines(list_file, "list of pairs"), start=1):
        fields = line_fields(line)
        if not any(fields):
            continue
        if not header and not pairs and is_lfw_header(fields):
            header = [int(field) for field in fields]
            if min(header) < 1:
                raise ValueError(f"{list_file}, line {number}: counts must be at least 1")
            continue
        pairs.append(_pair(fields, number, f"{list_file}, line {number}"))
    if not pairs:
        raise ValueError(f"{list_file} has no pairs; expected lines 'name i j' and 'name i name j'")
    return header, pairs


def _pair(fields: list[str], number: int, where: str) -> _Pair:
    if not is_lfw_pair(fields):
        raise ValueError(
            f"{where}: expected 'name i j' (one person) or 'name i name2 j' (two people), "
            f"got {' '.join(fields)!r}"
        )
    first = (fields[0], int(fields[1]))
    second = (fields[0] if len(fields) == 3 else fields[2], int(fields[-1]))
    if first == second:
        raise ValueError(f"{where}: image {first[1]} of {first[0]} is paired with itself")
    if len(fields) == 4 and first[0] == second[0]:
        raise ValueError(f"{where}: both names are {first[0]}; a pair of one person is 'name i j'")
    return _Pair(first, second, number)


def _is_number(field: str) -> bool:
    return field.isascii() and field.isdigit() and len(field) < 10


def _folds(
    header: list[int], pairs: list[_Pair], same: NDArray[np.bool_], list_file: Path
) -> NDArray[np.int64]:
    folds, wanted = (header if len(header) == 2 else [1, *header]) if header else (1, None)
    if wanted is not None and len(pairs) != 2 * folds * wanted:
        raise ValueError(
            f"{list_file}, line 1 promises {folds} x {wanted} genuine and as many impostor pairs, "
            f"{2 * folds * wanted} in all, but {len(pairs)} follow"
        )
    if wanted is None or folds == 1:
        return ten_folds(same, list_file)
    numbers = np.repeat(np.arange(folds, dtype=np.int64), 2 * wanted)
    for fold in range(folds):
        genuine = int(np.count_nonzero(same[numbers == fold]))
        if genuine != wanted:
            first, last = pairs[2 * wanted * fold], pairs[2 * wanted * (fold + 1) - 1]
            raise ValueError(
                f"{list_file}, lines {first.line} to {last.line}: fold {fold + 1} has {genuine} "
                f"genuine pairs, line 1 promises {wanted}"
            )
    return numbers


def _files(keys: list[_Image], folder: Path, suffix: str | None) -> list[Path]:
    """The file of each image; where there is none, the name it should have."""
    if suffix is not None:
        ending = suffix if suffix.startswith(".") else f".{suffix}"
        return [folder / name / f"{name}_{number:04d}{ending}" for name, number in keys]
    present: dict[str, dict[str, str]] = {}
    files = []
    for name, number in keys:
        if name not in present:  # one look into each folder, not one for each guess
            present[name] = _images_in(folder / name)
        stem = f"{name}_{number:04d}"
        files.append(folder / name / present[name].get(stem, f"{stem}{IMAGE_SUFFIXES[0]}"))
    return files


def _images_in(folder: Path) -> dict[str, str]:
    """The image files of a folder by their name without ending; .jpg goes before .png."""
    found: dict[str, str] = {}
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    for ending in reversed(IMAGE_SUFFIXES):
        matching = sorted(name for name in names if name.lower().endswith(ending))
        found.update({name[: -len(ending)]: name for name in matching})
    return found
