"""Batches of training images: which images stand in which batch, and their decoding in threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sphereface2.data.source import Source
from sphereface2.data.transforms import mirrored, resize


class BatchPlan:
    """Which images stand in which batch: a pure function of (seed, epoch, step).

    With `images_per_person` = 1 an epoch is a random order of all images, cut into batches; what
    does not fill a last batch is left out. With n > 1 each person's images are shuffled and cut
    into groups of n (a last group is filled up with images of the same person, repeated where
    there are fewer than n), and a batch is `batch_size` / n groups, shuffled over all people. So
    people come up in proportion to their images, and one with many of them may stand in a batch
    with more than one group. Images of label -1 form groups among themselves; they remain
    strangers to each other, for a head knows that two labels of -1 are no pair.
    """

    def __init__(
        self,
        labels: NDArray[np.int64],
        *,
        batch_size: int,
        images_per_person: int = 1,
        seed: int = 0,
    ) -> None:
        if batch_size % images_per_person:
            raise ValueError(
                f"training.batch_size={batch_size} is no multiple of the {images_per_person} "
                "images a person that the head needs in a batch"
            )
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


@dataclass(frozen=True, eq=False)
class Batch:
    """The images and labels of one step."""

    images: torch.Tensor
    """uint8 (batch, size, size, 3), RGB."""
    labels: torch.Tensor
    """int64 (batch,)."""
    wait_seconds: float
    """How long the training waited for this batch."""


class Loader:
    """Reads the batches of a plan ahead of the training, in `workers` threads.

    Threads suffice, for decoding and resizing happen outside Python's lock. With no workers each
    batch is read when it is asked for. With `share` = (k, n) it reads the k-th (from 0) of n equal
    parts of each batch only, which put together in order are the batch.
    """

    def __init__(
        self,
        source: Source,
        plan: BatchPlan,
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

    def batches(self, start: int, stop: int) -> Generator[Batch, None, None]:
        """The batches of the steps `start` to `stop` - 1, counted from the start of training.

        Close the iterator (or use it up) to end its threads; an error while reading an image is
        raised here.
        """
        steps = self._indices(start, stop)
        if self.workers == 0:
            for epoch, indices in steps:
                began = time.perf_counter()
                images, labels = self._read(epoch, indices, threading.Event())
                yield Batch(images, labels, time.perf_counter() - began)
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
        batch = np.empty((len(indices), self.size, self.size, 3), np.uint8)
        labels = np.empty(len(indices), np.int64)
        flips = np.zeros(len(indices), np.bool_)
        if self.flip:
            flips = mirrored(indices, seed=self.plan.seed, epoch=epoch)
        for row, index in enumerate(indices.tolist()):
            if closed.is_set():
                break  # nobody waits for this batch any more
            image, labels[row] = self._read_image(index)
            batch[row] = image[:, ::-1] if flips[row] else image
        images, targets = torch.from_numpy(batch), torch.from_numpy(labels)
        return (images.pin_memory(), targets.pin_memory()) if self.pin_memory else (images, targets)

    def _read_image(self, index: int) -> tuple[NDArray[np.uint8], int]:
        try:
            image, label = self.source[index]
        except (ValueError, OSError):
            raise  # the source's own sentence, with the path
        except Exception as error:
            raise RuntimeError(f"reading image {index} of the data failed: {error!r}") from error
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(
                f"image {index} of the data is {image.dtype} of shape {image.shape}, not uint8 of "
                "shape (height, width, 3)"
            )
        return resize(image, self.size), label


def _wait(future: Future[tuple[torch.Tensor, torch.Tensor]]) -> Batch:
    began = time.perf_counter()
    images, labels = future.result()
    return Batch(images, labels, time.perf_counter() - began)


def _check_labels(source: Source) -> None:
    wrong = np.flatnonzero((source.labels < -1) | (source.labels >= source.num_classes))
    if len(wrong):
        raise ValueError(
            f"image {wrong[0]} of the data has label {source.labels[wrong[0]]}, outside 0 to "
            f"{source.num_classes - 1} (-1: no known class)"
        )
