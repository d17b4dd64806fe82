"""A recognizer for many requests at once: a bounded number of them, in batches, until a deadline.

Each request runs in a thread of its own, with a recognizer whose photos are searched by one of a
few detectors and whose faces are embedded together with those of other requests. So a request is
answered by the recognizer's own methods.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, LifoQueue
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import (
    READ_KINDS,
    TooManyPixelsError,
    check_header,
    decode_photo,
    kind_of,
)
from sphereface2.faces import DETECTORS
from sphereface2.faces.face import Detector, Face
from sphereface2.recognition.photos import FaceFinder, FoundFace, Kind
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.registry import build
from sphereface2.service.errors import BusyError, DeadlineError
from sphereface2.service.settings import Settings
from sphereface2.service.telemetry import Metrics
from sphereface2.workers import usable_cores

T = TypeVar("T")
_PHOTOS_OF_FULL_SIZE = 4  # that are decoded at once: 3 bytes for each pixel


class RequestRecognizer(Recognizer):
    """The engine's recognizer for one request."""

    def __init__(self, engine: Engine, *, kind: Kind, choose: str, deadline: float) -> None:
        self.__dict__.update(engine.recognizer.__dict__)
        self._engine, self._deadline = engine, deadline
        detector = _SharedDetector(engine.detectors, deadline)
        self.finder = engine.finder.asking(kind=kind, choose=choose, detector=detector)
        self._pixels = 0

    def photos(self, encoded: Sequence[bytes]) -> list[NDArray[np.uint8]]:
        """The photos of a request, decoded when the memory for all of them is there."""
        most = self._engine.settings.max_pixels
        wanted = sum(_pixels(each, most) for each in encoded)
        if wanted > _PHOTOS_OF_FULL_SIZE * most:
            raise TooManyPixelsError(
                f"the photos of a request have {wanted:,} pixels together, more than "
                f"{_PHOTOS_OF_FULL_SIZE * most:,}; send fewer at once"
            )
        self._engine.memory.take(wanted, self._deadline)
        self._pixels += wanted
        return [
            decode_photo(each, f"photo {number}", most_pixels=most)
            for number, each in enumerate(encoded, start=1)
        ]

    def embed_faces(self, faces: Sequence[FoundFace]) -> NDArray[np.float32]:
        self._engine.metrics.faces.inc(len(faces))
        if not faces:
            return super().embed_faces(faces)
        return self._engine.batches.embed([face.crop for face in faces], deadline=self._deadline)

    def close(self) -> None:
        self._engine.memory.give_back(self._pixels)


class Engine:
    """The model of a service, at work."""

    def __init__(self, settings: Settings, metrics: Metrics, recognizer: Recognizer) -> None:
        self.settings, self.metrics, self.recognizer = settings, metrics, recognizer
        _ = recognizer.digest, recognizer.calibration  # once, not for each request
        self.finder = FaceFinder(
            detector=settings.detector,
            size=recognizer.finder.size,
            most_faces=settings.max_faces,
        )
        self.detectors: LifoQueue[Detector] = LifoQueue()
        for _number in range(max(1, usable_cores() // settings.workers)):
            self.detectors.put(build("detector", DETECTORS, settings.detector))
        self.memory = _Memory(_PHOTOS_OF_FULL_SIZE * settings.max_pixels)
        self.batches = MicroBatches(
            lambda crops: recognizer.model.embed(crops, flip=recognizer.flip),
            most=settings.max_batch,
            observe=self._observe,
        )
        self._pool = ThreadPoolExecutor(settings.max_pending, thread_name_prefix="request")
        self.pending = 0

    async def run(
        self,
        work: Callable[[RequestRecognizer], T],
        *,
        kind: Kind = "auto",
        choose: str = "prominent",
    ) -> T:
        """Do the work of a request in a thread; a BusyError at once if too many are at work."""
        if self.pending >= self.settings.max_pending:
            raise BusyError(self.batches.seconds_to_clear())
        deadline = time.monotonic() + self.settings.deadline
        request = RequestRecognizer(self, kind=kind, choose=choose, deadline=deadline)

        def answer() -> T:
            try:
                if time.monotonic() > deadline:
                    raise DeadlineError
                return work(request)
            finally:
                request.close()

        self.pending += 1
        self.metrics.pending.inc()
        done = asyncio.get_running_loop().run_in_executor(self._pool, answer)
        # When the work ends, not when its caller has gone: the thread is taken until then.
        done.add_done_callback(self._finished)
        return await asyncio.shield(done)

    def _finished(self, done: object) -> None:
        self.pending -= 1
        self.metrics.pending.dec()

    def _observe(self, faces: int, seconds: float) -> None:
        self.metrics.batch_size.observe(faces)
        self.metrics.batch_seconds.observe(seconds)
        self.metrics.waiting.set(self.batches.waiting)

    def close(self) -> None:
        """Finish what was accepted."""
        self._pool.shutdown(wait=True)
        self.batches.close()


class _SharedDetector:
    """Looks with one of a few detectors, of which each serves one thread at a time."""

    def __init__(self, detectors: LifoQueue[Detector], deadline: float) -> None:
        self._detectors, self._deadline = detectors, deadline

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        try:
            detector = self._detectors.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except Empty:
            raise DeadlineError from None
        try:
            return detector.detect(image)
        finally:
            self._detectors.put(detector)


class _Memory:
    """So many pixels may be decoded at a time; who finds no room waits."""

    def __init__(self, pixels: int) -> None:
        self._free = pixels
        self._changed = threading.Condition()

    def take(self, pixels: int, deadline: float) -> None:
        with self._changed:
            left = deadline - time.monotonic()
            if not self._changed.wait_for(lambda: self._free >= pixels, max(0.0, left)):
                raise DeadlineError
            self._free -= pixels

    def give_back(self, pixels: int) -> None:
        with self._changed:
            self._free += pixels
            self._changed.notify_all()


def _pixels(encoded: bytes, most: int) -> int:
    """How many a photo has, as its header says, and `most` for kinds whose header is not read."""
    if kind_of(encoded[:16]) not in READ_KINDS:
        return most
    try:
        header = check_header(encoded)
    except ValueError:
        return 0  # decoding will say what is wrong with it
    return min(most, header.width * header.height)


# -- faces of many requests through the network together -----------------------------------------
#
# One thread runs the network. While it is at work others wait in line, and all that wait, up to
# `most` faces, are its next batch: alone a request is not kept waiting for company, and under load
# batches fill by themselves.

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
        self.waiting = 0  # faces in line
        self._closed = False
        self._pace = 0.05  # seconds per face, a running mean
        self._begin()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    def seconds_to_clear(self) -> float:
        """How long the requests that wait now will take, by the last batches."""
        return (self.waiting + 1) * self._pace

    def embed(self, crops: Crops, *, deadline: float) -> Embeddings:
        """Unit embeddings of some crops, in the time of `time.monotonic` until `deadline`."""
        job = _Job(crops, deadline)
        with self._changed:
            if self._closed:
                raise BusyError(1.0)
            if self.waiting and self.waiting + len(crops) > self._depth:
                raise BusyError(self.seconds_to_clear())
            self._jobs.append(job)
            self.waiting += len(crops)
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
        in each thread that it had no memory for its code, and fails there forever.
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
                    self.waiting -= len(job.crops)
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
