"""Label noise: training labels made wrong on purpose, for the study of how a loss bears it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.source import (
    Progress,
    Source,
    bad_images,
    exclude,
    notes_on,
    suits_processes,
)

if TYPE_CHECKING:
    from sphereface2.data.encoded import BadImage

Kind = Literal["flip", "resample"]


class NoisyLabels:
    """A source with the labels of some images drawn anew, a function of the labels and the seed.

    `flip`: of every person with n images exactly round(rate * n) get a wrong label, each of the
    other people equally likely. `resample`, as the authors' code does it: each image by itself,
    with probability `rate`, gets the label of anybody, which may be its own, so that about
    rate * (K - 1) / K of the labels of K people are wrong.

    Images of no known person (label -1) stay what they are.
    """

    def __init__(self, source: Source, *, rate: float, kind: Kind = "flip", seed: int = 0) -> None:
        if not 0 < rate <= 1:
            raise ValueError(f"label_noise.rate must be above 0 and at most 1, got {rate:g}")
        if source.num_classes < 2:
            raise ValueError("label_noise needs at least 2 people in the data, found 1")
        self.source = source
        self.true_labels = source.labels
        # A third number beside those of the images' order (seed, epoch): with the same stream as an
        # epoch, the wrong labels would come first in it. The strangers' order has 1 in this place.
        generator = np.random.default_rng([seed, 0, 2])
        draw = flipped if kind == "flip" else resampled
        self.drawn, given = draw(source.labels, source.num_classes, rate, generator)
        self.labels: NDArray[np.int64] = source.labels.copy()
        self.labels[self.drawn] = given

    @property
    def realised_rate(self) -> float:
        """The share of wrong labels among the images of known people."""
        known = int((self.true_labels >= 0).sum())
        return float((self.labels != self.true_labels).sum()) / known

    @property
    def num_classes(self) -> int:
        return self.source.num_classes

    @property
    def image_size(self) -> int | None:
        return self.source.image_size

    @property
    def bad(self) -> tuple[BadImage, ...]:
        """The unreadable images of the source."""
        return bad_images(self.source)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the source has to say about its images."""
        return notes_on(self.source)

    @property
    def suits_processes(self) -> bool:
        return suits_processes(self.source)

    def exclude(self, bad: Sequence[BadImage]) -> None:
        """Tell the source of unreadable images."""
        exclude(self.source, bad)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        image, label = self.source[index]
        # Another person's image, in place of one that cannot be read, comes with its own label.
        return image, int(self.labels[index]) if label == self.true_labels[index] else label

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Prepare the source."""
        self.source.prepare(workers=workers, progress=progress)

    def manifest(self) -> str:
        """CSV of the images whose label was drawn: index, name, true and given label.

        With `resample` some of them have drawn their true label.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["index", "name", "true_label", "given_label"])
        name = getattr(self.source, "name", lambda index: "")
        writer.writerows(
            (index, name(index), true, given)
            for index, true, given in zip(
                self.drawn.tolist(),
                self.true_labels[self.drawn].tolist(),
                self.labels[self.drawn].tolist(),
                strict=True,
            )
        )
        return text.getvalue()


def flipped(
    labels: NDArray[np.int64], classes: int, rate: float, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of exactly round(rate * n) images of each person, and a wrong label for each."""
    known = np.flatnonzero(labels >= 0)
    # Each person's images in a random order, of which the first ones are taken.
    shuffled = known[generator.permutation(len(known))]
    by_person = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels[known], minlength=classes)
    place = np.arange(len(known)) - np.repeat(np.cumsum(counts) - counts, counts)
    wrong = np.rint(rate * counts).astype(np.int64)
    drawn = np.sort(by_person[place < np.repeat(wrong, counts)])
    # One of the K - 1 others: those from the true label on move up by one.
    given = generator.integers(0, classes - 1, len(drawn))
    return drawn, given + (given >= labels[drawn])


def resampled(
    labels: NDArray[np.int64], classes: int, rate: float, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of images taken with probability `rate` each, and any label for each."""
    known = np.flatnonzero(labels >= 0)
    drawn = known[generator.random(len(known)) < rate]
    return drawn, generator.integers(0, classes, len(drawn))
