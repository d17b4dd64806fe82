"""From cosines to decisions: thresholds at chosen FARs, a probability, and what the bias says.

The map from score to probability is logistic (Platt): P(same | s) = σ(slope · s + intercept), with
the intercept moved from the mix of genuine and impostor pairs in the set to a stated prior.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from pydantic import TypeAdapter, ValidationError

from sphereface2.evaluation.metrics import BoolArray, FloatArray, IntArray, checked_pairs
from sphereface2.evaluation.pair_scores import PairScores
from sphereface2.evaluation.thresholds import RateAtTarget, SavedRate, allowed
from sphereface2.evaluation.uncertainty import (
    REPLICATES,
    WILSON,
    WILSON_OVER_PEOPLE,
    Interval,
    Rate,
    rate_of,
    replicate,
    replicated_shares,
    wilson_ends,
)
from sphereface2.evaluation.verification import ScoreHistogram, measure
from sphereface2.files import first_fault

_BINS = 10
_EXACT = 128
_STEP = 1.05
_PROBED = (0.5, 0.1, 0.01, 0.001)  # shares at which pairs are compared with independent ones
_FEWEST = 20  # pairs above a score, to compare at
_REPLICATES = 200


@dataclass(frozen=True)
class RankedScores:
    """The scores of one kind of pairs in a few hundred numbers: how many lie at or above any score.

    The 128 highest are kept exactly: there a few pairs decide on a rate; below, every score
    whose rank is 5 % further. What lies between two of them is counted as if it lay above: the rate
    is never understated, and overstated by 5 % at most.

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


@dataclass(frozen=True)
class ProbabilityMap:
    """P(same | score) = σ(slope · score + intercept), for pairs of which `prior` are genuine."""

    slope: float
    intercept: float
    prior: float

    def __call__(self, scores: FloatArray) -> FloatArray:
        return _sigmoid(self.slope * np.asarray(scores, dtype=np.float64) + self.intercept)

    def at_prior(self, prior: float) -> "ProbabilityMap":
        """The map for pairs of which another share is genuine."""
        check_request((), prior)
        shift = _logit(prior) - _logit(self.prior)
        return ProbabilityMap(self.slope, self.intercept + shift, prior)

    @property
    def even(self) -> float:
        """The score at which one person and two are equally probable."""
        return -self.intercept / self.slope


@dataclass(frozen=True)
class ReliabilityBin:
    """Pairs with like probabilities: how often they were one person, at the map's prior."""

    probability: float
    share: float
    interval: Interval
    pairs: int


def fit_probability(scores: FloatArray, same: BoolArray, *, prior: float = 0.5) -> ProbabilityMap:
    """The logistic map of highest likelihood, its intercept moved to `prior`.

    Where some threshold separates the two kinds without an error, likelihood has no maximum; the
    answers then count as a little unsure, as Platt proposed: (n+1)/(n+2) instead of 1.
    """
    checked_pairs(scores, same)  # refuses lists of one kind and scores that are not finite
    genuine = int(np.count_nonzero(same))
    impostor = same.size - genuine
    answers = same.astype(np.float64)
    if scores[same].min() >= scores[~same].max():
        answers = np.where(same, (genuine + 1) / (genuine + 2), 1 / (impostor + 2))
    slope, intercept = _newton(scores, answers)
    if slope <= 0:
        raise ValueError(
            "genuine pairs do not score higher than impostor pairs here, so that scores say "
            "nothing about identity; is it the right model, and are the pairs labelled right?"
        )
    shift = _logit(prior) - math.log(genuine / impostor)
    return ProbabilityMap(slope, intercept + shift, prior)


