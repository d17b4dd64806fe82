"""Examples of an augmentation: some images of the data as a training would see them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.augmentation import Augmentation
from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.transforms import mirrored, resize
from sphereface2.files import printable

IMAGES, EPOCHS = 12, 8


@dataclass(frozen=True, eq=False)
class AugmentedImage:
    """An image as it is, at the network's size, and as it is seen in the first epochs."""

    name: str
    original: NDArray[np.uint8]
    seen: tuple[NDArray[np.uint8], ...]
    others: tuple[NDArray[np.uint8], ...]
    """In other proportions, as another person."""


def augmented_examples(
    source: EncodedImages, augmentation: Augmentation, *, size: int | None = None
) -> tuple[AugmentedImage, ...]:
    """A dozen images from all over the data; `size` is the network's, the image's own if None."""
    # Three times as many as are shown: some may be unreadable, which is not the matter here.
    places = np.linspace(0, len(source) - 1, 3 * IMAGES).round().astype(np.int64)
    # The first of every three, then the others, and each image once.
    order = np.concatenate([places[start::3] for start in (0, 1, 2)])
    chosen: dict[int, NDArray[np.uint8]] = {}
    problem: ValueError | OSError | None = None
    for index in dict.fromkeys(order.tolist()):
        if len(chosen) == IMAGES:
            break
        try:
            chosen[index] = source[index][0]
        except (ValueError, OSError) as error:
            problem = error
    if problem is not None and not chosen:
        raise problem
    return tuple(
        _example(source, index, image, augmentation, size=size or min(image.shape[:2]))
        for index, image in sorted(chosen.items())
    )


def _example(
    source: EncodedImages,
    index: int,
    image: NDArray[np.uint8],
    augmentation: Augmentation,
    *,
    size: int,
) -> AugmentedImage:
    numbers = np.array([index])
    seen: list[NDArray[np.uint8]] = []
    others: list[NDArray[np.uint8]] = []
    for epoch in range(EPOCHS):
        place = np.empty((size, size, 3), np.uint8)
        (draw,) = augmentation.draw(numbers, seed=0, epoch=epoch)
        mirror = bool(mirrored(numbers, seed=0, epoch=epoch)[0])
        augmentation.fill(place, image, draw, mirror=mirror)
        (others if augmentation.shape(draw) else seen).append(place)
    name = printable(source.name(index))
    return AugmentedImage(name, resize(image, size), tuple(seen), tuple(others))
