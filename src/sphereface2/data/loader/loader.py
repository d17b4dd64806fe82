"""Batches of training images: which images are in which, and how they are read ahead."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sphereface2.data.augmentation import Augmentation
from sphereface2.data.loader.batch_reader import BatchReader
from sphereface2.data.loader.readers import (
    CAN_SHARE,
    BatchMemory,
    ReadingProcesses,
    ReadingThreads,
    UnsendableSourceError,
)
from sphereface2.data.sources.source import Source, suits_processes


class BatchPlan:
    """Which images are in which batch: a pure function of (seed, epoch, step).

    With `images_per_person` = 1 an epoch is a random order of all images, cut into batches; what
    does not fill a last batch is left out. With n > 1 each person's images are shuffled and cut
    into groups of n (a last group is filled up with images of the same person, repeated where
    there are fewer than n), and a batch is `batch_size` / n groups, shuffled over all people. So
    people come up in proportion to their images, and one with many of them may be in a batch
    with more than one group. Images of label -1 form groups among themselves; they remain
    strangers to each other, since a head knows that two labels of -1 are not a pair.
    """

    def __init__(
        self,
        labels: NDArray[np.int64],
        *,
        batch_size: int,
        images_per_person: int = 1,
        seed: int = 0,
    ) -> None:
        require_whole_groups(batch_size, images_per_person)
        self.labels = labels
        self.batch_size = batch_size
        self.images_per_person = images_per_person
        self.seed = seed
        _, self._counts = np.unique(labels, return_counts=True)
        self._groups = -(-self._counts // images_per_person)
        images = int(self._groups.sum()) * images_per_person
        self.steps_per_epoch = images // batch_size
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"training.batch_size={batch_size} is more than the {len(labels)} images of the "
                f"data; set it to {images} or less"
            )

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """The indices of all batches of an epoch: (steps_per_epoch, batch_size)."""
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(len(self.labels))
        if self.images_per_person > 1:
            order = self._in_groups(order, generator)
        used = self.steps_per_epoch * self.batch_size
        return order[:used].reshape(self.steps_per_epoch, self.batch_size).astype(np.int64)

    def _in_groups(
        self, order: NDArray[np.int64], generator: np.random.Generator
    ) -> NDArray[np.int64]:
        by_person = order[np.argsort(self.labels[order], kind="stable")]
        slots = self._groups * self.images_per_person
        # For every slot: its place within its person, and where that person's images begin.
        place = np.arange(slots.sum()) - np.repeat(np.cumsum(slots) - slots, slots)
        first = np.repeat(np.cumsum(self._counts) - self._counts, slots)
        images = by_person[first + place % np.repeat(self._counts, slots)]
        groups = images.reshape(-1, self.images_per_person)
        shuffled: NDArray[np.int64] = groups[generator.permutation(len(groups))].ravel()
        return shuffled


def multiples_near(size: int, unit: int) -> str:
    """The multiples of `unit` on both sides of `size`, to advise another batch size: 63 or 66."""
    below, above = size // unit * unit, -(-size // unit) * unit
    return f"{below} or {above}" if below else str(above)


def require_whole_groups(batch_size: int, images_per_person: int) -> None:
    """Refuse a batch that cannot be filled with groups of one person each."""
    if batch_size % images_per_person:
        raise ValueError(
            f"training.batch_size={batch_size} is not a multiple of the {images_per_person} images "
            "per person that the head needs in a batch; take "
            f"{multiples_near(batch_size, images_per_person)}"
        )


class MixedPlan:
    """The batches of a plan with strangers among them, as many in each.

    An epoch shows the known images as `known` plans them. The strangers are `strangers` further
    images, with the indices from `first` on; `per_batch` of them are in each batch. They come in
    rounds: each round is a random order of all of them, and an epoch takes up where the one before
    has ended. So another subset comes up in each epoch where there are many, all of them come up
    several times where there are few, and over a training all come up equally often.

    Within a batch they are spread evenly, between the groups that a head compares, so that the
    shares of all ranks and micro-batches hold as many of them as can be.
    """

    def __init__(self, known: BatchPlan, *, first: int, strangers: int, per_batch: int) -> None:
        assert per_batch > 0
        assert per_batch % known.images_per_person == 0
        self.known = known
        self.first = first
        self.strangers = strangers
        self.per_batch = per_batch
        self.batch_size = known.batch_size + per_batch
        self.seed = known.seed
        self.steps_per_epoch = known.steps_per_epoch

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """The indices of all batches of an epoch: (steps_per_epoch, batch_size)."""
        needed = self.steps_per_epoch * self.per_batch
        indices = self.first + self._stream(epoch * needed, (epoch + 1) * needed)
        batches = np.empty((self.steps_per_epoch, self.batch_size), np.int64)
        is_stranger = self._places()
        batches[:, is_stranger] = indices.reshape(self.steps_per_epoch, self.per_batch)
        batches[:, ~is_stranger] = self.known.epoch(epoch)
        return batches

    def _stream(self, start: int, stop: int) -> NDArray[np.int64]:
        """The strangers at the places `start` to `stop` - 1 of all rounds, one after another."""
        rounds = range(start // self.strangers, -(-stop // self.strangers))
        # A third number beside those of the known images' order: another sequence.
        orders = [
            np.random.default_rng([self.seed, each, 1]).permutation(self.strangers)
            for each in rounds
        ]
        offset = rounds.start * self.strangers
        return np.concatenate(orders)[start - offset : stop - offset].astype(np.int64)

    def _places(self) -> NDArray[np.bool_]:
        """Which places of a batch are the strangers': every so many groups one of theirs."""
        size = self.known.images_per_person
        groups, theirs = self.batch_size // size, self.per_batch // size
        # The count of theirs among the first n groups is n * theirs / groups, rounded down.
        counts = np.arange(groups + 1) * theirs // groups
        return np.repeat(np.diff(counts).astype(np.bool_), size)


Plan = BatchPlan | MixedPlan
"""The batches of a training, known without reading an image."""


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
