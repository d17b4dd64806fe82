"""Reading the images of one batch into their places: the same in threads and in processes."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from sphereface2.data.sources.source import Source
from sphereface2.data.transforms import fit_into, mirror_into, mirrored

_BYTES = np.dtype(np.uint8)


class BatchReader:
    """Reads images of a source at `size` × `size` pixels, mirrored by a hash of the seed."""

    def __init__(self, source: Source, *, size: int, flip: bool, seed: int) -> None:
        self.source = source
        self.size = size
        self.flip = flip
        self.seed = seed

    def shape(self, images: int) -> tuple[int, int, int, int]:
        """The shape of so many images."""
        return images, self.size, self.size, 3

    def read(
        self,
        rows: NDArray[np.uint8],
        indices: NDArray[np.int64],
        *,
        epoch: int,
        is_closed: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Fill `rows` with the images of these numbers; returns their labels.

        Stops short as soon as `is_closed` says that nobody waits for them any more.
        """
        flips = [False] * len(indices)
        if self.flip:
            flips = mirrored(indices, seed=self.seed, epoch=epoch).tolist()
        # One loop and few calls: whatever is done for each image is paid for in images a second.
        labels, source, index = [], self.source, -1
        try:
            for place, index, flip in zip(rows, indices.tolist(), flips, strict=True):
                if is_closed():
                    break
                image, label = source[index]
                if image.shape != place.shape or image.dtype != _BYTES:
                    _require_picture(image, index)
                    fit_into(place, image, mirror=flip)
                elif flip:
                    mirror_into(place, image)
                else:
                    place[...] = image
                labels.append(label)
        except (ValueError, OSError):
            raise  # the source's own sentence, with the path
        except Exception as error:
            raise RuntimeError(f"reading image {index} of the data failed: {error!r}") from error
        return labels


def _require_picture(image: NDArray[np.uint8], index: int) -> None:
    if image.dtype != _BYTES or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f"image {index} of the data is {image.dtype} of shape {image.shape}, not uint8 of "
            "shape (height, width, 3)"
        )


# Memory for the images of batches that is used again once nobody holds the batch any more.


class BatchMemory:
    """Memory for batches of one shape.

    Fresh memory costs as much as the copying: the system hands it out page by page, and threads
    wait for each other at that. Pinned memory torch itself uses again.
    """

    def __init__(self, shape: tuple[int, ...], *, pin_memory: bool) -> None:
        self.shape = shape
        self.pin_memory = pin_memory
        self._free: deque[NDArray[np.uint8]] = deque()

    def take(self) -> torch.Tensor:
        """A tensor for the images of a batch, of any content."""
        if self.pin_memory:
            return torch.empty(self.shape, dtype=torch.uint8, pin_memory=True)
        try:
            memory = self._free.pop()  # the last one given back: some of it may be in a cache
        except IndexError:
            memory = np.empty(self.shape, np.uint8)
        return lent(memory, lambda: self._free.append(memory))


def lent(memory: NDArray[np.uint8], give_back: Callable[[], None]) -> torch.Tensor:
    """The memory as a tensor; `give_back` is called when it and every view of it are gone."""
    view = memory.view()
    weakref.finalize(view, give_back).atexit = False
    return torch.from_numpy(view)  # holds on to the view as long as anybody to the tensor


# Places for batches in memory that several processes have in common.


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
