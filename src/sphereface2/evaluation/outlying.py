"""Which of many values lie too low to be like the rest, with a stated share of false alarms."""

import math
from collections.abc import Callable
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


Expected = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""How many rightly labelled images are expected below each of these margins."""

_LEAST_ABOVE = 40
_PARTS = 3
_ROUNDS = 20


def right_below(margins: Floats, lowest: float) -> Expected | None:
    """How many rightly labelled images lie below margins of 0 and less; None if nobody can say.

    lowest: the margin of a right image in which nothing of its person is left

    Wrong labels have margins below 0, so what lies just above is right: hard images included. How
    these thin out over the lowest quarter of the positive margins is continued below 0, as an
    exponential, which falls more slowly than a normal tail does. Where the lowest third of that
    stretch holds more images than the exponential, the surplus are hard images (profiles, blur)
    that do not thin out: they are taken to be as many on every stretch down to `lowest`.

    If the images do not thin out towards 0, most of the right ones lie around it or below: the
    model is too weak.
    """
    above = np.asarray(margins[margins > 0], np.float64)
    if len(above) < _LEAST_ABOVE:
        return None
    width = float(np.percentile(above, 25))
    place = above[above <= width] / width
    count, mean = len(place), float(place.mean())
    # Two standard errors of the mean of as many evenly spread numbers.
    if mean < 0.5 + 2 / math.sqrt(12 * count):
        return None
    lowest_part = np.count_nonzero(place < 1 / _PARTS)
    hard = 0.0
    for _ in range(_ROUNDS):  # what one of the two is made of is taken off for the other
        rise = _rise((count * mean - hard / 2) / (count - hard))
        below = (count - hard) / math.expm1(rise)
        hard = _PARTS * max(lowest_part - below * math.expm1(rise / _PARTS), 0.0)

    def expected(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        spread = np.maximum(values - lowest, 0) / width
        return below * np.exp(rise * values / width) + hard * spread

    return expected


def _rise(mean: float) -> float:
    """The r of a density that grows as exp(r x) from 0 to 1 and has this mean, above one half."""
    low, high = 1e-6, 1e4
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if -1 / math.expm1(-middle) - 1 / middle < mean:
            low = middle
        else:
            high = middle
    return min(low, 500.0)  # exp of more overflows
