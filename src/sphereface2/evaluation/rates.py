"""Rates of hits and misses with their intervals, people resampled where they are known."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.intervals import OVER_PEOPLE, Interval, Rate, wilson

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
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(drawn, [tail, 1.0 - tail])
    return Rate(
        value, successes, trials, Interval(float(low), float(high), confidence, OVER_PEOPLE)
    )


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
