"""Images that say which they are, and come in several ways.

Without torch and pytest: processes that read them import this.
"""

import time

import numpy as np
from numpy.typing import NDArray

from sphereface2.workers import Progress, unseen


class Numbers:
    """Images that carry their own index: the left half says which one, the right half is white."""

    image_size: int | None = None

    def __init__(self, labels: list[int], *, size: int = 4, broken: int | None = None) -> None:
        self.labels: NDArray[np.int64] = np.array(labels, np.int64)
        self.num_classes = 1 + max(labels)
        self.size = size
        self.broken = broken
        self.reads = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        self.reads += 1
        if index == self.broken:
            raise KeyError("a bug of the source")
        image = np.full((self.size, self.size, 3), 255, np.uint8)
        image[:, : self.size // 2] = index % 256
        return image, int(self.labels[index])

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None: ...


class Unwelcome(Numbers):
    """Images that can be sent, but not received."""

    def __setstate__(self, state: object) -> None:
        raise RuntimeError("not here")


class Endless(Numbers):
    """Of all images only the one of number `ready` ever comes."""

    ready = -1

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        if index != self.ready:
            time.sleep(600)
        return super().__getitem__(index)


class Pictures(Numbers):
    """Images that are smooth and coloured, each another."""

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        return picture(self.size, index), int(self.labels[index])


def picture(size: int, number: int) -> NDArray[np.uint8]:
    """A sum of slow waves in each channel, of middling brightness."""
    generator = np.random.default_rng(number)
    y, x = np.mgrid[:size, :size] / size
    waves = np.zeros((size, size, 3))
    for channel in range(3):
        for _ in range(3):
            across, down, phase = generator.uniform(-3, 3, 3)
            waves[..., channel] += np.cos(across * x + down * y + phase)
    return np.rint(128 + 25 * waves).astype(np.uint8)
