"""Batches read in threads or when they are taken; `reading_processes` has the same methods."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from sphereface2.data.loader.batch_reader import BatchReader

Read = tuple[torch.Tensor, torch.Tensor]
"""The images and the labels of a batch."""


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


class ReadingThreads:
    """Reads every batch in one of `workers` threads; without any, at the moment it is taken.

    Files are read and images decoded outside Python's lock, but the threads still wait for it,
    and for each other, between images.

    ahead: how many batches should be asked for before the first is taken, to keep all busy
    """

    def __init__(self, reader: BatchReader, *, workers: int, memory: BatchMemory) -> None:
        # A batch more than there are threads: each has work while the training takes one.
        self.ahead = workers
        self._reader = reader
        self._memory = memory
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="loader") if workers else None
        self._asked: deque[Future[Read] | tuple[NDArray[np.int64], int]] = deque()

    def ask(self, indices: NDArray[np.int64], *, epoch: int) -> None:
        """Have the images of these numbers read."""
        if self._pool is None:
            self._asked.append((indices, epoch))
        else:
            self._asked.append(self._pool.submit(self._read, indices, epoch))

    def take(self) -> Read:
        """The first batch asked for and not taken yet; waits for it, and raises its error."""
        asked = self._asked.popleft()
        return asked.result() if isinstance(asked, Future) else self._read(*asked)

    def cpu_seconds(self) -> float:
        """The processor time of this process and of all readers so far."""
        return time.process_time()

    def close(self) -> None:
        """End the reading; what was asked for and not taken is lost."""
        self._closed.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, indices: NDArray[np.int64], epoch: int) -> Read:
        images = self._memory.take()
        labels = torch.empty(len(indices), dtype=torch.int64, pin_memory=self._memory.pin_memory)
        found = self._reader.read(
            images.numpy(), indices, epoch=epoch, is_closed=self._closed.is_set
        )
        if len(found) == len(indices):  # else nobody waits for this batch any more
            labels.numpy()[:] = found
        return images, labels
