"""Images that a source holds more than once: the same bytes, or nearly the same picture."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.image_file import decode
from sphereface2.datatools.inspect.faces import detail
from sphereface2.datatools.inspect.image_facts import ImageFacts
from sphereface2.datatools.inspect.near_duplicates import equal_groups, linked, near_pairs
from sphereface2.progress import Progress

SAME_BYTES = "same bytes"
NEAR_IDENTICAL = "near-identical"

_MIN_LIKENESS = 0.91
"""Correlation of the eye-sized structures; silhouettes on black have like hashes but not this."""


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
    source: EncodedImages, facts: ImageFacts, *, progress: Progress | None = None
) -> tuple[DuplicateGroup, ...]:
    """All groups of copies, those across people first.

    Near-identical groups hold one image of each group of the same bytes. The pictures of pairs
    with like hashes are read once more, to compare them.
    """
    numbers = np.flatnonzero(facts.readable)
    byte_group, first = equal_groups(facts.digest[numbers])
    groups = [
        _group(SAME_BYTES, numbers[members], source.labels) for members in _repeated(byte_group)
    ]
    # One of each: copies of the same bytes would be found again as near-identical.
    numbers = np.sort(numbers[first])
    hash_group, first = equal_groups(facts.picture[numbers])
    pairs = np.concatenate(
        [
            numbers[first][near_pairs(facts.picture[numbers][first])],
            *(_star(numbers[members]) for members in _repeated(hash_group)),
        ]
    )
    alike = _alike(source, pairs, progress)
    groups += [
        _group(NEAR_IDENTICAL, np.array(members), source.labels) for members in linked(pairs[alike])
    ]
    return tuple(sorted(groups, key=lambda group: (not group.across_people, group.images)))


def _repeated(group: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The members of each group that has more than one."""
    order = np.argsort(group, kind="stable")
    ends = np.flatnonzero(np.diff(group[order])) + 1
    return [members for members in np.split(order, ends) if len(members) > 1]


def _star(members: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack((np.full(len(members) - 1, members[0]), members[1:]), axis=1)


def _group(kind: str, members: NDArray[np.int64], labels: NDArray[np.int64]) -> DuplicateGroup:
    images = tuple(sorted(members.tolist()))
    return DuplicateGroup(kind, images, tuple(labels[list(images)].tolist()))


def _alike(
    source: EncodedImages, pairs: NDArray[np.int64], progress: Progress | None
) -> NDArray[np.bool_]:
    """Whether the two pictures of each pair are alike, not only their hashes."""
    alike = np.zeros(len(pairs), np.bool_)
    order = np.argsort(pairs[:, 0], kind="stable")
    last, left = -1, np.empty(0, np.float32)
    for done, number in enumerate(order.tolist(), start=1):
        if int(pairs[number, 0]) != last:
            last = int(pairs[number, 0])
            left = _structure(source, last)
        right = _structure(source, int(pairs[number, 1]))
        scale = float(np.linalg.norm(left) * np.linalg.norm(right))
        # Two pictures without any structure are blank, and as such alike.
        alike[number] = float((left * right).sum()) > _MIN_LIKENESS * scale if scale else True
        if progress is not None:
            progress(done, len(pairs))
    return alike


def _structure(source: EncodedImages, index: int) -> NDArray[np.float32]:
    image = decode(source.encoded(index), source.location(index), looked=True)
    return detail(np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8))