def reliability(
    scores: FloatArray, same: BoolArray, folds: IntArray, *, prior: float = 0.5
) -> tuple[tuple[ReliabilityBin, ...], float]:
    """Ten bins of probability and the mean gap; each fold judged by a map fitted on the others."""
    probabilities = np.empty_like(scores)
    for fold in np.unique(folds):
        here = folds == fold
        probabilities[here] = fit_probability(scores[~here], same[~here], prior=prior)(scores[here])
    genuine = int(np.count_nonzero(same))
    # Odds in the set to odds at the prior, as for the map itself.
    factor = prior / (1.0 - prior) * (same.size - genuine) / genuine

    def at_prior(share: float) -> float:
        return factor * share / (factor * share + 1.0 - share)

    number = np.minimum((probabilities * _BINS).astype(int), _BINS - 1)
    bins, error = [], 0.0
    for index in np.unique(number):
        here = number == index
        raw = rate_of(same[here], None)
        interval = raw.interval
        each = ReliabilityBin(
            probability=float(probabilities[here].mean()),
            share=at_prior(raw.value),
            interval=replace(interval, low=at_prior(interval.low), high=at_prior(interval.high)),
            pairs=raw.trials,
        )
        bins.append(each)
        error += abs(each.probability - each.share) * each.pairs / same.size
    return tuple(bins), error


def _newton(scores: FloatArray, answers: FloatArray) -> tuple[float, float]:
    """Slope and intercept of the logistic regression, by Newton steps that never overshoot.

    To the last digits, so that a calibration comes out the same everywhere: scipy's minimisers end
    at a tolerance on the loss, which is flat there.
    """
    # Standardised, so that the two unknowns are of one size whatever the scores are.
    centre, spread = float(scores.mean()), float(scores.std()) or 1.0
    design = np.stack([(scores - centre) / spread, np.ones_like(scores)], axis=1)
    unknowns = np.zeros(2)
    loss = _log_loss(design @ unknowns, answers)
    for _ in range(100):
        predicted = _sigmoid(design @ unknowns)
        gradient = design.T @ (answers - predicted)
        weights = predicted * (1.0 - predicted)
        hessian = (design * weights[:, None]).T @ design + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        scale = 1.0
        while _log_loss(design @ (unknowns + scale * step), answers) > loss and scale > 1e-8:
            scale /= 2.0
        unknowns = unknowns + scale * step
        loss = _log_loss(design @ unknowns, answers)
        if np.abs(scale * step).max() < 1e-12 * (1.0 + np.abs(unknowns).max()):
            break
    slope = float(unknowns[0]) / spread
    return slope, float(unknowns[1]) - slope * centre


def _log_loss(logits: FloatArray, answers: FloatArray) -> float:
    return float(np.sum(np.logaddexp(0.0, logits) - answers * logits))


def _logit(share: float) -> float:
    return math.log(share / (1.0 - share))


def _sigmoid(logits: FloatArray) -> FloatArray:
    positive: FloatArray = np.exp(-np.logaddexp(0.0, -logits))
    return positive


FAR_TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True)
class BiasThreshold:
    """The learned bias taken as a pair threshold: the score where r·g(score) + b = 0.

    threshold: None where -b/r lies outside of g's range, so that no score gets there
    """

    bias: float
    radius: float
    sharpness: float
    threshold: float | None
    far: Rate
    tar: Rate


