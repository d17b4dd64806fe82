"""The centres of people in embedding space, robust against wrong labels, computed in blocks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from sphereface2.workers import Progress, unseen

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

TRIMMED = 5
"""One image in this many, the least typical of its person, does not count for the centre."""

_BLOCK = 4096  # images at once
_CLASSES = 4096  # centres at once: a block of cosines is then 64 MB
_ROUNDS = 2


@dataclass(frozen=True, eq=False)
class Centres:
    """Unit centres (K, D) of people, of how many images each is made, and the images' own part.

    own: the similarity of each image to the centre that the others of its person make (N); it is
    scaled as if that centre were made of very many images, so that people with few and with many
    compare. 0 where there is no other image, and for a label of -1.
    """

    direction: Floats
    count: Integers
    own: Floats
    kept: npt.NDArray[np.bool_]


def unit_rows(block: npt.NDArray[np.floating]) -> Floats:
    """Rows of length 1; rows of zeros stay."""
    rows = np.asarray(block, np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(length, 1e-12), np.float32)


def trimmed_centres(embeddings: Floats, labels: Integers) -> Centres:
    """The centre of each person without its least typical fifth of images.

    Which those are is found with the centre of all, and once more with the trimmed centre: a wrong
    image pulls the first centre towards itself.
    """
    people = int(labels.max()) + 1 if len(labels) else 0
    kept = labels >= 0
    for _ in range(_ROUNDS):
        _, _, own, _ = _centred(embeddings, labels, kept, people)
        kept = _most_typical(own, labels)
    sums, count, own, others = _centred(embeddings, labels, kept, people)
    scale = _small_centre_scale(sums, count, others)
    return Centres(
        direction=unit_rows(sums),
        count=count,
        own=np.asarray(np.minimum(own * scale, 1), np.float32),
        kept=kept,
    )


def nearest_others(
    embeddings: Floats,
    labels: Integers,
    centres: Centres,
    *,
    alike: Sequence[tuple[int, int]] = (),
    progress: Progress = unseen,
) -> tuple[Floats, Integers]:
    """For each image the similarity and label of the nearest centre that is not its own.

    A centre of a single image stands for no person yet. Two labels that are `alike` are not others
    to each other.
    """
    candidates = np.flatnonzero(centres.count >= 2)
    if len(candidates) < 2:
        candidates = np.flatnonzero(centres.count > 0)
    if len(candidates) < 2:
        raise ValueError("all images are of one person; there is no other whom one could belong to")
    twins: dict[int, list[int]] = {}
    for first, second in alike:
        twins.setdefault(first, []).append(second)
        twins.setdefault(second, []).append(first)
    doubled = np.array(list(twins), np.int64)
    best = np.full(len(labels), -2, np.float32)
    best_label = np.full(len(labels), -1, np.int64)
    for start in range(0, len(labels), _BLOCK):
        rows = slice(start, min(start + _BLOCK, len(labels)))
        images = unit_rows(embeddings[rows])
        for first in range(0, len(candidates), _CLASSES):
            some = candidates[first : first + _CLASSES]
            cosine = images @ centres.direction[some].T
            mine = np.searchsorted(some, labels[rows])
            is_mine = (mine < len(some)) & (some[np.minimum(mine, len(some) - 1)] == labels[rows])
            cosine[np.flatnonzero(is_mine), mine[is_mine]] = -2
            for row in np.flatnonzero(np.isin(labels[rows], doubled)).tolist():
                cosine[row, np.isin(some, twins[int(labels[rows][row])])] = -2
            place = cosine.argmax(axis=1)
            value = cosine[np.arange(len(images)), place]
            better = value > best[rows]
            best[rows][better] = value[better]
            best_label[rows][better] = some[place[better]]
        progress(rows.stop, len(labels))
    return best, best_label


def _centred(
    embeddings: Floats, labels: Integers, kept: npt.NDArray[np.bool_], people: int
) -> tuple[Floats, Integers, Floats, Integers]:
    """The sum and the number of each person's kept images, and of every image two numbers.

    They are the similarity to the centre that the others of its person make, and how many there
    are of these.
    """
    sums = np.zeros((people, embeddings.shape[1]), np.float32)
    for start in range(0, len(labels), _BLOCK):
        rows = slice(start, start + _BLOCK)
        chosen = kept[rows]
        np.add.at(sums, labels[rows][chosen], unit_rows(embeddings[rows])[chosen])
    count = np.bincount(labels[kept], minlength=people).astype(np.int64)
    own = np.zeros(len(labels), np.float32)
    others = np.where(labels >= 0, count[np.maximum(labels, 0)] - kept, 0).astype(np.int64)
    for start in range(0, len(labels), _BLOCK):
        rows = slice(start, start + _BLOCK)
        images = unit_rows(embeddings[rows])
        # Leave one out: an image that counts for the centre is taken off again.
        centre = sums[np.maximum(labels[rows], 0)] - images * kept[rows, None]
        own[rows] = np.where(others[rows] > 0, (images * unit_rows(centre)).sum(axis=1), 0)
    return sums, count, own, others


def _most_typical(own: Floats, labels: Integers) -> npt.NDArray[np.bool_]:
    """All but the least similar fifth of each person's images."""
    order = np.lexsort((own, labels))
    ordered = labels[order]
    first = np.searchsorted(ordered, ordered, side="left")
    size = np.searchsorted(ordered, ordered, side="right") - first
    place = np.arange(len(order)) - first
    kept = np.empty(len(order), np.bool_)
    kept[order] = place >= size // TRIMMED
    return kept & (labels >= 0)


