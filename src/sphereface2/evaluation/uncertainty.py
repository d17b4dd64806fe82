"""How sure a number is: intervals, rates that carry theirs, and the bootstrap over people."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.metrics import (
    BoolArray,
    FloatArray,
    IntArray,
    areas,
    equal_error_rates,
    falling,
)

People = npt.NDArray[Any]

WILSON = "wilson"
WITH_THRESHOLD = "wilson, with the threshold's own interval"
OVER_PEOPLE = "bootstrap over people"
OVER_PAIRS = "bootstrap over pairs"
WILSON_OVER_PEOPLE = "wilson over people"

CONFIDENCE = 0.95
DEVIATIONS = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)
"""So many standard deviations to either side hold 95 % of a normal distribution: 1.96."""
REPLICATES = 1000
_CELLS = 400_000  # weights per chunk: replicates × pairs, so that a chunk stays in the cache
_BUDGET = 300_000_000  # weights in all: a list of millions of pairs gets fewer replicates
_FEWEST = 100


@dataclass(frozen=True)
class Interval:
    """Where the true value lies, as far as the trials at hand can tell."""

    low: float
    high: float
    confidence: float
    method: str


@dataclass(frozen=True)
class Rate:
    """A share of trials with its interval."""

    value: float
    successes: int
    trials: int
    interval: Interval


def wilson(successes: int, trials: int) -> Rate:
    """The share of independent trials that succeeded, with Wilson's score interval.

    Unlike the textbook interval it stays inside 0 to 1 and is honest where all trials (or none)
    succeeded. Where trials share people it is too narrow: resample the people then.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(
            f"a rate needs at least one trial and 0 to trials successes, got {successes} of "
            f"{trials}"
        )
    share = successes / trials
    low, high = wilson_ends(share, trials)
    return Rate(share, successes, trials, Interval(low, high, CONFIDENCE, WILSON))


def wilson_ends(share: float, trials: float) -> tuple[float, float]:
    """The ends of Wilson's interval; `trials` need not be whole where they stand for others.

    scipy has it for whole trials only (`binomtest`, which a test compares with).
    """
    z = DEVIATIONS
    spread = 1.0 + z * z / trials
    centre = (share + z * z / (2 * trials)) / spread
    half = z / spread * (share * (1 - share) / trials + z * z / (4 * trials * trials)) ** 0.5
    # At the ends the two terms cancel exactly; rounding must not leave a trace of them.
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return low, high


def percentiles(replicates: FloatArray, *, method: str) -> Interval:
    """The middle 95 % of a statistic's bootstrap replicates."""
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(replicates, [tail, 1.0 - tail])
    return Interval(float(low), float(high), CONFIDENCE, method)


def logit_normal(
    value: float, replicates: FloatArray, *, method: str, finest: float = 1e-9
) -> Interval:
    """An interval for a share near 1 (an AUC): normal on the scale of log(p / (1 - p)).

    There the spread hardly depends on the value; percentiles of few people sit too high. `finest`
    is the smallest error that the data can show: a replicate without any is taken to have half of
    it: on this scale none at all is infinitely far away.
    """
    if not 0.0 < value < 1.0:
        return percentiles(replicates, method=method)
    inside = np.clip(replicates, finest / 2, 1.0 - finest / 2)
    half = DEVIATIONS * float(np.std(np.log(inside / (1.0 - inside))))
    centre = math.log(value / (1.0 - value))
    low, high = (1.0 / (1.0 + math.exp(-end)) for end in (centre - half, centre + half))
    return Interval(low, high, CONFIDENCE, method)


def wider(interval: Interval, other: Interval) -> Interval:
    """The hull of two intervals under the first one's name.

    A bootstrap of a rate that has no errors sees none in any replicate and would claim certainty;
    Wilson's interval for the same counts is what it must not fall below.
    """
    low, high = min(interval.low, other.low), max(interval.high, other.high)
    return replace(interval, low=low, high=high)


def rate_of(hits: BoolArray, people: People | None) -> Rate:
    """The share of `hits`; `people` (n,) says whose trial each is, None that nobody knows."""
    if people is None:
        return wilson(int(np.count_nonzero(hits)), hits.size)
    return mean_rate([(hits, people)])


