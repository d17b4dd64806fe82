"""Reading batches of images into memory, and the processes that do nothing else.

Nothing here needs torch, whose import would take longer than the start of a reading process.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.augmentation import Augmentation, Draw
from sphereface2.data.sources.source import BadImage, Source, bad_images
from sphereface2.data.transforms import fit_into, mirror_into, mirrored
from sphereface2.workers import sendable

_BYTES = np.dtype(np.uint8)
STOPS = (signal.SIGINT, signal.SIGTERM)
KILLED = 128  # the exit code of a server of which a worker was killed, less the signal's number

Order = tuple[int, int]
"""Which place to fill, with images of which epoch; their numbers are in the place."""
Report = tuple[int, Exception | None, tuple[BadImage, ...], int]
"""Which place, what went wrong, images that turned out to be unreadable, and the process."""


class BatchReader:
    """Reads images of a source at `size` × `size` pixels, mirrored and augmented by a hash."""

    def __init__(
        self,
        source: Source,
        *,
        size: int,
        flip: bool,
        seed: int,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.source = source
        self.size = size
        self.flip = flip
        self.seed = seed
        self.augmentation = augmentation

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
        augmentation = self.augmentation
        draws: Iterator[Draw] = iter(())
        if augmentation is not None:
            draws = iter(augmentation.draw(indices, seed=self.seed, epoch=epoch))
        # One loop and few calls: whatever is done for each image is paid for in images per second.
        labels, source, index = [], self.source, -1
        try:
            for place, index, flip in zip(rows, indices.tolist(), flips, strict=True):
                if is_closed():
                    break
                image, label = source[index]
                if augmentation is not None:
                    _require_picture(image, index)
                    draw = next(draws)
                    augmentation.fill(place, image, draw, mirror=flip)
                    if label >= 0:
                        label += augmentation.shape(draw) * source.num_classes
                elif image.shape != place.shape or image.dtype != _BYTES:
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


class SharedBatches:
    """Memory for the images and the labels of some batches, which a process can be given.

    It has no name and needs no space in /dev/shm: a process that is given the open file `number`
    under the same number, and this object by pickle, has the same memory.
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


@dataclass(frozen=True)
class ReadingServer:
    """Forks a worker for each connection, and ends when all of them are gone.

    It is a program of its own, not a fork of the training: in the fork of a process with threads,
    OpenCV may wait forever for a lock that a thread held which is not there. The server has no
    threads and may fork, so its workers have the arrays of the source in common.
    """

    reader: BatchReader
    batches: SharedBatches
    connections: tuple[int, ...]
    """Open sockets, by their numbers."""

    def run(self) -> None:
        """Serve until nobody wants any more; never returns."""
        # A stop is for the training to obey: it may still want the batches of its last step.
        for stop in STOPS:
            signal.signal(stop, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else there would be no end to see
        cv2.setNumThreads(0)  # as many workers as there are processors to use are busy already
        workers = set()
        for place, number in enumerate(self.connections):
            worker = os.fork()
            if worker == 0:
                # The others' ends would keep their connections open when they are gone.
                for other in self.connections[place + 1 :]:
                    os.close(other)
                self._work(Connection(number))
            os.close(number)
            workers.add(worker)
        while workers:
            worker, status = os.wait()
            workers.discard(worker)
            code = os.waitstatus_to_exitcode(status)
            if code != 0:
                for other in workers:
                    os.kill(other, signal.SIGKILL)
                os._exit(KILLED - code if code < 0 else code)
        os._exit(0)  # the training waits, and there is nothing to put away

    def _work(self, connection: Connection[Any, Any]) -> None:
        """Read what is asked for until the other side is gone; never returns."""
        try:
            self._read_orders(connection)
        except (EOFError, ConnectionError):
            pass
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _read_orders(self, connection: Connection[Any, Any]) -> None:
        source, batches = self.reader.source, self.batches
        known = {bad.index for bad in bad_images(source)}
        while True:
            order: Order = connection.recv()
            place, epoch = order
            error: Exception | None = None
            try:
                labels = self.reader.read(
                    batches.images[place],
                    batches.numbers[place],
                    epoch=epoch,
                    is_closed=batches.is_closed,
                )
                if batches.is_closed():
                    return  # before the end of the batch, perhaps, but nobody wants it
                batches.numbers[place] = labels
            except Exception as found:
                error = sendable(found)
            new = tuple(bad for bad in bad_images(source) if bad.index not in known)
            known.update(bad.index for bad in new)
            report: Report = (place, error, new, os.getpid())
            connection.send(report)
