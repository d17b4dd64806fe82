"""How sure a number is: confidence intervals, and rates that carry theirs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

WILSON = "wilson"
WITH_THRESHOLD = "wilson, with the threshold's own interval"
OVER_PEOPLE = "bootstrap over people"
OVER_PAIRS = "bootstrap over pairs"


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


def wilson(successes: int, trials: int, *, confidence: float = 0.95) -> Rate:
    """The share of independent trials that succeeded, with Wilson's score interval.

    Unlike the textbook interval it stays inside 0 to 1 and is honest where all trials (or none)
    succeeded. Where trials share people it is too narrow: resample the people then.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(
            f"a rate needs at least one trial and 0 to trials successes, got {successes} of "
            f"{trials}"
        )
    z = normal_quantile(confidence)
    share = successes / trials
    spread = 1.0 + z * z / trials
    centre = (share + z * z / (2 * trials)) / spread
    half = z / spread * (share * (1 - share) / trials + z * z / (4 * trials * trials)) ** 0.5
    # At the ends the two terms cancel exactly; rounding must not leave a trace of them.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return Rate(share, successes, trials, Interval(low, high, confidence, WILSON))


def normal_quantile(confidence: float) -> float:
    """How many standard deviations hold `confidence` of a normal distribution: 1.96 for 95 %."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    return NormalDist().inv_cdf((1.0 + confidence) / 2.0)


def percentiles(replicates: FloatArray, *, method: str, confidence: float = 0.95) -> Interval:
    """The middle `confidence` of a statistic's bootstrap replicates."""
    normal_quantile(confidence)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(replicates, [tail, 1.0 - tail])
    return Interval(float(low), float(high), confidence, method)


def logit_normal(
    value: float,
    replicates: FloatArray,
    *,
    method: str,
    finest: float = 1e-9,
    confidence: float = 0.95,
) -> Interval:
    """An interval for a share near 1 (an AUC): normal on the scale of log(p / (1 - p)).

    There the spread hardly depends on the value; percentiles of few people sit too high. `finest`
    is the smallest error that the data can show: a replicate without any is taken to have half of
    it, for on this scale none at all is infinitely far away.
    """
    if not 0.0 < value < 1.0:
        return percentiles(replicates, method=method, confidence=confidence)
    inside = np.clip(replicates, finest / 2, 1.0 - finest / 2)
    half = normal_quantile(confidence) * float(np.std(np.log(inside / (1.0 - inside))))
    centre = math.log(value / (1.0 - value))
    low, high = (1.0 / (1.0 + math.exp(-end)) for end in (centre - half, centre + half))
    return Interval(low, high, confidence, method)


def wider(interval: Interval, other: Interval) -> Interval:
    """The hull of two intervals under the first one's name.

    A bootstrap of a rate that has no errors sees none in any replicate and would claim certainty;
    Wilson's interval for the same counts is what it must not fall below.
    """
    return Interval(
        min(interval.low, other.low),
        max(interval.high, other.high),
        interval.confidence,
        interval.method,
    )


# Rates of hits and misses with their intervals, people resampled where they are known.

WILSON_OVER_PEOPLE = "wilson over people"

Hits = npt.NDArray[np.bool_]
People = npt.NDArray[Any]


def rate_of(
    hits: Hits,
    people: People | None,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Rate:
    """The share of `hits`; `people` (n,) says whose trial each is, None that nobody knows."""
    if people is None:
        return wilson(int(np.count_nonzero(hits)), hits.size, confidence=confidence)
    return mean_rate([(hits, people)], confidence=confidence, resamples=resamples, seed=seed)


def mean_rate(
    parts: Sequence[tuple[Hits, People]],
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Rate:
    """The mean of the shares of several parts (the galleries of IJB), each resampled by people.

    A person drawn brings all of their trials, so trials of one person are not taken for
    independent ones. The threshold behind the hits is held fixed. `successes` and `trials` are
    sums over the parts, so with several parts their quotient need not be `value`.
    """
    if not parts or any(hits.size == 0 for hits, _ in parts):
        raise ValueError("a rate needs at least one trial")
    successes = sum(int(np.count_nonzero(hits)) for hits, _ in parts)
    trials = sum(hits.size for hits, _ in parts)
    value = float(np.mean([np.count_nonzero(hits) / hits.size for hits, _ in parts]))
    rng = np.random.default_rng(seed)
    tables = [_by_person(hits, people) for hits, people in parts]
    if successes in (0, trials):
        # Every resample looks the same, which says nothing; at worst each person is one trial.
        count = sum(len(table) for table in tables)
        plain = wilson(count if successes else 0, count, confidence=confidence)
        interval = replace(plain.interval, method=WILSON_OVER_PEOPLE)
        return Rate(value, successes, trials, interval)
    drawn = np.mean([_resampled(table, resamples, rng) for table in tables], axis=0)
    interval = percentiles(drawn, method=OVER_PEOPLE, confidence=confidence)
    return Rate(value, successes, trials, interval)


def _by_person(hits: Hits, people: People) -> npt.NDArray[np.float64]:
    """(people, 2): hits and trials of each person."""
    names, codes = np.unique(people, return_inverse=True)
    return np.stack(
        [
            np.bincount(codes, weights=hits, minlength=names.size),
            np.bincount(codes, minlength=names.size),
        ],
        axis=1,
    )


def _resampled(
    table: npt.NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    count = len(table)
    sums = np.empty((resamples, 2))
    for number in range(resamples):
        times = np.bincount(rng.integers(0, count, count), minlength=count)
        sums[number] = times @ table
    shares: npt.NDArray[np.float64] = sums[:, 0] / sums[:, 1]
    return shares
