"""Open set: images of people whom nobody knows (label -1), mixed in as negatives for every class.

To a binary classifier of SphereFace2 an image needs no identity to be a negative: it is enough
that it shows somebody else. Softmax heads pass over such images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.batch_plan import BatchPlan, MixedPlan, Plan, require_whole_groups
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


class WithStrangers:
    """A source and, behind its images, those of another one with label -1 each.

    `share` is the part of every batch that strangers make up.
    """

    def __init__(self, source: Source, strangers: Source, *, share: float) -> None:
        if not 0 < share < 1:
            raise ValueError(f"open_set.share must be above 0 and below 1, got {share:g}")
        self.source = source
        self.strangers = strangers
        self.share = share
        self.labels: NDArray[np.int64] = np.concatenate(
            [source.labels, np.full(len(strangers), -1, np.int64)]
        )

    @property
    def num_classes(self) -> int:
        return self.source.num_classes

    @property
    def image_size(self) -> int | None:
        sizes = {self.source.image_size, self.strangers.image_size}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def bad(self) -> tuple[BadImage, ...]:
        """The unreadable images of both."""
        behind = len(self.source)
        return (
            *bad_images(self.source),
            *(replace(bad, index=behind + bad.index) for bad in bad_images(self.strangers)),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What both have to say about their images."""
        return (*notes_on(self.source), *notes_on(self.strangers))

    @property
    def suits_processes(self) -> bool:
        return suits_processes(self.source) and suits_processes(self.strangers)

    def exclude(self, bad: Sequence[BadImage]) -> None:
        """Tell both of their unreadable images."""
        known = len(self.source)
        exclude(self.source, [each for each in bad if each.index < known])
        strange = [each for each in bad if each.index >= known]
        exclude(self.strangers, [replace(each, index=each.index - known) for each in strange])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        known = len(self.source)
        return self.source[index] if index < known else (self.strangers[index - known][0], -1)

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Prepare both, one after the other, under one count."""
        first, second = len(self.source), len(self.strangers)
        total = first + second

        def behind(done: int, of: int) -> None:
            if progress is not None:
                progress(first + done * second // of, total)

        def before(done: int, of: int) -> None:
            if progress is not None:
                progress(done * first // of, total)

        self.source.prepare(workers=workers, progress=before)
        try:
            self.strangers.prepare(workers=workers, progress=behind)
        except ValueError as error:
            # A source knows its options by the name that they have for the training images.
            sentence = str(error).replace("data.on_bad_image", "open_set.data.on_bad_image")
            raise ValueError(f"open_set.data: {sentence}") from None


def plan_batches(
    source: Source, *, batch_size: int, images_per_person: int = 1, seed: int = 0
) -> Plan:
    """The batches of a source; one with strangers has the same number of them in each.

    That number is the share of the batch, rounded to whole groups of `images_per_person`.
    """
    if not isinstance(source, WithStrangers):
        return BatchPlan(
            source.labels, batch_size=batch_size, images_per_person=images_per_person, seed=seed
        )
    require_whole_groups(batch_size, images_per_person)
    groups = round(source.share * batch_size / images_per_person)
    per_batch = groups * images_per_person
    if not 0 < per_batch < batch_size:
        unit = "image" if images_per_person == 1 else f"group of {images_per_person} images"
        whom = "of strangers" if per_batch == 0 else "of known people"
        least = images_per_person / batch_size
        raise ValueError(
            f"open_set.share={source.share:g} leaves no {unit} {whom} in a batch of {batch_size}; "
            f"take a share from {least:.3g} to {1 - least:.3g}, or a larger training.batch_size"
        )
    try:
        known = BatchPlan(
            source.source.labels,
            batch_size=batch_size - per_batch,
            images_per_person=images_per_person,
            seed=seed,
        )
    except ValueError:
        raise ValueError(
            f"training.batch_size={batch_size} with open_set.share={source.share:g} takes "
            f"{batch_size - per_batch} images of known people, more than the "
            f"{len(source.source)} of the data; set a smaller training.batch_size"
        ) from None
    return MixedPlan(
        known, first=len(source.source), strangers=len(source.strangers), per_batch=per_batch
    )
