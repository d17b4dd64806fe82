"""Exact search: the nearest people among all embeddings, by matrix products block by block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sphereface2.galleries.gallery import Embeddings

Owners = NDArray[np.int64]
Found = tuple[int, int, float]
"""A person's number, the row of the photo that is nearest, its cosine."""

NOBODY = -1  # the owner of a row that is not in use
_SCORES = (
    1 << 22
)  # a product, 16 MB: of many small ones, threads that wait for each other cost more
_QUERIES = 64  # at a time
_FIRST = 1_024  # scores looked at first, where nearly all are the best so far; then twice as many
_MOST = 65_536


def nearest_people(
    rows: Embeddings, owners: Owners, queries: Embeddings, people: int
) -> list[list[Found]]:
    """The `people` nearest owners of each query, best first.

    rows: (N, D), a memory map or an array; owners: (N,), NOBODY for rows to be left out
    """
    found = []
    step = min(_SCORES // max(1, min(_QUERIES, len(queries))), len(owners))
    scores = np.empty(step * min(_QUERIES, len(queries)), dtype=np.float32)
    for start in range(0, len(queries), _QUERIES):
        part = queries[start : start + _QUERIES]
        best = [_Best(people) for _ in part]
        for top in range(0, len(owners), max(1, step)):
            block = rows[top : top + step]
            product = scores[: len(block) * len(part)].reshape(len(block), len(part))
            np.matmul(block, part.T, out=product)
            for column, each in zip(product.T, best, strict=True):
                each.take(column, owners[top : top + len(block)], top)
        found += [each.falling() for each in best]
    return found


class _Best:
    """The best people of one query so far; a score below the bar changes nothing."""

    def __init__(self, people: int) -> None:
        self._people = people
        self._scores = np.empty(0, dtype=np.float32)
        self._owners = np.empty(0, dtype=np.int64)
        self._rows = np.empty(0, dtype=np.int64)
        self._bar = np.float32(-np.inf)
        self._step = _FIRST

    def take(self, scores: Embeddings, owners: Owners, top: int) -> None:
        start = 0
        while start < len(scores):
            part = scores[start : start + self._step]
            better = np.flatnonzero(part > self._bar) + start
            better = better[owners[better] != NOBODY]
            if better.size:
                self._merge(scores[better], owners[better], better + top)
            start += len(part)
            self._step = min(2 * self._step, _MOST)

    def _merge(self, scores: Embeddings, owners: Owners, rows: Owners) -> None:
        scores = np.concatenate((self._scores, scores))
        owners = np.concatenate((self._owners, owners))
        rows = np.concatenate((self._rows, rows))
        order = np.argsort(-scores, kind="stable")  # of equals the earlier row stays ahead
        _, first = np.unique(owners[order], return_index=True)  # each person once, by the best
        kept = order[np.sort(first)[: self._people]]
        self._scores, self._owners, self._rows = scores[kept], owners[kept], rows[kept]
        if len(kept) == self._people:
            self._bar = self._scores[-1]

    def falling(self) -> list[Found]:
        each = zip(self._owners.tolist(), self._rows.tolist(), self._scores.tolist(), strict=True)
        return list(each)
