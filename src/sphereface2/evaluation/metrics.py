"""The numbers of 1:1 verification, as pure functions of (scores, same).

`scores` (n,) says how alike the two images of each pair are, `same` (n,) whether they show one
person. One convention everywhere: a pair is accepted if score >= threshold. Pairs with equal
scores can only be accepted together, so every curve and rate moves over whole groups of ties.
Each function sorts once: O(n log n).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Counts = IntArray | FloatArray


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Every operating point there is, from "accept none" to "accept all".

    thresholds: (p,) falling; the first lies just above the highest score and accepts nothing
    false_accepts, true_accepts: (p,) counts of impostor and genuine pairs accepted there
    """

    thresholds: FloatArray
    false_accepts: IntArray
    true_accepts: IntArray


@dataclass(frozen=True)
class FoldAccuracy:
    """Accuracy on each fold, at the threshold chosen on all the others."""

    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def std(self) -> float:
        """Population standard deviation over the folds (divisor k).

        This is what published tables print after "±". The LFW authors' own "standard error of the
        mean" is the sample deviation over sqrt(k), about a third of it at ten folds.
        """
        return float(np.std(self.accuracies))

    @property
    def mean_threshold(self) -> float:
        return float(np.mean(self.thresholds))


def roc_curve(scores: npt.ArrayLike, same: npt.ArrayLike) -> RocCurve:
    """The exact ROC: one point for each distinct score, and one that accepts nothing."""
    values, kinds = checked_pairs(scores, same)
    order, last, thresholds = falling(values)
    true_accepts = np.cumsum(kinds[order], dtype=np.int64)[last]
    false_accepts = last + 1 - true_accepts
    return RocCurve(
        thresholds=thresholds,
        false_accepts=np.concatenate([[0], false_accepts]).astype(np.int64),
        true_accepts=np.concatenate([[0], true_accepts]).astype(np.int64),
    )


def falling(
    scores: FloatArray,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray]:
    """The order from the highest score down, where in it a threshold may cut, and the thresholds.

    It cuts after the last pair of a group of equal scores; the first threshold accepts nothing.
    """
    order = np.argsort(-scores, kind="stable")
    values = scores[order]
    last = np.flatnonzero(np.append(np.diff(values) != 0, True))
    above = np.nextafter(values[0], np.inf)  # finite, so that every threshold fits into JSON
    return order, last, np.concatenate([[above], values[last]])


def area_under_curve(scores: npt.ArrayLike, same: npt.ArrayLike) -> float:
    """The chance that a genuine pair scores above an impostor pair; a tie counts half."""
    roc = roc_curve(scores, same)
    return float(areas(roc.false_accepts[None], roc.true_accepts[None])[0])


def areas(false_accepts: Counts, true_accepts: Counts) -> FloatArray:
    """The area under each of several ROCs (r, p), as `RocCurve` counts them."""
    # Twice the area in whole pairs, so the sum is exact: trapezia over the groups of ties.
    steps = np.diff(false_accepts, axis=1)
    doubled = np.einsum("rp,rp->r", steps, true_accepts[:, 1:] + true_accepts[:, :-1])
    found: FloatArray = doubled / (2.0 * false_accepts[:, -1] * true_accepts[:, -1])
    return found


def equal_error_rate(scores: npt.ArrayLike, same: npt.ArrayLike) -> float:
    """The rate at which FAR equals FRR = 1 - TAR.

    The two rarely meet at an operating point. Between the last point with FAR < FRR and the next
    one both are taken to run linearly, and the value where these lines cross is returned.
    """
    roc = roc_curve(scores, same)
    return float(equal_error_rates(roc.false_accepts[None], roc.true_accepts[None])[0])


def equal_error_rates(false_accepts: Counts, true_accepts: Counts) -> FloatArray:
    """The EER of each of several ROCs (r, p), as `RocCurve` counts them."""
    rows = np.arange(len(false_accepts))
    far = false_accepts / false_accepts[:, -1:]
    frr = 1.0 - true_accepts / true_accepts[:, -1:]
    after = np.argmax(far >= frr, axis=1)  # exists: "accept all" has FAR 1 and FRR 0
    before = after - 1  # exists: "accept none" has FAR 0 and FRR 1
    gap_before = frr[rows, before] - far[rows, before]
    gap_after = far[rows, after] - frr[rows, after]
    share = gap_before / (gap_before + gap_after)
    found: FloatArray = far[rows, before] + share * (far[rows, after] - far[rows, before])
    return found