def _small_centre_scale(
    sums: npt.NDArray[np.float32], count: Integers, others: Integers
) -> npt.NDArray[np.float64]:
    """What brings the similarity to a centre of few images up to that of one of very many.

    With a mean similarity ρ of two images of a person, a mean of m unit vectors has the squared
    length ρ + (1 − ρ)/m: chance makes it longer, and the cosine to it smaller.
    """
    large = count >= 4
    if not large.any():
        return np.ones(len(others))
    squared = (sums[large].astype(np.float64) ** 2).sum(axis=1)
    rho = float(np.median((squared / count[large] - 1) / (count[large] - 1)))
    rho = min(max(rho, 0.05), 1.0)
    return np.sqrt((rho + (1 - rho) / np.maximum(others, 1)) / rho)


# Which of many values lie too low to be like the rest, with a stated share of false alarms.

Values = npt.NDArray[np.floating]


def centre_and_spread(values: Values) -> tuple[float, float]:
    """The median, and the distance to the lower quartile as a standard deviation.

    The lower half only: what is sought lies there, and hard images make it wider than the upper.
    Up to a quarter of wrong values hardly move either number.
    """
    low, median = np.percentile(np.asarray(values, np.float64), [25, 50])
    quartile = NormalDist().inv_cdf(0.75)
    return float(median), max(float(median - low) / quartile, 1e-9)


def chance_below(values: Values, median: float, spread: float) -> npt.NDArray[np.float64]:
    """The chance of a normal value as low as each of these."""
    chances: npt.NDArray[np.float64] = ndtr((np.asarray(values, np.float64) - median) / spread)
    return chances


def within_false_alarms(chances: npt.NDArray[np.float64], share: float) -> npt.NDArray[np.bool_]:
    """The values to name so that `share` of them are expected to be there by chance.

    Benjamini and Hochberg 1995: of n chances in order the largest k with p_k ≤ share · k / n, and
    all up to it.
    """
    from scipy.stats import false_discovery_control  # loads slowly, and few need it

    named: npt.NDArray[np.bool_] = false_discovery_control(chances) <= share
    return named


Expected = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""How many rightly labelled images are expected below each of these margins."""

_LEAST_ABOVE = 40
_PARTS = 3
_FIT_ROUNDS = 20


def right_below(margins: Values, lowest: float) -> Expected | None:
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
    for _ in range(_FIT_ROUNDS):  # what one of the two is made of is taken off for the other
        rise = _rise((count * mean - hard / 2) / (count - hard))
        below = (count - hard) / math.expm1(rise)
        hard = _PARTS * max(lowest_part - below * math.expm1(rise / _PARTS), 0.0)

    def expected(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        spread = np.maximum(values - lowest, 0) / width
        return below * np.exp(rise * values / width) + hard * spread

    return expected


def _rise(mean: float) -> float:
    """The r of a density that grows as exp(r x) from 0 to 1 and has this mean, above one half."""
    from scipy.optimize import brentq

    smallest, largest = 1e-6, 500.0  # exp of more overflows

    def excess(rise: float) -> float:
        return -1 / math.expm1(-rise) - 1 / rise - mean

    if excess(smallest) >= 0:
        return smallest
    return largest if excess(largest) <= 0 else float(brentq(excess, smallest, largest))