def mean_rate(parts: Sequence[tuple[BoolArray | FloatArray, People]]) -> Rate:
    """The mean of the shares of several parts (the galleries of IJB), each resampled by people.

    A trial is a hit or none, or a number from 0 to 1, such as the average precision of a probe.

    A person drawn brings all of their trials, so trials of one person are not taken for
    independent ones. The threshold behind the hits is held fixed. `successes` and `trials` are
    sums over the parts, so with several parts their quotient need not be `value`.
    """
    if not parts or any(hits.size == 0 for hits, _ in parts):
        raise ValueError("a rate needs at least one trial")
    total = sum(float(hits.sum()) for hits, _ in parts)
    successes = round(total)
    trials = sum(hits.size for hits, _ in parts)
    value = float(np.mean([hits.mean() for hits, _ in parts]))
    rng = np.random.default_rng(0)
    tables = [_by_person(hits, people) for hits, people in parts]
    if total in (0, trials):
        # Every resample looks the same, which says nothing; at worst each person is one trial.
        count = sum(len(table) for table in tables)
        plain = wilson(count if successes else 0, count)
        interval = replace(plain.interval, method=WILSON_OVER_PEOPLE)
    else:
        drawn = np.mean([_resampled(table, rng) for table in tables], axis=0)
        interval = percentiles(drawn, method=OVER_PEOPLE)
    return Rate(value, successes, trials, interval)


def _by_person(hits: BoolArray | FloatArray, people: People) -> FloatArray:
    """(people, 2): hits and trials of each person."""
    codes = np.unique(people, return_inverse=True)[1]
    return np.stack([np.bincount(codes, weights=hits), np.bincount(codes)], axis=1)


def _resampled(table: FloatArray, rng: np.random.Generator) -> FloatArray:
    count = len(table)
    sums = np.empty((REPLICATES, 2))
    for number in range(REPLICATES):
        times = np.bincount(rng.integers(0, count, count), minlength=count)
        sums[number] = times @ table
    shares: FloatArray = sums[:, 0] / sums[:, 1]
    return shares


# -- the bootstrap over people: what every number of 1:1 verification would have been on others ----
#
# Pairs that share a person are not independent: one face that is hard to recognise spoils all of
# its pairs at once. So people are drawn with replacement, not pairs. A replicate weighs a genuine
# pair by how often its person was drawn, an impostor pair by the product for its two people. The
# statistics are those of `metrics` for pairs repeated as often as their weight says, thresholds
# chosen again.


@dataclass(frozen=True, eq=False)
class Replicates:
    """The statistics of one model in each of r replicates, for d decisions and t target FARs.

    accuracy: (r, d); tar, threshold: (r, t); eer, auc: (r,); method: what was drawn
    """

    method: str
    accuracy: FloatArray
    tar: FloatArray
    threshold: FloatArray
    eer: FloatArray
    auc: FloatArray

    def interval(self, values: FloatArray) -> Interval:
        """Of one statistic, or of a difference between two models."""
        return percentiles(values, method=self.method)


def replicate(
    models: Sequence[tuple[FloatArray, BoolArray]],
    same: BoolArray,
    people: IntArray | None,
    *,
    targets: Sequence[float] = (),
    replicates: int = REPLICATES,
    seed: int = 0,
) -> list[Replicates]:
    """Statistics of several models on the same replicates of the same n pairs.

    models: of each its (n,) scores, and (n, d) whether each pair was decided right in d ways; the
        thresholds of these decisions stay as they were: at the best threshold accuracy is flat, so
        that their own scatter hardly counts
    people: (n, 2) who the two images show; without it every pair is its own and pairs are drawn
    """
    who = _numbered(people, same.size)
    curves = [_SortedPairs(scores, same, who) for scores, _ in models]
    parts: list[list[tuple[FloatArray, ...]]] = [[] for _ in models]
    for drawn in _draws(who, replicates=replicates, seed=seed):
        # Of very few people some draws may lack genuine or impostor pairs.
        kinds = _weights(drawn, who) @ np.stack([same, ~same], axis=1).astype(np.float64)
        drawn = drawn[kinds.all(axis=1)]
        if not len(drawn):
            continue
        shares = _shares(drawn, who, same, [right for _, right in models])
        for number, curve in enumerate(curves):
            false_accepts, true_accepts = curve.accepted(drawn)
            tar, threshold = curve.at_far(false_accepts, true_accepts, targets)
            eer = equal_error_rates(false_accepts, true_accepts)
            auc = areas(false_accepts, true_accepts)
            parts[number].append((shares[number], tar, threshold, eer, auc))
    if not parts[0]:
        raise ValueError(
            f"no replicate of the {who.max() + 1} people has pairs of both kinds; "
            "a bootstrap over people needs more of them"
        )
    method = OVER_PAIRS if people is None else OVER_PEOPLE
    return [Replicates(method, *map(np.concatenate, zip(*rows, strict=True))) for rows in parts]


