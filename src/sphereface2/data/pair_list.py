"""Verification pairs in a text file: `path1 path2 0|1`, one pair a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.image_file import read_image
from sphereface2.data.source import Progress
from sphereface2.data.verification_sets import VerificationSet

FOLDS = 10


class ImageFiles:
    """Image files, decoded as they are asked for."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        return read_image(self.paths[index])

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Nothing to do: images are decoded as they are asked for."""


def pair_list(
    *, path: str, root: str | None = None, title: str | None = None
) -> list[VerificationSet]:
    """The pairs of one list as the one verification set in it.

    Each line is `path1 path2 0|1` (1: the same person), parted by tabs, or by blanks where no
    path has one; empty lines and lines that begin with # are passed over. Image paths are
    relative to `root`, or else to the folder of the list. The set is called `title`, or else as
    the file is.

    The folds are ten blocks in the order of the list, as LFW's are. Where such a block would hold
    pairs of one kind only (all genuine pairs first, say), the genuine and the impostor pairs are
    cut into ten blocks each, so that every fold has both.
    """
    list_file = Path(path)
    if not list_file.is_file():
        raise FileNotFoundError(f"there is no pair list {list_file}")
    folder = list_file.parent if root is None else Path(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"root: there is no folder {folder} with the images of {list_file}")
    pairs, same = _parse(list_file)
    files, indices = np.unique(np.array(pairs), return_inverse=True)
    images = [folder / file for file in files.tolist()]
    _require_files(images, list_file, folder)
    answers = np.array(same, np.bool_)
    return [
        VerificationSet(
            name=list_file.stem if title is None else title,
            images=ImageFiles(images),
            pairs=indices.reshape(-1, 2).astype(np.int64),
            same=answers,
            folds=_folds(answers, list_file),
        )
    ]


def _parse(list_file: Path) -> tuple[list[tuple[str, str]], list[bool]]:
    pairs: list[tuple[str, str]] = []
    same: list[bool] = []
    try:
        text = list_file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the pair list {list_file} is not a text file in UTF-8") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [f.strip() for f in (line.split("\t") if "\t" in line else line.split())]
        if len(fields) != 3 or not all(fields) or fields[2] not in ("0", "1"):
            raise ValueError(
                f"{list_file}, line {number}: expected 'path1 path2 0|1', got {line.strip()!r}"
            )
        pairs.append((fields[0], fields[1]))
        same.append(fields[2] == "1")
    return pairs, same


def _require_files(images: list[Path], list_file: Path, folder: Path) -> None:
    missing = [image for image in images if not image.is_file()]
    if missing:
        first = ", ".join(str(image) for image in missing[:3])
        raise FileNotFoundError(
            f"{len(missing)} of the {len(images)} images of {list_file} are missing, such as "
            f"{first}; set root to the folder that the paths start from (now {folder})"
        )


def _folds(same: NDArray[np.bool_], list_file: Path) -> NDArray[np.int64]:
    genuine, impostor = np.flatnonzero(same), np.flatnonzero(~same)
    if min(len(genuine), len(impostor)) < FOLDS:
        raise ValueError(
            f"{list_file} has {len(genuine)} genuine and {len(impostor)} impostor pairs; "
            f"{FOLDS} folds need at least {FOLDS} of each"
        )
    folds = _blocks(len(same))
    if any(len(np.unique(same[folds == fold])) < 2 for fold in range(FOLDS)):
        folds[genuine] = _blocks(len(genuine))
        folds[impostor] = _blocks(len(impostor))
    return folds


def _blocks(count: int) -> NDArray[np.int64]:
    """0 0 … 1 1 … 9 9: ten blocks whose sizes differ by one at most."""
    return np.arange(count, dtype=np.int64) * FOLDS // count
