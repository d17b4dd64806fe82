"""Batches of training images, read ahead of the training in threads."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sphereface2.data.batch_plan import Plan
from sphereface2.data.source import Source
from sphereface2.data.transforms import fit_into, mirrored

_BYTES = np.dtype(np.uint8)


@dataclass(frozen=True, eq=False)
class Batch:
    """The images and labels of one step."""

    images: torch.Tensor
    """uint8 (batch, size, size, 3), RGB."""
    labels: torch.Tensor
    """int64 (batch,)."""
    wait_seconds: float
    """How long the training waited for this batch."""
    wait_cpu_seconds: float = 0.0
    """How much the processors did for this process in that time, over all threads."""


class Loader:
    """Reads the batches of a plan ahead of the training, in `workers` threads.

    Threads suffice, for files are read and images decoded outside Python's lock. A thread reads
    one whole batch, so that threads seldom wait for each other. With no workers each batch is read
    when it is asked for. With `share` = (k, n) it reads the k-th (from 0) of n equal parts of each
    batch only, which put together in order are the batch.
    """

    def __init__(
        self,
        source: Source,
        plan: Plan,
        *,
        size: int,
        flip: bool = True,
        workers: int = 2,
        pin_memory: bool = False,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        _check_labels(source)
        if plan.batch_size % share[1]:
            raise ValueError(
                f"training.batch_size={plan.batch_size} cannot be shared out evenly to {share[1]} "
                "ranks; take a multiple of their number"
            )
        size_of_share = plan.batch_size // share[1]
        self._share = slice(share[0] * size_of_share, (share[0] + 1) * size_of_share)
        self.source = source
        self.plan = plan
        self.size = size
        self.flip = flip
        self.workers = workers
        self.pin_memory = pin_memory
        self._memory = _BatchMemory(size, pin_memory=pin_memory)

    def batches(self, start: int, stop: int) -> Generator[Batch, None, None]:
        """The batches of the steps `start` to `stop` - 1, counted from the start of training.

        Close the iterator (or use it up) to end its threads; an error while reading an image is
        raised here.
        """
        steps = self._indices(start, stop)
        if self.workers == 0:
            for epoch, indices in steps:
                began = _now()
                images, labels = self._read(epoch, indices, threading.Event())
                yield Batch(images, labels, *_since(began))
            return
        closed = threading.Event()
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="loader")
        pending: deque[Future[tuple[torch.Tensor, torch.Tensor]]] = deque()
        try:
            # A batch more than there are threads: each has work while the training takes one.
            for epoch, indices in steps:
                pending.append(pool.submit(self._read, epoch, indices, closed))
                if len(pending) > self.workers:
                    yield _wait(pending.popleft())
            while pending:
                yield _wait(pending.popleft())
        finally:
            closed.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _indices(self, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        per_epoch = self.plan.steps_per_epoch
        step = start
        while step < stop:
            epoch = step // per_epoch
            for indices in self.plan.epoch(epoch)[step % per_epoch :][: stop - step]:
                yield epoch, indices[self._share]
                step += 1

    def _read(
        self, epoch: int, indices: NDArray[np.int64], closed: threading.Event
    ) -> tuple[torch.Tensor, torch.Tensor]:
        images = self._memory.take(len(indices))
        labels = torch.empty(len(indices), dtype=torch.int64, pin_memory=self.pin_memory)
        rows, targets = images.numpy(), labels.numpy()
        flips = [False] * len(indices)
        if self.flip:
            flips = mirrored(indices, seed=self.plan.seed, epoch=epoch).tolist()
        # One loop and few calls: whatever is done for each image is paid for in images a second.
        found, source, index = [], self.source, -1
        try:
            for place, index, flip in zip(rows, indices.tolist(), flips, strict=True):
                if closed.is_set():
                    return images, labels  # nobody waits for this batch any more
                image, label = source[index]
                if image.shape != place.shape or image.dtype != _BYTES:
                    _require_picture(image, index)
                    fit_into(place, image, mirror=flip)
                elif flip:
                    fit_into(place, image, mirror=True)
                else:
                    place[...] = image
                found.append(label)
        except (ValueError, OSError):
            raise  # the source's own sentence, with the path
        except Exception as error:
            raise RuntimeError(f"reading image {index} of the data failed: {error!r}") from error
        targets[:] = found
        return images, labels


class _BatchMemory:
    """Memory for the images of batches, used again once nobody holds a batch any more.

    Fresh memory costs as much as the copying: the system hands it out page by page, and threads
    wait for each other at that. Pinned memory torch itself uses again.
    """

    def __init__(self, size: int, *, pin_memory: bool) -> None:
        self.size = size
        self.pin_memory = pin_memory
        self._free: deque[NDArray[np.uint8]] = deque()

    def take(self, count: int) -> torch.Tensor:
        """A tensor for the images of a batch, of any content."""
        shape = (count, self.size, self.size, 3)
        if self.pin_memory:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        try:
            memory = self._free.pop()  # the last one given back: some of it may be in a cache
        except IndexError:
            memory = np.empty(shape, np.uint8)
        # The tensor, and every view of it, holds on to `lent`: its end says that all are gone.
        lent = memory.view()
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return torch.from_numpy(lent)


def _wait(future: Future[tuple[torch.Tensor, torch.Tensor]]) -> Batch:
    began = _now()
    images, labels = future.result()
    return Batch(images, labels, *_since(began))


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(began: tuple[float, float]) -> tuple[float, float]:
    """The time that has passed, and that the processors worked for this process."""
    return time.perf_counter() - began[0], time.process_time() - began[1]


def _require_picture(image: NDArray[np.uint8], index: int) -> None:
    if image.dtype != _BYTES or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f"image {index} of the data is {image.dtype} of shape {image.shape}, not uint8 of "
            "shape (height, width, 3)"
        )


def _check_labels(source: Source) -> None:
    wrong = np.flatnonzero((source.labels < -1) | (source.labels >= source.num_classes))
    if len(wrong):
        raise ValueError(
            f"image {wrong[0]} of the data has label {source.labels[wrong[0]]}, outside 0 to "
            f"{source.num_classes - 1} (-1: no known class)"
        )
