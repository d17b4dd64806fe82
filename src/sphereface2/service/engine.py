"""A recognizer for many requests at once: a bounded number of them, in batches, until a deadline.

Each request runs in a thread of its own, with a recognizer whose photos are searched by one of a
few detectors and whose faces are embedded together with those of other requests. So a request is
answered by the recognizer's own methods.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, LifoQueue
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import (
    READ_KINDS,
    TooManyPixelsError,
    decode_photo,
    kind_of,
    look,
)
from sphereface2.faces import DETECTORS
from sphereface2.faces.face import Detector, Face
from sphereface2.recognition.photos import FaceFinder, FoundFace, Kind
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.registry import build
from sphereface2.service.errors import BusyError, DeadlineError
from sphereface2.service.metrics import Metrics
from sphereface2.service.micro_batches import MicroBatches
from sphereface2.service.settings import Settings
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
        names = [f"photo {number}" for number in range(1, len(encoded) + 1)]
        wanted = sum(_pixels(each, most) for each in encoded)
        if wanted > _PHOTOS_OF_FULL_SIZE * most:
            raise TooManyPixelsError(
                f"the photos of a request have {wanted:,} pixels together, more than "
                f"{_PHOTOS_OF_FULL_SIZE * most:,}; send fewer at once"
            )
        self._engine.memory.take(wanted, self._deadline)
        self._pixels += wanted
        return [
            decode_photo(each, name, most_pixels=most)
            for each, name in zip(encoded, names, strict=True)
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
        header = look(encoded)
    except ValueError:
        return 0  # decoding will say what is wrong with it
    return min(most, header.width * header.height)
