"""People set aside: a share of the training people whom the training never sees.

Their pairs serve to choose the step of the training to export, without a look at the sets that are
reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.drawn import draw_pairs
from sphereface2.data.pairs.verification_set import VerificationSet
from sphereface2.data.sources.source import (
    DerivedSource,
    Faces,
    Source,
    bad_images,
    exclude,
    notes_on,
)

if TYPE_CHECKING:
    from sphereface2.data.sources.encoded import BadImage

NAME = "set aside"
"""What the set of their pairs is called."""


class SetAside(DerivedSource):
    """A source without a share of its people, drawn by the seed; the others are renumbered.

    Images of no known person (label -1) stay in.
    """

    def __init__(self, source: Source, *, share: float, seed: int) -> None:
        people = source.num_classes
        count = round(share * people)
        # A third number, so that this choice is unrelated to the noise and to the order of images.
        drawn = np.random.default_rng([seed, 3]).permutation(people)[:count]
        images = np.bincount(source.labels[source.labels >= 0], minlength=people)
        several = int((images[drawn] > 1).sum())
        if count < 4 or several < 2 or people - count < 2:
            raise ValueError(
                f"evaluation.set_aside={share:g} takes {count} of {people} people, {several} of "
                "them with more than one image; pairs need at least four people, two of them with "
                "several images, and the training two more: set another share, or 0"
            )
        super().__init__(source)
        self._is_aside = np.zeros(people + 1, bool)  # the last one is nobody known, label -1
        self._is_aside[drawn] = True
        self._places = np.flatnonzero(~self._is_aside[source.labels])
        self._labels = np.full(people + 1, -1, np.int64)
        self._labels[np.flatnonzero(~self._is_aside[:people])] = np.arange(people - count)
        self.labels: NDArray[np.int64] = self._labels[source.labels[self._places]]
        self.num_classes = people - count
        self.seed = seed

    @property
    def bad(self) -> tuple[BadImage, ...]:
        found = bad_images(self.source)
        places = np.searchsorted(self._places, [each.index for each in found]).tolist()
        return tuple(
            replace(each, index=place)
            for each, place in zip(found, places, strict=True)
            if place < len(self) and self._places[place] == each.index
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the source has to say about its images, and who is left out."""
        count = self.source.num_classes - self.num_classes
        images = len(self.source) - len(self)
        aside = f"{count:,} people with {images:,} images are set aside, to choose the step by them"
        return (*notes_on(self.source), aside)

    def exclude(self, bad: Sequence[BadImage]) -> None:
        exclude(self.source, [replace(each, index=int(self._places[each.index])) for each in bad])

    def name(self, index: int, /) -> str:
        """The name of an image, where the source has names."""
        name = getattr(self.source, "name", None)
        return "" if name is None else str(name(int(self._places[index])))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        # Somebody who is set aside may stand in for a person without any readable image: that
        # image is passed over in its turn.
        for place in (*range(index, len(self)), *range(index)):
            image, label = self.source[int(self._places[place])]
            if not self._is_aside[label]:
                return image, int(self._labels[label])
        raise IndexError(f"image {index} of {len(self)}")

    def verification_set(self) -> VerificationSet:
        """Pairs of the people who are set aside, without images that are known to be bad."""
        is_used = self._is_aside[self.source.labels]
        is_used[[each.index for each in bad_images(self.source)]] = False
        places = np.flatnonzero(is_used)
        labels = self.source.labels[places]
        where = "what evaluation.set_aside leaves out"
        images = Faces(self.source, places)
        drawn = draw_pairs(images, labels, name=NAME, where=where, seed=self.seed)
        # Images in no pair need not be embedded at every evaluation.
        used, pairs = np.unique(drawn.pairs, return_inverse=True)
        return replace(
            drawn,
            images=Faces(self.source, places[used]),
            pairs=pairs.reshape(-1, 2),
            people=labels[used],
        )
