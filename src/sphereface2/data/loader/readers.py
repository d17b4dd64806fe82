"""Batches read ahead of the training, in threads or in processes that share memory with it.

The processes are forks of a program without torch: they start in milliseconds and put pixels where
the training takes them (docs/data.md has what that gains).
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sphereface2.data.loader.batch_reader import (
    KILLED,
    STOPS,
    BatchReader,
    Order,
    ReadingServer,
    Report,
    SharedBatches,
)
from sphereface2.data.sources.source import exclude
from sphereface2.workers import Program, signal_name

Read = tuple[torch.Tensor, torch.Tensor]
"""The images and the labels of a batch."""

CAN_SHARE = sys.platform == "linux"
"""Whether processes can be given memory without a name, and fork safely."""

_AHEAD = 2  # batches asked of each process: it has the next one when it is done with one
_HELD = 3  # more places: for one just finished, one in training, and one free to lend again
_LAST_IMAGE = 1.0  # seconds for an image that is being read to be done with

_START = """
import os, pickle, sys
try:
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        sys.path[:] = pickle.load(file)
        server = pickle.load(file)
except Exception as error:
    sys.exit(f"sphereface2: a process that reads images cannot start: {error!r}")
server.run()
"""
# The libraries' own threads would be one too many for the server, which forks.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class BatchMemory:
    """Memory for batches of one shape, used again once nobody holds the batch any more.

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


class UnsendableSourceError(ValueError):
    """A source that cannot be given to another process."""


class ReadingProcesses:
    """Reads every batch in one of `workers` processes, which have the source as it is now.

    Threads have to share Python's lock, with each other and with the training; processes do not.
    What they read lies in shared memory, so that nothing is sent but which batch to read and that
    it is there. What the processes do is in `batch_reader`.
    """

    def __init__(
        self, reader: BatchReader, *, workers: int, batch_size: int, pin_memory: bool
    ) -> None:
        _open_standard_streams()
        self.ahead = _AHEAD * workers
        self._process = os.getpid()
        self._has_reports = False
        self._source = reader.source
        self._pin_memory = pin_memory
        self._batches = SharedBatches(places=self.ahead + _HELD, shape=reader.shape(batch_size))
        self._free = list(range(self._batches.places))
        self._asked: deque[int] = deque()
        self._done: dict[int, Exception | None] = {}
        self._server, self._workers = _start(reader, self._batches, workers)
        self._workers_by_number = {worker.connection.fileno(): worker for worker in self._workers}
        # Made once: what this process does for a batch is taken from the workers' processors.
        self._reports = select.poll()
        for number in self._workers_by_number:
            self._reports.register(number, select.POLLIN)

    def ask(self, indices: NDArray[np.int64], *, epoch: int) -> None:
        place = self._free.pop()  # the last one given back: some of it may be in a cache
        self._batches.numbers[place] = indices
        self._asked.append(place)
        self._receive(timeout=0)
        least_busy = min(self._workers, key=lambda worker: len(worker.places))
        least_busy.places.add(place)
        order: Order = (place, epoch)
        try:
            least_busy.connection.send(order)
        except OSError:
            raise self._lost() from None

    def take(self) -> Read:
        place = self._asked.popleft()
        while place not in self._done:
            self._receive()
        error = self._done.pop(place)
        if error is not None:
            raise error
        images = self._batches.images[place]
        labels = torch.from_numpy(self._batches.numbers[place].copy())
        if not self._pin_memory and self._free:
            return lent(images, lambda: self._free.append(place)), labels
        if self._pin_memory:
            # Of torch's own pinned memory it is known when a copy to the device is done with it.
            read = torch.from_numpy(images).pin_memory(), labels.pin_memory()
        else:
            read = torch.from_numpy(images.copy()), labels  # somebody collects batches
        self._free.append(place)
        return read

    def cpu_seconds(self) -> float:
        return time.process_time() + sum(worker.cpu_seconds() for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()
        if os.getpid() != self._process:
            return  # a fork of the training, which still reads
        self._batches.close()
        self._server.end(patience=_LAST_IMAGE)  # then they are killed, and have nothing to lose

    def _receive(self, *, timeout: float | None = None) -> None:
        """Take in what is done, waiting until something is, or no longer than the timeout."""
        for number, _ in self._reports.poll(None if timeout is None else 1000 * timeout):
            worker = self._workers_by_number[number]
            try:
                report: Report = worker.connection.recv()
            except (EOFError, OSError):
                raise self._lost() from None
            self._has_reports = True
            place, error, bad, worker.process = report
            worker.places.remove(place)
            self._done[place] = error
            exclude(self._source, bad)

    def _lost(self) -> ChildProcessError:
        code = self._server.code(patience=_LAST_IMAGE) or 0
        number = -code if code < 0 else code - KILLED
        if number > 0:
            how = f"was ended by {signal_name(number)}"
            how += " (out of memory?)" if number == signal.SIGKILL else ""
        elif self._has_reports:
            how = "has ended"
        else:
            return ChildProcessError(
                "the processes that read images do not start; use threads "
                "(training.worker_kind=threads)"
            )
        return ChildProcessError(
            f"a process that reads images {how}; set fewer of them (training.workers) or threads "
            "(training.worker_kind=threads), and resume"
        )


@dataclass
class _Worker:
    """A process that reads, as the training sees it."""

    connection: Connection[Any, Any]
    places: set[int] = field(default_factory=set)
    """What it is to read, or has read and not reported."""
    process: int = 0
    """Its number, known from its first report on."""

    def cpu_seconds(self) -> float:
        if not self.process:
            return 0.0
        try:
            # The clock of another process's work, numbered as clock_getcpuclockid(3) does.
            return time.clock_gettime(~self.process << 3 | 2)
        except OSError:
            return 0.0  # it has ended, which is reported when something is expected of it


def _start(
    reader: BatchReader, batches: SharedBatches, workers: int
) -> tuple[Program, list[_Worker]]:
    pairs = [Pipe() for _ in range(workers)]
    theirs = tuple(connection.fileno() for _, connection in pairs)
    try:
        with os.fdopen(os.memfd_create("sphereface2-source"), "wb") as file:
            _write(ReadingServer(reader, batches, theirs), file)
            server = Program(
                *("-c", _START, str(file.fileno())),
                environment=_ONE_THREAD,
                files=(file.fileno(), batches.number, *theirs),
                held_back=STOPS,  # until the server has its own answer to a stop
            )
    finally:
        # The server has its own now; this process has the memory itself.
        os.close(batches.number)
        for _, connection in pairs:
            connection.close()
    return server, [_Worker(connection) for connection, _ in pairs]


def _write(server: ReadingServer, file: IO[bytes]) -> None:
    """Write what the program `_START` reads."""
    pickle.dump(sys.path, file)
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(server)
    except OSError:
        raise
    except Exception as error:
        raise UnsendableSourceError(
            f"training.worker_kind=processes: the source of the images cannot be given to another "
            f"process ({error}); use training.worker_kind=threads"
        ) from None
    file.flush()
    file.seek(0)


class _Pickler(pickle.Pickler):
    """Refuses what another program would not find: classes and functions of the main script."""

    def reducer_override(self, obj: object) -> Any:
        if getattr(obj, "__module__", None) == "__main__":
            name = getattr(obj, "__qualname__", type(obj).__qualname__)
            raise pickle.PicklingError(f"{name} is of the main script and in no module")
        return NotImplemented


def _open_standard_streams() -> None:
    """Where standard streams are closed, keep other files from taking their numbers.

    The server gets new ones, which would come in the place of those files.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
