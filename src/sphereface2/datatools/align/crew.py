"""The processes that align photos: each with its own detector, one photo after another."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cv2

from sphereface2.data.sources.image_file import read_file, to_pixels
from sphereface2.datatools.align.journal import WORK_FOLDER, Outcome
from sphereface2.faces import CHOICES, DETECTORS, Detector, align_face, find_faces
from sphereface2.files import printable
from sphereface2.registry import build, look_up

Task = tuple[str, str]
"""A photo below the source, and the name of its crop below the target."""

ENCODINGS: dict[str, list[int]] = {"jpg": [cv2.IMWRITE_JPEG_QUALITY, 95], "png": []}

_AHEAD = 2  # tasks that a worker has, so that it need not wait for the next one
_FAREWELL = 10.0  # seconds for a worker to finish the photo it is at


@dataclass(frozen=True)
class Work:
    """How to align: all that a worker must know."""

    source: Path
    target: Path
    detector: str = "mtcnn"
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 112
    choose: str = "prominent"
    image_format: str = "jpg"

    def build_detector(self) -> Detector:
        """The detector, or a sentence about what it lacks."""
        return build("detector", DETECTORS, self.detector, **self.options)


def align_all(work: Work, tasks: Iterable[Task], *, workers: int) -> Generator[Outcome, None, None]:
    """What becomes of each photo, as they are done; closing it ends the processes.

    An OSError ends it: a crop could not be written.
    """
    if workers > 1:
        yield from _in_processes(work, iter(tasks), workers)
        return
    detector = work.build_detector()
    for photo, crop in tasks:
        yield align_photo(work, detector, photo, crop)


def align_photo(work: Work, detector: Detector, photo: str, crop: str) -> Outcome:
    """Find the face in a photo and write its crop."""
    try:
        image = to_pixels(read_file(work.source / photo))
        faces, look = find_faces(detector, image, min_face=work.options.get("min_face"))
        if not faces:
            return Outcome(photo)
        height, width = image.shape[:2]
        face = look_up("choice", CHOICES, work.choose)(faces, width, height)
        aligned = align_face(image, face.landmarks, size=work.size)
    except (ValueError, OSError, MemoryError, cv2.error) as error:
        # One photo of a million must not end the work; it is reported with the others.
        return Outcome(photo, reason=" ".join(str(error).split()) or type(error).__name__)
    bgr = cv2.cvtColor(aligned, cv2.COLOR_RGB2BGR)
    _, encoded = cv2.imencode(f".{work.image_format}", bgr, ENCODINGS[work.image_format])
    _write(work.target, crop, encoded.tobytes())
    return Outcome(photo, crop, tuple(faces), taken=faces.index(face), look=look)


def _write(target: Path, crop: str, content: bytes) -> None:
    """A crop is whole or not there: it gets its name when it is written."""
    partial = target / WORK_FOLDER / f"{os.getpid()}.part"
    place = target / crop
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(place)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise OSError(error.errno, error.strerror, printable(place)) from None


def _in_processes(work: Work, tasks: Iterator[Task], workers: int) -> Iterator[Outcome]:
    # Pipes of our own, not a pool: when this process is killed its ends close, and the workers
    # end. The workers of a pool would wait for ever.
    context = multiprocessing.get_context("spawn")
    at_work: dict[Connection, list[Task]] = {}
    processes = []
    try:
        for _ in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, work), daemon=True)
            process.start()
            there.close()
            processes.append(process)
            at_work[here] = []
        for _ in range(_AHEAD):
            for connection in at_work:
                _give(connection, at_work, tasks)
        while busy := [connection for connection, given in at_work.items() if given]:
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                yield _answer(ready, at_work[ready])
                _give(ready, at_work, tasks)
    finally:
        for connection in at_work:
            connection.close()
        for process in processes:
            process.join(_FAREWELL)
            if process.is_alive():
                process.terminate()


def _give(
    connection: Connection, at_work: dict[Connection, list[Task]], tasks: Iterator[Task]
) -> None:
    task = next(tasks, None)
    if task is None:
        return
    at_work[connection].append(task)
    with suppress(BrokenPipeError):  # the worker is gone, which is told where its answer is due
        connection.send(task)


def _answer(connection: Connection, given: list[Task]) -> Outcome:
    photo, _ = given.pop(0)
    try:
        answer = connection.recv()
    except (EOFError, ConnectionResetError):
        raise OSError(
            f"a worker process died at the photo {printable(photo)}, perhaps for want of memory; "
            "run the same command with fewer --workers to go on"
        ) from None
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, Outcome)
    return answer


def _serve(connection: Connection, work: Work) -> None:
    """A worker's life: until the other end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends us
    cv2.setNumThreads(1)
    with suppress(EOFError, ConnectionError):
        try:
            detector = work.build_detector()
        except (ValueError, OSError) as error:
            connection.recv()
            connection.send(error)
            return
        while True:
            photo, crop = connection.recv()
            try:
                connection.send(align_photo(work, detector, photo, crop))
            except ConnectionError:
                return
            except OSError as error:
                connection.send(error)
