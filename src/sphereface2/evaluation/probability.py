"""From a cosine to the probability that it is one person: a logistic map (Platt), and its check."""

import math
from dataclasses import dataclass, replace

import numpy as np

from sphereface2.evaluation.intervals import Interval, wilson
from sphereface2.evaluation.metrics import BoolArray, FloatArray, IntArray, roc_curve

_BINS = 10


@dataclass(frozen=True)
class ProbabilityMap:
    """P(same | score) = σ(slope · score + intercept), for pairs of which `prior` are genuine."""

    slope: float
    intercept: float
    prior: float

    def __call__(self, scores: FloatArray) -> FloatArray:
        return _sigmoid(self.slope * np.asarray(scores, dtype=np.float64) + self.intercept)

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

    Where some threshold parts the two kinds without an error, likelihood has no maximum; the
    answers then count as a little unsure, as Platt proposed: (n+1)/(n+2) instead of 1.
    """
    roc_curve(scores, same)  # refuses lists of one kind and scores that are not finite
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
    shift = math.log(prior / (1.0 - prior)) - math.log(genuine / impostor)
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
        raw = wilson(int(np.count_nonzero(same[here])), int(np.count_nonzero(here)))
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
    """Slope and intercept of the logistic regression, by Newton steps that never overshoot."""
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


def _sigmoid(logits: FloatArray) -> FloatArray:
    positive: FloatArray = np.exp(-np.logaddexp(0.0, -logits))
    return positive
