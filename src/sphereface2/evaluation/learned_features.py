"""Features of two or three dimensions with their classifiers: what the paper's pictures show."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.json_result import JsonResult

Vectors = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ClassGap:
    """How far the binary classifier of one person keeps its two sides apart, as cosines."""

    lowest_positive: float
    highest_negative: float

    @property
    def width(self) -> float:
        """The empirical margin; below 0 where the two sides overlap."""
        return self.lowest_positive - self.highest_negative


@dataclass(frozen=True)
class LearnedFeatures(JsonResult):
    """The features of all training images and the binary classifiers that drew them apart.

    features: (N, D), unit rows; the sphere of the loss has the radius `radius`
    labels: (N,), the person of each image
    classifiers: (K, D), unit rows W_i
    bias, radius, margin, sharpness: b, r, m and t of the loss
    """

    IS: ClassVar[str] = "a set of learned features"
    WRITTEN_BY: ClassVar[str] = "sphereface2 reproduce"

    features: tuple[tuple[float, ...], ...]
    labels: tuple[int, ...]
    classifiers: tuple[tuple[float, ...], ...]
    bias: float
    radius: float
    margin: float
    sharpness: float = 1.0

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels for {len(self.features)} features")
        if len({len(row) for row in (*self.features, *self.classifiers)}) != 1:
            raise ValueError("features and classifiers must all have the same dimension")

    @property
    def dim(self) -> int:
        return len(self.classifiers[0])

    @property
    def people(self) -> int:
        return len(self.classifiers)

    @property
    def boundaries(self) -> tuple[float, float, float]:
        """cos θ on the decision boundaries (1), (2) and (3) of every class.

        (1) r(g(cos θ) - m) + b = 0 for the positives, (2) r·g(cos θ) + b = 0 between the two,
        (3) r(g(cos θ) + m) + b = 0 for the negatives. Above 1 or at -1: off the sphere.
        """
        threshold = -self.bias / self.radius
        positive, baseline, negative = (
            self._cosine_of(threshold + side * self.margin) for side in (1, 0, -1)
        )
        return positive, baseline, negative

    @property
    def induced_margin(self) -> float:
        """What the loss asks for between the two sides of a class: from boundary (3) to (1)."""
        positive, _, negative = self.boundaries
        return positive - negative

    def gaps(self) -> tuple[ClassGap, ...]:
        """For each classifier its worst images: the lowest positive, the highest negative."""
        cosines = np.asarray(self.features) @ np.asarray(self.classifiers).T
        labels = np.asarray(self.labels)
        return tuple(
            ClassGap(
                lowest_positive=float(cosines[labels == person, person].min()),
                highest_negative=float(cosines[labels != person, person].max()),
            )
            for person in range(self.people)
        )

    def _cosine_of(self, score: float) -> float:
        """The cosine with g(cos θ) = score, g(z) = 2((z+1)/2)^t - 1."""
        return float(2 * max((score + 1) / 2, 0.0) ** (1 / self.sharpness) - 1)


def plain_rows(vectors: Vectors) -> tuple[tuple[float, ...], ...]:
    """Vectors as unit rows of plain numbers, with as many digits as a picture can show."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return tuple(tuple(round(float(value), 6) for value in row) for row in unit)
