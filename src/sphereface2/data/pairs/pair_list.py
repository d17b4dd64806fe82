"""Verification pairs in a text file: `path1 path2 0|1`, one pair per line."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

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
from sphereface2.data.sources.image_file import is_image_file
from sphereface2.files import printable
from sphereface2.registry import DataPath


def pair_list(
    *,
    path: DataPath,
    root: DataPath | None = None,
    title: str | None = None,
    missing: Missing = "error",
) -> list[VerificationSet]:
    """The pairs of a list with `path1 path2 0|1` in each line, as one verification set.

    Each line is `path1 path2 0|1` (1: the same person), separated by tabs, or by blanks where no
    path has one; empty lines and lines that begin with # are passed over. Image paths are
    relative to `root`, or else to the folder of the list. The set is called `title`, or else as
    the file is. `missing: skip` leaves out pairs whose images are not there or cannot be read.

    Where the images lie in a folder for each person, and every pair agrees with that, the people
    are known by these folders. Folds as in `ten_folds`.
    """
    return set_of_list(
        read_pair_list,
        path,
        root=root,
        title=title,
        missing=missing,
        files_of=lambda names, folder: [folder / name for name in names],
    )


def read_pair_list(list_file: Path) -> NamedPairs:
    """The pairs of a list by the paths that it names."""
    lines = read_lines(list_file)
    for number, fields in lines:
        if not _is_pair(fields):
            raise ValueError(
                f"{list_file}, line {number}: expected 'path1 path2 0|1', "
                f"got {printable(' '.join(fields))!r}"
            )
    files = sorted({file for _, fields in lines for file in fields[:2]})
    number_of = {file: index for index, file in enumerate(files)}
    pairs = np.array([[number_of[file] for file in fields[:2]] for _, fields in lines], np.int64)
    same = np.array([fields[2] == "1" for _, fields in lines], np.bool_)
    folds = ten_folds(same, list_file)
    people, names = _people(files, pairs, same)
    return NamedPairs(list_file.stem, files, pairs, same, folds, people, names)


def _sniff(path: Path) -> bool:
    """Whether the first line pairs two image files; `my photo.jpg 1` is of a list of images."""
    return any(
        _is_pair(fields) and all(is_image_file(Path(field).name) for field in fields[:2])
        for fields in first_lines(path, 1)
    )


def _is_pair(fields: list[str]) -> bool:
    return len(fields) == 3 and all(fields) and fields[2] in ("0", "1")


def _people(
    files: list[str], pairs: NDArray[np.int64], same: NDArray[np.bool_]
) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Who each image shows, by its folder; None where the pairs do not bear the folders out."""
    folders = [PurePosixPath(file).parts[:-1] for file in files]
    for depth in range(1, min(len(folder) for folder in folders) + 1):
        # The outermost folders that agree: PERSON/frontal/1.jpg and PERSON/profile/1.jpg are one.
        outer = ["/".join(folder[:depth]) for folder in folders]
        names, people = np.unique(outer, return_inverse=True)
        if np.array_equal(people[pairs[:, 0]] == people[pairs[:, 1]], same):
            return people.astype(np.int64), [PurePosixPath(name).name for name in names.tolist()]
    return None, []


PAIR_LIST = PairFormat(pair_list, sniff=_sniff, read=read_pair_list)
