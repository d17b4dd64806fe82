"""Faces of many requests through the network together.

One thread runs the network. While it is at work others wait in line, and all that wait, up to
`most` faces, are its next batch: alone a request is not kept waiting for company, and under load
batches fill by themselves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sphereface2.service.errors import BusyError, DeadlineError

Crops = Sequence[NDArray[np.uint8]]
Embeddings = NDArray[np.float32]


@dataclass(eq=False)
class _Job:
    crops: Crops
    deadline: float
    done: Future[Embeddings] = field(default_factory=Future)


class MicroBatches:
    """Embeds crops that come from many threads.

    network: crops to embeddings; only ever called from one thread at a time
    most: faces of a batch; depth: faces that may wait
    observe: called with the size of each batch and the seconds it took
    """

    def __init__(
        self,
        network: Callable[[Crops], Embeddings],
        *,
        most: int = 32,
        depth: int = 2048,
        observe: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self._network, self._most, self._depth, self._observe = network, most, depth, observe
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._closed = False
        self._pace = 0.05  # seconds per face, a running mean
        self._begin()

    @property
    def waiting(self) -> int:
        """Faces in line."""
        return self._waiting

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    def seconds_to_clear(self) -> float:
        """How long those who wait now will take, as far as the last batches can tell."""
        return (self._waiting + 1) * self._pace

    def embed(self, crops: Crops, *, deadline: float) -> Embeddings:
        """Unit embeddings of some crops, in the time of `time.monotonic` until `deadline`."""
        job = _Job(crops, deadline)
        with self._changed:
            if self._closed:
                raise BusyError(1.0)
            if self._waiting and self._waiting + len(crops) > self._depth:
                raise BusyError(self.seconds_to_clear())
            self._jobs.append(job)
            self._waiting += len(crops)
            self._changed.notify()
        try:
            return job.done.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError:
            if job.done.cancel():
                raise DeadlineError from None
            return job.done.result()  # it is in the network at this moment

    def close(self) -> None:
        """Finish what is in line; nothing more is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        while self._thread.is_alive():  # another one may have taken its place
            self._thread.join()

    def _begin(self, alone: Sequence[_Job] = ()) -> None:
        thread = threading.Thread(target=self._run, args=(alone,), name="network", daemon=True)
        with self._changed:  # so that the last to begin is the one that is kept
            thread.start()
            self._thread = thread

    def _run(self, alone: Sequence[_Job]) -> None:
        """Batch after batch, after some jobs that are to be embedded one by one.

        A thread in which the network fails ends, and a new one takes its place: oneDNN remembers
        in each thread that it had no memory for its code, and fails there for ever.
        """
        left = deque(alone)
        while batch := [left.popleft()] if left else self._next():
            start = time.monotonic()
            if not self._embed(batch):
                if len(batch) > 1:  # one of them is at fault: the others do not suffer for it
                    left.extend(batch)
                with suppress(RuntimeError, MemoryError):  # no more threads: then in this one
                    self._begin(tuple(left))
                    return
                continue
            faces = sum(len(job.crops) for job in batch)
            spent = time.monotonic() - start
            self._pace += 0.2 * (spent / faces - self._pace)
            self._observe(faces, spent)

    def _next(self) -> list[_Job]:
        """The jobs of the next batch, at least one; none when it is closed and all are done."""
        batch: list[_Job] = []
        faces = 0
        with self._changed:
            while not batch:
                while not self._jobs:
                    if self._closed:
                        return []
                    self._changed.wait()
                while self._jobs and (not batch or faces + len(self._jobs[0].crops) <= self._most):
                    job = self._jobs.popleft()
                    self._waiting -= len(job.crops)
                    if not job.done.set_running_or_notify_cancel():
                        continue  # its deadline has passed
                    batch.append(job)
                    faces += len(job.crops)
        return batch

    def _embed(self, batch: list[_Job]) -> bool:
        """Whether the network did not fail; a job that fails alone gets its error."""
        try:
            found = self._network([crop for job in batch for crop in job.crops])
        except Exception as error:
            if len(batch) == 1:
                batch[0].done.set_exception(error)
            return False
        start = 0
        for job in batch:
            job.done.set_result(found[start : start + len(job.crops)])
            start += len(job.crops)
        return True
