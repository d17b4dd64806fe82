"""Places for batches in memory that several processes have in common."""

from __future__ import annotations

import math
import mmap
import os

import numpy as np
from numpy.typing import NDArray


class SharedBatches:
    """Memory for the images and the labels of some batches, which a process can be given.

    It has no name and needs no space in /dev/shm: whoever is given the open file `number` under
    the same number, and this object by pickle, has the same memory.
    """

    images: NDArray[np.uint8]
    """A batch in each place: (places, batch, height, width, 3)."""
    numbers: NDArray[np.int64]
    """The numbers of the images on the way there, their labels on the way back: (places, batch)."""

    def __init__(self, *, places: int, shape: tuple[int, ...]) -> None:
        self.places = places
        self.shape = shape
        self.number = os.memfd_create("sphereface2-batches")
        os.ftruncate(self.number, self._size)
        self._map()

    def is_closed(self) -> bool:
        """Whether nobody wants any more batches."""
        return self._memory[-1] != 0

    def close(self) -> None:
        """Say to all who have this memory that nobody wants any more batches."""
        self._memory[-1] = 1

    def __getstate__(self) -> dict[str, object]:
        return {"places": self.places, "shape": self.shape, "number": self.number}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._map()

    @property
    def _size(self) -> int:
        labels = self.places * self.shape[0] * np.dtype(np.int64).itemsize
        return labels + self.places * math.prod(self.shape) + 1

    def _map(self) -> None:
        self._memory = mmap.mmap(self.number, self._size)
        count = self.places * self.shape[0]
        numbers = np.frombuffer(self._memory, np.int64, count)
        images = np.frombuffer(self._memory, np.uint8, offset=numbers.nbytes)[:-1]
        self.numbers = numbers.reshape(self.places, self.shape[0])
        self.images = images.reshape(self.places, *self.shape)
