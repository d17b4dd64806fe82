"""Which of many values lie too low to be like the rest, with a stated share of false alarms."""

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def centre_and_spread(values: Floats) -> tuple[float, float]:
    """The median, and the distance to the lower quartile as a standard deviation.

    The lower half only: what is sought lies there, and hard images make it wider than the upper.
    Up to a quarter of wrong values hardly move either number.
    """
    low, median = np.percentile(np.asarray(values, np.float64), [25, 50])
    quartile = NormalDist().inv_cdf(0.75)
    return float(median), max(float(median - low) / quartile, 1e-9)


def chance_below(values: Floats, median: float, spread: float) -> npt.NDArray[np.float64]:
    """The chance of a normal value as low as each of these."""
    normal = NormalDist(median, spread)
    return np.array([normal.cdf(float(value)) for value in values], np.float64)


def within_false_alarms(chances: npt.NDArray[np.float64], share: float) -> npt.NDArray[np.bool_]:
    """The values to name so that `share` of them are expected to be there by chance.

    Benjamini and Hochberg 1995: of n chances in order the largest k with p_k ≤ share · k / n, and
    all up to it.
    """
    order = np.argsort(chances, kind="stable")
    limit = share * np.arange(1, len(chances) + 1) / max(len(chances), 1)
    below = np.flatnonzero(chances[order] <= limit)
    named = np.zeros(len(chances), np.bool_)
    if len(below):
        named[order[: below[-1] + 1]] = True
    return named
