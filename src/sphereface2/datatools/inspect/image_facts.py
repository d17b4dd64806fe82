"""One pass over all images of a source: what is to be known of each, and their average."""

from __future__ import annotations

import hashlib
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.image_file import to_pixels
from sphereface2.data.sources.source import BadImage
from sphereface2.data.transforms import resize
from sphereface2.datatools.inspect.faces import FaceAverage, redness
from sphereface2.workers import Progress, in_threads, unseen

_CHUNK = 128

BITS = 128
"""Of the hash of a picture."""
_SIDE = 32
_FLAT = 0.5  # grey levels × 32: an empty picture has the hash 0, not one of its rounding errors


@dataclass(frozen=True, eq=False)
class ImageFacts:
    """What one pass found, a row for each image: 45 bytes, so a million images take 45 MB.

    digest: of the stored bytes, (N, 2)
    picture: hash of the picture, (N, 2); near-identical pictures differ in few bits
    size: width and height as shown, (N, 2)
    redness: red less blue in the middle, not a number for a grey picture
    readable: False where the image cannot be used; its other facts mean nothing then
    """

    digest: NDArray[np.uint64]
    picture: NDArray[np.uint64]
    size: NDArray[np.int32]
    redness: NDArray[np.float32]
    readable: NDArray[np.bool_]
    bad: tuple[BadImage, ...]
    average: FaceAverage


def examine(source: EncodedImages, *, workers: int = 1, progress: Progress = unseen) -> ImageFacts:
    """Read and decode every image once, in `workers` threads; no image is kept."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    count = len(source)
    facts = ImageFacts(
        digest=np.zeros((count, 2), np.uint64),
        picture=np.zeros((count, 2), np.uint64),
        size=np.zeros((count, 2), np.int32),
        redness=np.full(count, np.nan, np.float32),
        readable=np.zeros(count, np.bool_),
        bad=(),
        average=FaceAverage(),
    )
    bad: list[BadImage] = []
    chunks = [range(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
    with closing(in_threads(partial(_examine, source, facts), chunks, workers=workers)) as done:
        for numbers, (found, average) in done:
            bad += found
            facts.average.merge(average)
            progress(numbers.stop, count)
    return replace(facts, bad=tuple(bad))


def _examine(
    source: EncodedImages, facts: ImageFacts, numbers: range, stopped: threading.Event
) -> tuple[list[BadImage], FaceAverage]:
    """Fill the rows of some images; threads write to different rows."""
    average, bad = FaceAverage(), []
    for number in numbers:
        if stopped.is_set():
            break
        try:
            encoded = source.encoded(number)
            image = to_pixels(encoded)
        except (ValueError, OSError) as error:
            bad.append(BadImage(number, source.location(number), str(error)))
            continue
        grey = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)
        digest = hashlib.blake2b(encoded, digest_size=16).digest()
        facts.digest[number] = np.frombuffer(digest, np.uint64)
        facts.picture[number] = picture_hash(grey)
        facts.size[number] = image.shape[1], image.shape[0]
        facts.redness[number] = redness(image)
        facts.readable[number] = True
        average.add(image, grey)
    return bad, average


def _lowest_waves() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of the 128 slowest waves of the DCT, without the constant one."""
    rows, columns = np.divmod(np.arange(_SIDE * _SIDE), _SIDE)
    order = np.lexsort((rows, rows + columns))[1 : BITS + 1]
    return rows[order], columns[order]


_ROWS, _COLUMNS = _lowest_waves()


def picture_hash(grey: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The signs of a grey picture's 128 slowest waves, as two words of 64 bits."""
    signs = cv2.dct(resize(grey, _SIDE).astype(np.float32))[_ROWS, _COLUMNS] > _FLAT
    return np.packbits(signs).view(np.uint64)
