"""Batches of training images, read ahead of the training."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sphereface2.data.augmentation import Augmentation
from sphereface2.data.loader.batch_plan import Plan, multiples_near
from sphereface2.data.loader.batch_reader import BatchReader
from sphereface2.data.loader.readers import (
    CAN_SHARE,
    BatchMemory,
    ReadingProcesses,
    ReadingThreads,
    UnsendableSourceError,
)
from sphereface2.data.sources.source import Source, suits_processes

Readers = ReadingProcesses | ReadingThreads
WorkerKind = Literal["auto", "processes", "threads"]


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
    """How much the processors did for this process and its readers in that time."""


class Loader:
    """Reads the batches of a plan ahead of the training, in `workers` processes or threads.

    By default files are decoded in processes on Linux; all else is read in threads. With no
    workers each batch is read when it is asked for. With `share` = (k, n) it reads the k-th
    (from 0) of n equal parts of each batch only, which put together in order are the batch.
    """

    def __init__(
        self,
        source: Source,
        plan: Plan,
        *,
        size: int,
        flip: bool = True,
        augmentation: Augmentation | None = None,
        workers: int = 2,
        worker_kind: WorkerKind = "auto",
        pin_memory: bool = False,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        _check_labels(source)
        if plan.batch_size % share[1]:
            raise ValueError(
                f"training.batch_size={plan.batch_size} cannot be shared out evenly to {share[1]} "
                f"ranks; take {multiples_near(plan.batch_size, share[1])}"
            )
        if worker_kind == "processes" and not CAN_SHARE:
            raise ValueError(
                "training.worker_kind=processes needs Linux; use training.worker_kind=threads"
            )
        self._batch_size = plan.batch_size // share[1]
        self._share = slice(share[0] * self._batch_size, (share[0] + 1) * self._batch_size)
        self.source = source
        self.plan = plan
        self.workers = workers
        self.worker_kind = worker_kind
        self.pin_memory = pin_memory
        self.has_processes = workers > 0 and (
            worker_kind == "processes"
            or (worker_kind == "auto" and CAN_SHARE and suits_processes(source))
        )
        self._reader = BatchReader(
            source, size=size, flip=flip, seed=plan.seed, augmentation=augmentation
        )
        self._memory = BatchMemory(self._reader.shape(self._batch_size), pin_memory=pin_memory)

    def batches(self, start: int, stop: int) -> Generator[Batch, None, None]:
        """The batches of the steps `start` to `stop` - 1, counted from the start of training.

        Close the iterator (or use it up) to end its workers; an error while reading an image is
        raised here.
        """
        readers = self._readers()
        asked = 0
        try:
            for epoch, indices in self._indices(start, stop):
                readers.ask(indices, epoch=epoch)
                asked += 1
                if asked > readers.ahead:
                    yield _wait(readers)
                    asked -= 1
            for _ in range(asked):
                yield _wait(readers)
        finally:
            readers.close()

    def _readers(self) -> Readers:
        if self.has_processes:
            try:
                return ReadingProcesses(
                    self._reader,
                    workers=self.workers,
                    batch_size=self._batch_size,
                    pin_memory=self.pin_memory,
                )
            except UnsendableSourceError:
                if self.worker_kind == "processes":
                    raise
                self.has_processes = False  # a source of the user's own, which threads can read
        return ReadingThreads(self._reader, workers=self.workers, memory=self._memory)

    def _indices(self, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        per_epoch = self.plan.steps_per_epoch
        step = start
        while step < stop:
            epoch = step // per_epoch
            for indices in self.plan.epoch(epoch)[step % per_epoch :][: stop - step]:
                yield epoch, indices[self._share]
                step += 1


def _wait(readers: Readers) -> Batch:
    began, cpu_began = time.perf_counter(), readers.cpu_seconds()
    images, labels = readers.take()
    waited, worked = time.perf_counter() - began, readers.cpu_seconds() - cpu_began
    return Batch(images, labels, waited, worked)


def _check_labels(source: Source) -> None:
    wrong = np.flatnonzero((source.labels < -1) | (source.labels >= source.num_classes))
    if len(wrong):
        raise ValueError(
            f"image {wrong[0]} of the data has label {source.labels[wrong[0]]}, outside 0 to "
            f"{source.num_classes - 1} (-1: no known class)"
        )
