"""Memory for the images of batches that is used again once nobody holds the batch any more."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray


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
