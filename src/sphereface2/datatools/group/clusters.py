"""Average linkage under constraints: faces to people, the same to the bit on every machine.

Two people become one as long as the mean cosine over all pairs of their faces reaches a threshold,
the nearest two first. One look-alike among twenty faces therefore joins nobody, where connected
components (single linkage) would chain strangers through it. The mean over pairs is the product of
the people's sums, so no matrix of all pairs is ever held.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.models.embedder import Float32
from sphereface2.workers import Progress, unseen

SCALE = 4000
"""Embeddings are rounded to multiples of 1/4000, which moves a cosine by some 0.0001.

As whole numbers, products of two rows stay below 2^24 and those of sums below 2^53, where float32
and float64 are exact: neither the order of additions nor the number of threads changes a bit.
"""
NEIGHBOURS = 64
"""Of a face that reaches the threshold with more others, only the nearest are candidates."""

_BLOCK = 1 << 24  # scores at once: 64 MB
Side = tuple[int, int]
"""Of a constraint: its number, and which of its two sides, 0 or 1."""


@dataclass(frozen=True)
class Apart:
    """What must not become one person.

    photos: (n,) the photo of each face: two faces of one photo are two people
    names: (n,) the number of the name of each face, -1 for none: names stay apart
    sides: the constraints that a face is part of, and on which side; the two sides stay apart
    """

    photos: npt.NDArray[np.int64]
    names: npt.NDArray[np.int64] | None = None
    sides: Mapping[int, frozenset[Side]] = field(default_factory=dict)


def whole_rows(unit: Float32) -> Float32:
    """Unit rows as whole numbers, in float32."""
    rounded: Float32 = np.rint(unit * np.float32(SCALE))
    return rounded


def cluster(
    unit: Float32,
    threshold: float,
    apart: Apart,
    *,
    start: Sequence[Sequence[int]] = (),
    neighbours: int = NEIGHBOURS,
    progress: Progress = unseen,
) -> list[list[int]]:
    """The faces of each person, by number; people in the order of their first faces.

    unit: (n, D) rows of length 1; of equally near people those of the first rows join first
    start: faces that are together already and stay so
    """
    rows = whole_rows(unit)
    near = _neighbours(rows, threshold, neighbours, progress)
    return _Joining(rows, near, threshold, apart, start).people()


def _neighbours(
    rows: Float32, threshold: float, most: int, progress: Progress
) -> list[npt.NDArray[np.int32]]:
    """For each row the others that reach the threshold with it, or the nearest of them.

    A mean is at most its largest part: people without such a pair never become one.
    """
    count = len(rows)
    least = threshold * SCALE**2
    pairs = [np.empty(0, np.int64)]  # (one, other) as the number one · count + other
    step = max(1, _BLOCK // max(count, 1))
    for first in range(0, count, step):
        scores = rows[first : first + step] @ rows.T
        for number, line in enumerate(scores, start=first):
            line[number] = -np.inf
            near = np.flatnonzero(line >= least)
            if len(near) > most:
                near = near[np.argsort(-line[near], kind="stable")[:most]]
            pairs.append(number * count + near)
        progress(min(first + step, count), count)
    # One may be among the nearest of another but not the other way round: enter it in both lists.
    one, other = np.divmod(np.concatenate(pairs), count)
    one, other = np.divmod(np.unique([one * count + other, other * count + one]), count)
    return np.split(other.astype(np.int32), np.searchsorted(one, np.arange(1, count)))


class _Joining:
    """People who join, the nearest first; a person lives in the slot of their first face.

    An entry of the heap may be out of date, but is never too low: a mean over the faces of two
    people is at most the larger of their own (average linkage is reducible, with constraints too),
    so that the nearest of somebody only gets farther away.
    """

    def __init__(
        self,
        rows: Float32,
        near: list[npt.NDArray[np.int32]],
        threshold: float,
        apart: Apart,
        start: Sequence[Sequence[int]],
    ) -> None:
        count = len(rows)
        self.sums = rows  # of each slot; whole numbers, in place
        self.near = near
        self.threshold = threshold
        self.members = [[number] for number in range(count)]
        self.size = np.ones(count, np.int64)
        self.slot = np.arange(count)
        self.stamp = [0] * count
        self.photos = [{photo} for photo in apart.photos.tolist()]
        names = [-1] * count if apart.names is None else apart.names.tolist()
        self.names = [frozenset() if name < 0 else frozenset([name]) for name in names]
        self.sides = [apart.sides.get(number, frozenset[Side]()) for number in range(count)]
        for together in start:
            first, *others = sorted(together)
            for other in others:
                self._join(first, other)

    def people(self) -> list[list[int]]:
        heap: list[tuple[float, int, int, int, int, int]] = []
        alive = {int(slot) for slot in np.unique(self._slots(np.arange(len(self.slot))))}
        for slot in sorted(alive):
            self._look(slot, heap)
        while heap:
            _, low, high, who, low_stamp, high_stamp = heapq.heappop(heap)
            stamps = (self.stamp[low], self.stamp[high])
            if self.stamp[who] != (low_stamp if who == low else high_stamp):
                continue  # who looks has joined somebody, and looked since
            if stamps != (low_stamp, high_stamp):
                self._look(who, heap)
            elif self._are_apart(low, high):
                other = high if who == low else low
                self.near[who] = self.near[who][self.near[who] != other]
                self._look(who, heap)
            else:
                self._join(low, high)
                alive.discard(high)
                self._look(low, heap)
        return [sorted(self.members[slot]) for slot in sorted(alive)]

    def _look(self, slot: int, heap: list[tuple[float, int, int, int, int, int]]) -> None:
        """Put the nearest person who reaches the threshold on the heap."""
        near = np.unique(self._slots(self.near[slot]))
        near = near[near != slot]
        pairs = self.size[near] * self.size[slot]
        products = self.sums[near].astype(np.float64) @ self.sums[slot].astype(np.float64)
        scores = products / (pairs * float(SCALE**2))
        enough = scores >= self.threshold
        near, scores = near[enough], scores[enough]
        self.near[slot] = near.astype(np.int32)
        if len(near):
            best = int(np.argmax(scores))  # of equals the first
            low, high = sorted((slot, int(near[best])))
            stamps = self.stamp[low], self.stamp[high]
            heapq.heappush(heap, (-float(scores[best]), low, high, slot, *stamps))

    def _slots(self, numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Where the people with these numbers live now."""
        found: npt.NDArray[np.int64] = self.slot[numbers]
        while np.any((further := self.slot[found]) != found):
            found = further
        self.slot[numbers] = found
        return found

    def _are_apart(self, one: int, other: int) -> bool:
        return (
            not self.photos[one].isdisjoint(self.photos[other])
            or len(self.names[one] | self.names[other]) > 1
            or any((number, 1 - side) in self.sides[other] for number, side in self.sides[one])
        )

    def _join(self, low: int, high: int) -> None:
        self.sums[low] += self.sums[high]
        self.size[low] += self.size[high]
        self.members[low] += self.members[high]
        self.photos[low] |= self.photos[high]
        self.names[low] |= self.names[high]
        self.sides[low] |= self.sides[high]
        self.near[low] = np.concatenate([self.near[low], self.near[high]])
        self.near[high] = self.near[high][:0]
        self.members[high] = []
        self.photos[high] = set()
        self.slot[high] = low
        self.stamp[low] += 1
        self.stamp[high] += 1
