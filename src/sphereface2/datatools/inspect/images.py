"""One pass over all images of a source: what is to be known of each, and which are copies."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.image_file import decode, to_pixels
from sphereface2.data.sources.source import BadImage
from sphereface2.data.transforms import resize
from sphereface2.datatools.inspect.faces import FaceAverage, detail, redness
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


# -- images that a source holds more than once: the same bytes, or nearly the same picture ---------

SAME_BYTES = "same bytes"
NEAR_IDENTICAL = "near-identical"

_MIN_LIKENESS = 0.91
"""Correlation of the eye-sized structures; silhouettes on black have like hashes but not this."""

MAX_DISTANCE = 12
"""Bits: the same photo saved again as a poor JPEG, scaled or brightened differs in up to 10, one
cropped or aligned again often in 12; another photo of the person hardly ever in fewer than 20."""
_TABLES, _PICKED = 48, 22
_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)


@dataclass(frozen=True)
class DuplicateGroup:
    """Images that are copies of each other; copies under several people mean a wrong label."""

    kind: str
    images: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def across_people(self) -> bool:
        return len(set(self.labels)) > 1


def find_duplicates(
    source: EncodedImages, facts: ImageFacts, *, progress: Progress = unseen
) -> tuple[DuplicateGroup, ...]:
    """All groups of copies, those across people first.

    Near-identical groups hold one image of each group of the same bytes. The pictures of pairs
    with like hashes are read once more, to compare them.
    """
    numbers = np.flatnonzero(facts.readable)
    _, first, byte_group = np.unique(
        facts.digest[numbers], axis=0, return_index=True, return_inverse=True
    )
    groups = [
        _group(SAME_BYTES, numbers[members], source.labels) for members in _repeated(byte_group)
    ]
    # One of each: copies of the same bytes would be found again as near-identical.
    numbers = np.sort(numbers[first])
    hashes, first, hash_group = np.unique(
        facts.picture[numbers], axis=0, return_index=True, return_inverse=True
    )
    pairs = np.concatenate(
        [
            numbers[first][near_pairs(hashes)],
            *(_star(numbers[members]) for members in _repeated(hash_group)),
        ]
    )
    alike = _alike(source, pairs, progress)
    groups += [_group(NEAR_IDENTICAL, each, source.labels) for each in linked(pairs[alike])]
    return tuple(sorted(groups, key=lambda group: (not group.across_people, group.images)))


def _repeated(group: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The members of each group that has more than one."""
    group = group.ravel()  # of np.unique, which numpy 2.0 alone gives another shape
    order = np.argsort(group, kind="stable")
    ends = np.flatnonzero(np.diff(group[order])) + 1
    return [members for members in np.split(order, ends) if len(members) > 1]


def _star(members: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack((np.full(len(members) - 1, members[0]), members[1:]), axis=1)


def _group(kind: str, members: NDArray[np.int64], labels: NDArray[np.int64]) -> DuplicateGroup:
    images = tuple(sorted(members.tolist()))
    return DuplicateGroup(kind, images, tuple(labels[list(images)].tolist()))


def _alike(
    source: EncodedImages, pairs: NDArray[np.int64], progress: Progress
) -> NDArray[np.bool_]:
    """Whether the two pictures of each pair are alike, not only their hashes."""
    alike = np.zeros(len(pairs), np.bool_)
    order = np.argsort(pairs[:, 0], kind="stable")
    structure = lru_cache(maxsize=2)(partial(_structure, source))  # the first one stays
    for done, number in enumerate(order.tolist(), start=1):
        left, right = (structure(index) for index in pairs[number].tolist())
        scale = float(np.linalg.norm(left) * np.linalg.norm(right))
        # Two pictures without any structure are blank, and as such alike.
        alike[number] = float((left * right).sum()) > _MIN_LIKENESS * scale if scale else True
        progress(done, len(pairs))
    return alike


def _structure(source: EncodedImages, index: int) -> NDArray[np.float32]:
    image = decode(source.encoded(index), source.location(index), looked=True)
    return detail(np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8))


def distance(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.int64]:
    """In how many bits hashes of shape (..., 2) differ."""
    return np.asarray(_ONES[(left ^ right).view(np.uint8)].sum(axis=-1), np.int64)


def near_pairs(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The pairs (i, j), i < j, of different hashes of shape (N, 2) within `MAX_DISTANCE` bits.

    Not all are compared with all: 48 times 22 bits are picked, and only hashes that agree in all
    of those are compared. A pair that differs in 12 bits is missed once in a hundred times, one
    that differs in 8 or fewer practically never. Equal hashes must have been merged before: a
    thousand copies of one are half a million pairs.
    """
    found = [np.empty((0, 2), np.int64)]
    picks = np.random.default_rng(0)  # the same picks for everyone: same data, same answer
    for _ in range(_TABLES):
        keys = _picked(hashes, picks.choice(BITS, _PICKED, replace=False))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        for place, step in _neighbours(keys):
            left, right = order[place], order[place + step]
            near = distance(hashes[left], hashes[right]) <= MAX_DISTANCE
            if near.any():
                found.append(np.sort(np.stack((left[near], right[near]), axis=1), axis=1))
    return np.unique(np.concatenate(found), axis=0)


def linked(pairs: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The groups of numbers that the pairs link together, each sorted."""
    numbers, places = np.unique(pairs, return_inverse=True)
    edges = coo_array((np.ones(len(pairs)), tuple(places.reshape(-1, 2).T)), (len(numbers),) * 2)
    _, group = connected_components(edges, directed=False)
    return [numbers[members] for members in _repeated(group)]


def _picked(hashes: NDArray[np.uint64], bits: NDArray[np.int64]) -> NDArray[np.int32]:
    """Some bits of each hash as one number."""
    octets = np.ascontiguousarray(hashes).view(np.uint8)
    keys = np.zeros(len(hashes), np.int32)
    for bit in bits.tolist():
        octet, place = divmod(bit, 8)
        keys = 2 * keys + (octets[:, octet] >> (7 - place) & 1)
    return keys


def _neighbours(keys: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Every pair of places with equal keys in a sorted list, by the step between the two."""
    place = np.arange(len(keys))
    for step in range(1, len(keys)):
        place = place[place + step < len(keys)]
        # Keys are sorted: what has an equal at this step had one at the step before.
        place = place[keys[place] == keys[place + step]]
        if not len(place):
            return
        yield place, step
