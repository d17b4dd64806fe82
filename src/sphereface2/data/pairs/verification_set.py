"""What verification is measured on: images and the pairs of them, same person or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.source import PreparedImages

FOLDS = 10
Missing = Literal["error", "skip"]
"""What an image that is not there or cannot be read is: a mistake, or left out with its pairs."""


@dataclass(frozen=True, eq=False)
class VerificationSet:
    """Pairs of images, each marked as one person or two and given to one of the folds."""

    name: str
    images: PreparedImages
    pairs: NDArray[np.int64]
    """(pairs, 2): two indices into ``images``."""
    same: NDArray[np.bool_]
    """(pairs,): whether both images show one person."""
    folds: NDArray[np.int64]
    """(pairs,): the fold of each pair, 0 to 9."""
    people: NDArray[np.int64] | None = None
    """(images,): who each image shows, where that is known."""
    names: Sequence[str] = ()
    """The names of the people that the images show, where they are known."""
    originals: NDArray[np.int64] | None = None
    """(images,): the first image with the same content, where that is known."""
    attributes: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    """Of each attribute, such as the age gap, its value for every pair in words, "" if unknown."""
    missing: Missing = "error"

    def __post_init__(self) -> None:
        count = len(self.pairs)
        if self.pairs.shape != (count, 2):
            raise ValueError(
                f"verification set {self.name!r}: pairs have shape {self.pairs.shape}, not (n, 2)."
            )
        if self.same.shape != (count,) or self.folds.shape != (count,):
            raise ValueError(
                f"verification set {self.name!r}: {count} pairs, but {self.same.shape[0]} answers "
                f"and {self.folds.shape[0]} folds."
            )
        if count and (self.pairs.min() < 0 or self.pairs.max() >= len(self.images)):
            raise ValueError(
                f"verification set {self.name!r}: a pair points outside the "
                f"{len(self.images)} images."
            )
        if self.people is not None and self.people.shape != (len(self.images),):
            raise ValueError(
                f"verification set {self.name!r}: {len(self.images)} images, but "
                f"{self.people.shape[0]} people given."
            )
        for attribute, values in self.attributes.items():
            if values.shape != (count,):
                raise ValueError(
                    f"verification set {self.name!r}: {count} pairs, but {values.shape[0]} values "
                    f"of the attribute {attribute!r}."
                )


@dataclass(frozen=True, eq=False)
class NamedPairs:
    """Pairs of images that are known by name and need not be there.

    images: the names, each once; pairs: (n, 2) numbers of them; same, folds: (n,)
    people, names: as those of `VerificationSet`
    """

    name: str
    images: Sequence[str]
    pairs: NDArray[np.int64]
    same: NDArray[np.bool_]
    folds: NDArray[np.int64]
    people: NDArray[np.int64] | None = None
    names: Sequence[str] = ()


class PairFormat:
    """One way to keep pairs: called with the options of a config, it builds the sets.

    build: gives the sets; its keyword arguments are the options, its docstring explains them
    sniff: whether a file or folder is of this format; None for sets that are not in files
    read: the pairs of a list by the names of its images, which lie elsewhere and need not be
    there; None where the file holds the images itself
    """

    def __init__(
        self,
        build: Callable[..., list[VerificationSet]],
        *,
        sniff: Callable[[Path], bool] | None = None,
        read: Callable[[Path], NamedPairs] | None = None,
    ) -> None:
        update_wrapper(self, build)  # with its signature and docstring, which the registry reads
        self._build = build
        self.sniff = sniff
        self.read = read

    def __call__(self, **options: Any) -> list[VerificationSet]:
        return self._build(**options)


def ten_folds(same: NDArray[np.bool_], where: object) -> NDArray[np.int64]:
    """The fold of each pair of a set that names no folds: ten blocks in order, as LFW's are.

    Where such a block would hold pairs of one kind only (all genuine pairs first, say), the
    genuine and the impostor pairs are cut into ten blocks each, so that every fold has both.
    `where` names the set in messages.
    """
    genuine, impostor = np.flatnonzero(same), np.flatnonzero(~same)
    if min(len(genuine), len(impostor)) < FOLDS:
        raise ValueError(
            f"{where} has {len(genuine)} genuine and {len(impostor)} impostor pairs; "
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
