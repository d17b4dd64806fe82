"""The scores of many pairs in a few hundred numbers: how many lie at or above any score.

The 128 highest are kept exactly, for there a few pairs decide on a rate; below, every score whose
rank is 5 % further. What lies between two of them is counted as if it lay above: the rate is never
understated, and overstated by 5 % at most.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

import numpy as np

from sphereface2.evaluation.metrics import FloatArray, IntArray
from sphereface2.evaluation.thresholds import allowed
from sphereface2.evaluation.uncertainty import (
    WILSON,
    WILSON_OVER_PEOPLE,
    Interval,
    Rate,
    replicated_shares,
    wilson_ends,
)

_EXACT = 128
_STEP = 1.05
_PROBED = (0.5, 0.1, 0.01, 0.001)  # shares at which pairs are compared with independent ones
_FEWEST = 20  # pairs above a score, to compare at
_REPLICATES = 200


@dataclass(frozen=True)
class RankedScores:
    """Scores of one kind of pairs.

    scores: falling; ranks: how many pairs score at least that, the last being all of them
    worth: at shares that fall, how many pairs that share no person would be as sure as these
    """

    scores: tuple[float, ...]
    ranks: tuple[int, ...]
    worth: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, scores: FloatArray, people: IntArray | None = None) -> Self:
        """The scores of (n,) pairs; `people` (n, 2) are those that they show, where known."""
        falling = np.sort(scores)[::-1]
        total = falling.size
        exact = np.arange(1, min(_EXACT, total) + 1)
        steps = max(0, int(np.ceil(np.log(total / _EXACT) / np.log(_STEP))))
        further = np.floor(_EXACT * _STEP ** np.arange(1, steps + 1)).astype(np.int64)
        ranks = np.unique(np.concatenate([exact, further[further < total], [total]]))
        return cls(
            tuple(falling[ranks - 1].tolist()),
            tuple(ranks.tolist()),
            _worth(falling, scores, people),
        )

    @property
    def pairs(self) -> int:
        return self.ranks[-1]

    def at_or_above(self, score: float) -> int:
        """How many pairs score at least `score`; at most 5 % too many."""
        kept = bisect_right(self.scores, -score, key=lambda each: -each)
        if kept == len(self.ranks):
            return self.pairs
        return self.ranks[kept] - 1

    def rate(self, score: float) -> Rate:
        """The share of the pairs that score at least `score`, with its interval.

        The interval is Wilson's for as many independent pairs as these are worth at that share: of
        the two nearest shares where that is known, the lesser worth.
        """
        count = self.at_or_above(score)
        share = count / self.pairs
        above = [pairs for known, pairs in self.worth if known >= share]
        below = [pairs for known, pairs in self.worth if known < share]
        worth = min([*above[-1:], *below[:1]])
        low, high = wilson_ends(share, worth)
        method = WILSON if worth == self.pairs else WILSON_OVER_PEOPLE
        return Rate(share, count, self.pairs, Interval(low, high, 0.95, method))

    def threshold(self, share: float) -> float:
        """The lowest score known that at most this share of the pairs reaches."""
        most = allowed(share, self.pairs)
        if most >= self.pairs:
            return self.scores[-1]
        # The first pair that must stay below has the rank most + 1; a kept one at or before it.
        kept = bisect_right(self.ranks, most + 1) - 1
        return float(np.nextafter(self.scores[kept], np.inf))


def _worth(
    falling: FloatArray, scores: FloatArray, people: IntArray | None
) -> tuple[tuple[float, float], ...]:
    """How many independent pairs would scatter as these do when their people are drawn again."""
    total = float(scores.size)
    if people is None:
        return ((1.0, total),)
    found: list[tuple[float, float]] = []
    for share in _PROBED:
        count = int(share * total)
        if found and count < _FEWEST:
            break
        threshold = falling[max(count, 1) - 1]
        drawn = replicated_shares(scores >= threshold, people, replicates=_REPLICATES)
        spread = float(np.var(drawn))
        worth = share * (1 - share) / spread if spread > 0 else total
        found.append((share, max(1.0, min(worth, total))))
    return tuple(found)