def replicated_shares(
    counted: BoolArray, people: IntArray, *, replicates: int = REPLICATES
) -> FloatArray:
    """The share of the pairs that count, in each replicate of their people."""
    who = np.unique(people, return_inverse=True)[1].reshape(people.shape).astype(np.int64)
    shares = []
    for drawn in _draws(who, replicates=replicates, seed=0):
        weights = _weights(drawn, who)
        total = weights.sum(axis=1)
        # Of very few people a draw may hold no pair at all.
        shares.append((weights @ counted.astype(np.float64))[total > 0] / total[total > 0])
    return np.concatenate(shares)


class _SortedPairs:
    """The pairs of one model from the highest score down, with the groups of equal scores."""

    def __init__(self, scores: FloatArray, same: BoolArray, who: IntArray) -> None:
        order, self.last, self.thresholds = falling(scores)
        self.who = who[order]
        self.same = same[order].astype(np.float64)

    def accepted(self, drawn: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted false and true accepts (r, p) at every threshold, as in `RocCurve`."""
        weights = _weights(drawn, self.who)
        true_accepts = np.cumsum(weights * self.same, axis=1)
        false_accepts = np.cumsum(weights, axis=1) - true_accepts
        none = ((0, 0), (1, 0))  # a first column for the threshold that accepts nothing
        return np.pad(false_accepts[:, self.last], none), np.pad(true_accepts[:, self.last], none)

    def at_far(
        self, false_accepts: FloatArray, true_accepts: FloatArray, targets: Sequence[float]
    ) -> tuple[FloatArray, FloatArray]:
        """The highest TAR whose FAR does not exceed each target, and its highest threshold."""
        tar = np.empty((len(false_accepts), len(targets)))
        threshold = np.empty_like(tar)
        limits = np.asarray(targets) * (1.0 + 1e-12)
        for row, (false, true) in enumerate(zip(false_accepts, true_accepts, strict=True)):
            last = np.searchsorted(false, limits * false[-1], side="right") - 1
            tar[row] = true[last] / true[-1]
            threshold[row] = self.thresholds[np.searchsorted(true, true[last], side="left")]
        return tar, threshold


def _shares(
    drawn: FloatArray, who: IntArray, same: BoolArray, right: Sequence[BoolArray]
) -> list[FloatArray]:
    """The accuracy of each model; the mix of genuine and impostor pairs stays that of the set."""
    weights = _weights(drawn, who)
    columns = np.column_stack([*right, np.ones_like(same)])
    genuine = weights @ (columns & same[:, None]).astype(np.float64)
    impostor = weights @ (columns & ~same[:, None]).astype(np.float64)
    mix = np.count_nonzero(same) / same.size
    accuracy = mix * genuine[:, :-1] / genuine[:, -1:]
    accuracy += (1.0 - mix) * impostor[:, :-1] / impostor[:, -1:]
    return np.split(accuracy, np.cumsum([each.shape[1] for each in right])[:-1], axis=1)


def _weights(drawn: FloatArray, who: IntArray) -> FloatArray:
    weights = np.take(drawn, who[:, 0], axis=1)
    two = np.flatnonzero(who[:, 0] != who[:, 1])
    weights[:, two] *= np.take(drawn, who[two, 1], axis=1)
    return weights


def _draws(who: IntArray, *, replicates: int, seed: int) -> Iterator[FloatArray]:
    """How often each person was drawn (r, people), in chunks; the same for the same seed."""
    people = int(who.max()) + 1
    if replicates < 1:
        raise ValueError(f"a bootstrap needs at least one replicate, got {replicates}")
    generator = np.random.default_rng(seed)
    wanted = min(replicates, max(_FEWEST, _BUDGET // len(who)))
    size = max(1, _CELLS // max(len(who), people))
    for start in range(0, wanted, size):
        rows = min(size, wanted - start)
        picks = generator.integers(0, people, (rows, people))
        picks += people * np.arange(rows)[:, None]
        counts = np.bincount(picks.ravel(), minlength=rows * people).reshape(rows, people)
        yield counts.astype(np.float64)


def _numbered(people: IntArray | None, pairs: int) -> IntArray:
    """People as 0, 1, ...; without people, each pair is its own."""
    if people is None:
        return np.repeat(np.arange(pairs, dtype=np.int64)[:, None], 2, axis=1)
    known, numbers = np.unique(people, return_inverse=True)
    if known.size < 2:
        raise ValueError(f"a bootstrap over people needs at least two of them, got {known.size}")
    return numbers.reshape(people.shape).astype(np.int64)
