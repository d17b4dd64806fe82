"""Embedded data: synthetic people as a training source, as verification sets and as a picture.

`person` draws who somebody is and the conditions of a picture, `surface` is
the shape of the head and casts rays at it, `skin` is what all pictures of a person
share, `texture` draws one face on it (with the shapes of `canvas`),
`renderer` makes the picture, `images` numbers the pictures and
`sets` pairs those of unseen people. A picture depends on (seed, identity, sample) only,
so it is the same in any order, process or thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.source import Progress
from sphereface2.data.synthetic.images import SyntheticImages, render_sample, sample_conditions
from sphereface2.data.synthetic.person import EVERYDAY, Conditions, Setting
from sphereface2.data.synthetic.sets import FIRST_UNSEEN, synthetic_verification_sets
from sphereface2.data.synthetic.surface import SIZE

__all__ = [
    "Conditions",
    "Setting",
    "SyntheticFaces",
    "render_sample",
    "sample_conditions",
    "synthetic_verification_sets",
]


class SyntheticFaces:
    """A training source of synthetic people, the same number of pictures of each."""

    def __init__(
        self,
        *,
        people: int = 500,
        images_per_person: int = 20,
        image_size: int = SIZE,
        seed: int = 0,
        first_person: int = 0,
    ) -> None:
        for name, value, least in (
            ("people", people, 2),
            ("images_per_person", images_per_person, 1),
            ("image_size", image_size, 8),
            ("seed", seed, 0),
            ("first_person", first_person, 0),
        ):
            if value < least:
                raise ValueError(f"synthetic data: {name} must be at least {least}, got {value}")
        if first_person + people > FIRST_UNSEEN:
            raise ValueError(
                f"synthetic data: first_person + people must not exceed {FIRST_UNSEEN}, got "
                f"{first_person + people}; people from there on are kept for verification"
            )
        self._images = SyntheticImages(
            people,
            [EVERYDAY] * images_per_person,
            image_size=image_size,
            seed=seed,
            first_person=first_person,
        )
        self._labels = np.repeat(np.arange(people, dtype=np.int64), images_per_person)

    @property
    def num_classes(self) -> int:
        return self._images.people

    @property
    def labels(self) -> NDArray[np.int64]:
        return self._labels

    @property
    def image_size(self) -> int:
        return self._images.image_size

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        return self._images[index], int(self._labels[index])

    def conditions(self, index: int) -> Conditions:
        """Under which conditions image `index` is taken."""
        return self._images.conditions(index)

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Render everything into memory; with two or more `workers`, in that many processes."""
        self._images.prepare(workers=workers, progress=progress)
