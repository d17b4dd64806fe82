"""The bootstrap over people: what every number of 1:1 verification would have been on others.

Pairs that share a person are not independent: one face that is hard to recognise spoils all of its
pairs at once. So people are drawn with replacement, not pairs. A replicate weighs a genuine pair by
how often its person was drawn, an impostor pair by the product for its two people. The statistics
are those of `metrics` for pairs repeated as often as their weight says, thresholds chosen again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sphereface2.evaluation.metrics import BoolArray, FloatArray, IntArray

REPLICATES = 1000
_CELLS = 400_000  # weights a chunk: replicates × pairs, so that a chunk stays in the cache
_BUDGET = 300_000_000  # weights in all: a list of millions of pairs gets fewer replicates
_FEWEST = 100


@dataclass(frozen=True, eq=False)
class Replicates:
    """The statistics of one model in each of r replicates, for d decisions and t target FARs.

    accuracy: (r, d); tar, threshold: (r, t); eer, auc: (r,)
    """

    accuracy: FloatArray
    tar: FloatArray
    threshold: FloatArray
    eer: FloatArray
    auc: FloatArray


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
        drawn = _with_both_kinds(drawn, who, same)
        if not len(drawn):
            continue
        shares = _shares(drawn, who, same, [right for _, right in models])
        for number, curve in enumerate(curves):
            false_accepts, true_accepts = curve.accepted(drawn)
            tar, threshold = curve.at_far(false_accepts, true_accepts, targets)
            eer = _equal_error_rates(false_accepts, true_accepts)
            auc = _areas(false_accepts, true_accepts)
            parts[number].append((shares[number], tar, threshold, eer, auc))
    if not parts[0]:
        raise ValueError(
            f"no replicate of the {who.max() + 1} people has pairs of both kinds; "
            "a bootstrap over people needs more of them"
        )
    return [
        Replicates(*(np.concatenate(column) for column in zip(*rows, strict=True)))
        for rows in parts
    ]


def replicated_shares(
    counted: BoolArray, people: IntArray, *, replicates: int = REPLICATES, seed: int = 0
) -> FloatArray:
    """The share of the pairs that count, in each replicate of their people."""
    who = np.unique(people, return_inverse=True)[1].reshape(people.shape).astype(np.int64)
    shares = []
    for drawn in _draws(who, replicates=replicates, seed=seed):
        weights = _weights(drawn, who)
        total = weights.sum(axis=1)
        # Of very few people a draw may hold no pair at all.
        shares.append((weights @ counted.astype(np.float64))[total > 0] / total[total > 0])
    return np.concatenate(shares)


def people_count(people: IntArray) -> int:
    return int(np.unique(people).size)


class _SortedPairs:
    """The pairs of one model from the highest score down, with the groups of equal scores."""

    def __init__(self, scores: FloatArray, same: BoolArray, who: IntArray) -> None:
        order = np.argsort(-scores, kind="stable")
        self.who = who[order]
        self.same = same[order].astype(np.float64)
        falling = scores[order]
        self.last = np.flatnonzero(np.append(np.diff(falling) != 0, True))
        above = np.nextafter(falling[0], np.inf)
        self.thresholds = np.concatenate([[above], falling[self.last]])

    def accepted(self, drawn: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted false and true accepts (r, p) at every threshold, as in `RocCurve`."""
        weights = _weights(drawn, self.who)
        true_accepts = np.cumsum(weights * self.same, axis=1)
        false_accepts = np.cumsum(weights, axis=1) - true_accepts
        none = np.zeros((len(drawn), 1))
        return (
            np.concatenate([none, false_accepts[:, self.last]], axis=1),
            np.concatenate([none, true_accepts[:, self.last]], axis=1),
        )

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


def _equal_error_rates(false_accepts: FloatArray, true_accepts: FloatArray) -> FloatArray:
    rows = np.arange(len(false_accepts))
    far = false_accepts / false_accepts[:, -1:]
    frr = 1.0 - true_accepts / true_accepts[:, -1:]
    after = np.argmax(far >= frr, axis=1)
    before = after - 1
    gap_before = frr[rows, before] - far[rows, before]
    gap_after = far[rows, after] - frr[rows, after]
    share = gap_before / (gap_before + gap_after)
    rates: FloatArray = far[rows, before] + share * (far[rows, after] - far[rows, before])
    return rates


def _areas(false_accepts: FloatArray, true_accepts: FloatArray) -> FloatArray:
    steps = np.diff(false_accepts, axis=1)
    doubled = np.einsum("rp,rp->r", steps, true_accepts[:, 1:] + true_accepts[:, :-1])
    areas: FloatArray = doubled / (2.0 * false_accepts[:, -1] * true_accepts[:, -1])
    return areas


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


def _with_both_kinds(drawn: FloatArray, who: IntArray, same: BoolArray) -> FloatArray:
    """The draws with genuine and impostor pairs; of very few people some may lack one kind."""
    kinds = _weights(drawn, who) @ np.stack([same, ~same], axis=1).astype(np.float64)
    return drawn[kinds.all(axis=1)]


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