@dataclass(frozen=True)
class Calibration:
    """All that turns the scores of one model into decisions, and the pairs that it rests on.

    model: digest of the weights it was made with; it holds for no other model
    flip: whether the embeddings were the sum of an image's and its mirror image's
    calibration_error: mean gap between probability and share, on folds that were held out
    impostor_scores, genuine_scores: by which any score has its rates; None in old calibrations
    """

    set_name: str
    model: str
    flip: bool
    pairs: int
    genuine: int
    impostor: int
    people: int | None
    thresholds: tuple[SavedRate, ...]
    probability: ProbabilityMap
    reliability: tuple[ReliabilityBin, ...]
    calibration_error: float
    histogram: ScoreHistogram
    bias: BiasThreshold | None = None
    impostor_scores: RankedScores | None = None
    genuine_scores: RankedScores | None = None

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values, for the config of a model folder."""
        mapping: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return mapping

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        try:
            return TypeAdapter(cls).validate_python(dict(values))
        except ValidationError as error:
            raise ValueError(
                f"the stored calibration cannot be read ({first_fault(error, whole='the whole')}); "
                "calibrate the model again"
            ) from None

    def require_model(self, digest: str, *, flip: bool | None = None) -> None:
        """Refuse scores of another model, or of embeddings made otherwise: they mean other things.

        flip: whether the embeddings have their mirror images' added; None is not looked at
        """
        if digest != self.model:
            raise ValueError(
                f"the calibration was made with the model {self.model[:12]}, these embeddings come "
                f"from the model {digest[:12]}; calibrate that one (sphereface2 calibrate MODEL)"
            )
        if flip is not None and flip != self.flip:
            words = ("without", "with")
            raise ValueError(
                f"the calibration holds for embeddings {words[self.flip]} their mirror images' "
                f"added, these are {words[flip]}; embed again, or calibrate for them"
            )

    @property
    def resolved_thresholds(self) -> tuple[float, ...]:
        """The thresholds of the target FARs that the calibration pairs resolved."""
        return tuple(each.threshold for each in self.thresholds if each.resolved)


def calibrate(
    scored: PairScores,
    *,
    model: str = "",
    flip: bool = True,
    far_targets: Sequence[float] = FAR_TARGETS,
    prior: float = 0.5,
    bias: tuple[float, float, float] | None = None,
    replicates: int = REPLICATES,
) -> Calibration:
    """Calibrate a model by its scored pairs; `bias` is (b, r, t) of a SphereFace2 head."""
    check_request(far_targets, prior)
    scores, same = scored.scores, scored.same
    targets = sorted(set(far_targets), reverse=True)
    result = measure(scored, model=model, far_targets=targets, replicates=replicates)
    bins, error = reliability(scores, same, scored.folds, prior=prior)
    return Calibration(
        set_name=scored.name,
        model=model,
        flip=flip,
        pairs=result.pairs,
        genuine=result.genuine,
        impostor=result.impostor,
        people=result.people,
        thresholds=_thresholds(scored, result.tar_at_far, replicates=replicates),
        probability=fit_probability(scores, same, prior=prior),
        reliability=bins,
        calibration_error=error,
        histogram=result.histogram,
        bias=None if bias is None else _bias_threshold(scores, same, *bias),
        impostor_scores=_ranked(scored, ~same),
        genuine_scores=_ranked(scored, same),
    )


def _ranked(scored: PairScores, kind: BoolArray) -> RankedScores:
    people = None if scored.people is None else scored.people[kind]
    return RankedScores.of(scored.scores[kind], people)


def check_request(far_targets: Sequence[float], prior: float) -> None:
    """Refuse what cannot be asked for; before long work is best."""
    if not 0.0 < prior < 1.0:
        raise ValueError(f"prior must lie between 0 and 1, got {prior}")
    for target in far_targets:
        if not 0.0 < target < 1.0:
            raise ValueError(f"a target FAR must lie between 0 and 1, got {target}")


def invert_adjustment(value: float, sharpness: float) -> float | None:
    """The cosine c with g(c) = 2((c+1)/2)^t - 1 = value, or None where g never gets there."""
    if not -1.0 <= value <= 1.0:
        return None
    return float(2.0 * ((value + 1.0) / 2.0) ** (1.0 / sharpness) - 1.0)


def _thresholds(
    scored: PairScores, points: Sequence[RateAtTarget], *, replicates: int
) -> tuple[RateAtTarget, ...]:
    targets = [point.target for point in points if point.resolved]
    ends: dict[float, Interval] = {}
    if targets and replicates:
        (drawn,) = replicate(
            [(scored.scores, np.empty((scored.same.size, 0), dtype=np.bool_))],
            scored.same,
            scored.people,
            targets=targets,
            replicates=replicates,
        )
        columns = drawn.threshold.T
        ends = {target: drawn.interval(c) for target, c in zip(targets, columns, strict=True)}
    return tuple(replace(point, threshold_interval=ends.get(point.target)) for point in points)


def _bias_threshold(
    scores: FloatArray, same: BoolArray, bias: float, radius: float, sharpness: float
) -> BiasThreshold:
    # r·g(c) + b = 0: the boundary of a sample with a class, both margins left out
    threshold = invert_adjustment(-bias / radius, sharpness)
    # Outside of g's range the boundary is below all scores (b > r) or above them.
    accepted = np.full(same.size, bias > 0) if threshold is None else scores >= threshold
    far, tar = (rate_of(accepted[kind], None) for kind in (~same, same))
    return BiasThreshold(bias, radius, sharpness, threshold, far, tar)