def best_threshold_accuracy(scores: npt.ArrayLike, same: npt.ArrayLike) -> tuple[float, float]:
    """The highest accuracy that any one threshold reaches on all pairs at once, and that threshold.

    It looks at the answers it is judged by, so it reads higher than `fold_accuracy`; never quote
    the one under the name of the other. Thresholds and ties as in `fold_accuracy`.
    """
    values, kinds = checked_pairs(scores, same)
    order = np.argsort(values, kind="stable")
    threshold = _best_threshold(values[order], kinds[order])
    return float(np.mean((values >= threshold) == kinds)), threshold


def fold_accuracy(scores: npt.ArrayLike, same: npt.ArrayLike, folds: npt.ArrayLike) -> FoldAccuracy:
    """The LFW protocol: the threshold of each fold is chosen on all the other folds.

    Chosen is the threshold of highest accuracy among the midpoints between neighbouring scores,
    "accept all" (the lowest score) and "accept none" (just above the highest score); of several
    that are equally good, the lowest.
    """
    values, kinds = checked_pairs(scores, same)
    numbers = np.asarray(folds)
    if numbers.shape != values.shape:
        raise ValueError(f"{values.size} scores but folds of shape {numbers.shape}; give one each")
    names = np.unique(numbers)
    if names.size < 2:
        raise ValueError(f"fold accuracy needs at least two folds, got {names.size}")
    order = np.argsort(values, kind="stable")
    values, kinds, numbers = values[order], kinds[order], numbers[order]
    accuracies, thresholds = [], []
    for name in names:
        held_out = numbers == name
        # Sorted once: leaving a fold out keeps the others in order.
        threshold = _best_threshold(values[~held_out], kinds[~held_out])
        right = (values[held_out] >= threshold) == kinds[held_out]
        thresholds.append(threshold)
        accuracies.append(float(np.mean(right)))
    return FoldAccuracy(tuple(accuracies), tuple(thresholds))


def _best_threshold(values: FloatArray, kinds: BoolArray) -> float:
    """The lowest of the most accurate thresholds; `values` come in rising order."""
    # Cut c rejects the first `rejected[c]` pairs and accepts the rest; never inside a tie.
    rejected = np.concatenate([[0], np.flatnonzero(np.diff(values) != 0) + 1, [values.size]])
    genuine_below = np.concatenate([[0], np.cumsum(kinds)])
    impostors_below = np.arange(values.size + 1) - genuine_below
    right = impostors_below[rejected] + genuine_below[-1] - genuine_below[rejected]
    cut = int(rejected[np.argmax(right)])  # argmax takes the first, that is the lowest
    if cut == 0:
        return float(values[0])
    if cut == values.size:
        return float(np.nextafter(values[-1], np.inf))
    below, above = float(values[cut - 1]), float(values[cut])
    midpoint = below + (above - below) / 2.0
    # Between two neighbouring floats the midpoint rounds onto one of them.
    return midpoint if midpoint > below else above


def checked_pairs(scores: npt.ArrayLike, same: npt.ArrayLike) -> tuple[FloatArray, BoolArray]:
    """The two as arrays; a ValueError if they are not scores of pairs of both kinds."""
    values = np.asarray(scores, dtype=np.float64)
    kinds = np.asarray(same, dtype=np.bool_)
    if values.ndim != 1 or values.shape != kinds.shape:
        raise ValueError(
            f"scores and same must be two lists of one length, got shapes {values.shape} "
            f"and {kinds.shape}"
        )
    genuine = int(np.count_nonzero(kinds))
    if genuine in (0, kinds.size):
        raise ValueError(
            f"verification needs pairs of both kinds, got {genuine} genuine and "
            f"{kinds.size - genuine} impostor pairs"
        )
    unusable = np.flatnonzero(~np.isfinite(values))
    if unusable.size:
        raise ValueError(
            f"{unusable.size} of {values.size} scores are not finite; the first is that of "
            f"pair {unusable[0]}"
        )
    return values, kinds


@dataclass(frozen=True)
class RocPoints:
    """A ROC thinned for drawing: exact operating points, dense in log FAR and in TAR."""

    far: tuple[float, ...]
    tar: tuple[float, ...]
    threshold: tuple[float, ...]
