"""An image on its way to the network: its size, its mirror image, and what is random about it."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray


def resize(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The image at `size` × `size` pixels, averaged over areas; the same object if it has them."""
    if image.shape[:2] == (size, size):
        return image
    return np.asarray(cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA), np.uint8)


def shrunk(image: NDArray[np.uint8], times: int) -> NDArray[np.uint8]:
    """The image at a whole fraction of its size, averaged over areas."""
    size = (image.shape[1] // times, image.shape[0] // times)
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def fit_within(image: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """The image with its longer side at most `longest`, averaged over areas."""
    height, width = image.shape[:2]
    if max(height, width) <= longest:
        return image
    scale = longest / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def coarsen(place: NDArray[np.uint8], side: int, *, down: int, up: int) -> None:
    """Scale a square image down to `side` and up again where it stands, by OpenCV's methods."""
    coarse = cv2.resize(place, (side, side), interpolation=down)
    cv2.resize(coarse, place.shape[:2], place, interpolation=up)


def fit_into(place: NDArray[np.uint8], image: NDArray[np.uint8], *, mirror: bool = False) -> None:
    """Put an image into a square place of a batch, at its size and mirrored if asked for."""
    if image.shape != place.shape:
        image = resize(image, len(place))
    if mirror:
        mirror_into(place, image)
    else:
        place[...] = image


def mirror_into(place: NDArray[np.uint8], image: NDArray[np.uint8]) -> None:
    """Put an image, mirrored, into a place of its own size."""
    # Ten times as fast as image[:, ::-1], which copies pixel by pixel.
    cv2.flip(image, 1, dst=place)


def mirrored(indices: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.bool_]:
    """Which images are shown mirrored in an epoch: half of them, another half each epoch.

    A hash of (seed, epoch, index), so that it depends neither on the order in which images are
    read nor on how many threads read them, and a resumed run makes the same choice.
    """
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    return (_mix(indices.astype(np.uint64) ^ key) >> np.uint64(63)).astype(np.bool_)


def uniform(
    indices: NDArray[np.int64], count: int, *, seed: int, epoch: int
) -> NDArray[np.float64]:
    """So many random numbers in [0, 1) for each image: (images, count), a hash as in `mirrored`."""
    key = np.random.SeedSequence([seed, epoch, 1]).generate_state(1, np.uint64)
    states = _mix(indices.astype(np.uint64) ^ key)[:, None]
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (_mix(states + steps) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """An avalanche over 64 bits: multiply by large odd numbers, fold the upper half down."""
    for multiplier in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93):
        values = values * np.uint64(multiplier)
        values = values ^ (values >> np.uint64(32))
    return values * np.uint64(0xD6E8FEB86659FD93)
