"""Those who read batches for the loader, whoever they are."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sphereface2.data.loader.batch_reader import BatchMemory, BatchReader

Read = tuple[torch.Tensor, torch.Tensor]
"""The images and the labels of a batch."""


class Readers(Protocol):
    """Those who read batches: told which, they give them back in that order."""

    ahead: int
    """How many batches should be asked for before the first is taken, to keep all busy."""

    def ask(self, indices: NDArray[np.int64], *, epoch: int) -> None:
        """Have the images of these numbers read."""
        ...

    def take(self) -> Read:
        """The first batch asked for and not taken yet; waits for it, and raises its error."""
        ...

    def cpu_seconds(self) -> float:
        """The processor time of this process and of all readers so far."""
        ...

    def close(self) -> None:
        """End the reading; what was asked for and not taken is lost."""
        ...


# Batches read in threads, or by whoever asks for them.


class ReadingThreads:
    """Reads every batch in one of `workers` threads; without any, at the moment it is taken.

    Files are read and images decoded outside Python's lock, but the threads still wait for it,
    and for each other, between images.
    """

    def __init__(
        self, reader: BatchReader, *, workers: int, memory: BatchMemory, pin_memory: bool
    ) -> None:
        # A batch more than there are threads: each has work while the training takes one.
        self.ahead = workers
        self._reader = reader
        self._memory = memory
        self._pin_memory = pin_memory
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="loader") if workers else None
        self._asked: deque[Future[Read] | tuple[NDArray[np.int64], int]] = deque()

    def ask(self, indices: NDArray[np.int64], *, epoch: int) -> None:
        if self._pool is None:
            self._asked.append((indices, epoch))
        else:
            self._asked.append(self._pool.submit(self._read, indices, epoch))

    def take(self) -> Read:
        asked = self._asked.popleft()
        return asked.result() if isinstance(asked, Future) else self._read(*asked)

    def cpu_seconds(self) -> float:
        return time.process_time()

    def close(self) -> None:
        self._closed.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, indices: NDArray[np.int64], epoch: int) -> Read:
        images = self._memory.take()
        labels = torch.empty(len(indices), dtype=torch.int64, pin_memory=self._pin_memory)
        found = self._reader.read(
            images.numpy(), indices, epoch=epoch, is_closed=self._closed.is_set
        )
        if len(found) == len(indices):  # else nobody waits for this batch any more
            labels.numpy()[:] = found
        return images, labels
