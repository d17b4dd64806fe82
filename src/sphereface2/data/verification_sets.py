"""What verification is measured on: images and the pairs of them, same person or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.source import Images


@dataclass(frozen=True, eq=False)
class VerificationSet:
    """Pairs of images, each marked as one person or two and given to one of the folds."""

    name: str
    images: Images
    pairs: NDArray[np.int64]
    """(pairs, 2): two indices into ``images``."""
    same: NDArray[np.bool_]
    """(pairs,): whether both images show one person."""
    folds: NDArray[np.int64]
    """(pairs,): the fold of each pair, 0 to 9."""
    people: NDArray[np.int64] | None = None
    """(images,): who each image shows, where that is known."""

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
