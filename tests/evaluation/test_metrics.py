"""Verification metrics against loops straight from their definitions, and against scikit-learn."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from sphereface2.evaluation import metrics
from sphereface2.evaluation.thresholds import tar_at_fars

Pairs = tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]


def tied_pairs(seed: int, *, count: int = 40, levels: int = 7) -> Pairs:
    """Few distinct scores, so that nearly every group is a tie across both kinds."""
    generator = np.random.default_rng(seed)
    same = generator.random(count) < 0.5
    same[:2] = [True, False]
    scores = np.round((generator.random(count) + 0.3 * same) * levels) / levels
    return scores, same


def free_pairs(seed: int, *, count: int = 60) -> Pairs:
    generator = np.random.default_rng(seed)
    same = np.arange(count) % 2 == 0
    return generator.normal(size=count) + same, same


def shares(roc: metrics.RocCurve) -> tuple[metrics.FloatArray, metrics.FloatArray]:
    """FAR and TAR."""
    return roc.false_accepts / roc.false_accepts[-1], roc.true_accepts / roc.true_accepts[-1]


CASES = [tied_pairs(seed) for seed in range(6)] + [free_pairs(seed) for seed in range(6)]


def test_roc_counts_what_each_threshold_accepts() -> None:
    for scores, same in CASES:
        roc = metrics.roc_curve(scores, same)
        assert len(roc.thresholds) == len(np.unique(scores)) + 1
        for threshold, false_accepts, true_accepts in zip(
            roc.thresholds, roc.false_accepts, roc.true_accepts, strict=True
        ):
            accepted = [bool(score >= threshold) for score in scores]
            assert true_accepts == sum(a and s for a, s in zip(accepted, same, strict=True))
            assert false_accepts == sum(a and not s for a, s in zip(accepted, same, strict=True))
        far, tar = shares(roc)
        assert (far[0], tar[0]) == (0.0, 0.0)
        assert (far[-1], tar[-1]) == (1.0, 1.0)


def test_roc_and_auc_agree_with_scikit_learn() -> None:
    for scores, same in CASES:
        far, tar, thresholds = sklearn_roc_curve(same, scores, drop_intermediate=False)
        roc = metrics.roc_curve(scores, same)
        np.testing.assert_allclose(shares(roc), (far, tar), atol=1e-12)
        np.testing.assert_array_equal(roc.thresholds[1:], thresholds[1:])
        assert metrics.area_under_curve(scores, same) == pytest.approx(
            roc_auc_score(same, scores), abs=1e-12
        )


def test_counts_are_exactly_those_of_scikit_learn() -> None:
    """Small lists of few distinct scores: nearly everything is a tie."""
    for seed in range(60):
        generator = np.random.default_rng(seed)
        count = int(generator.integers(2, 30))
        same = generator.random(count) < generator.uniform(0.1, 0.9)
        same[:2] = [True, False]
        scores = generator.integers(-2, 3, count) / 4
        far, tar, thresholds = sklearn_roc_curve(same, scores, drop_intermediate=False)
        roc = metrics.roc_curve(scores, same)
        assert np.array_equal(roc.thresholds[1:], thresholds[1:])
        assert np.array_equal(roc.false_accepts, np.rint(far * np.count_nonzero(~same)))
        assert np.array_equal(roc.true_accepts, np.rint(tar * np.count_nonzero(same)))
        for target in (0.0, 0.05, 0.2, 0.5, 1.0):
            (point,) = tar_at_fars(scores, same, [target])
            assert point.rate == max(t for f, t in zip(far, tar, strict=True) if f <= target)
            assert point.false_rate.successes == np.count_nonzero(scores[~same] >= point.threshold)
            assert point.genuine == np.count_nonzero(same)


def test_auc_is_the_chance_of_a_right_order_with_ties_at_half() -> None:
    for scores, same in CASES:
        wins = [
            1.0 if genuine > impostor else 0.5 if genuine == impostor else 0.0
            for genuine in scores[same]
            for impostor in scores[~same]
        ]
        assert metrics.area_under_curve(scores, same) == pytest.approx(sum(wins) / len(wins))


def test_eer_is_where_the_interpolated_rates_cross() -> None:
    for scores, same in CASES:
        roc = metrics.roc_curve(scores, same)
        points = [(far, 1 - tar) for far, tar in zip(*shares(roc), strict=True)]
        ((far, frr), (next_far, next_frr)) = next(
            (left, right)
            for left, right in itertools.pairwise(points)
            if left[0] < left[1] and right[0] >= right[1]
        )
        # Bisect along the straight line between the two points, until the rates are equal.
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            crossed = far + middle * (next_far - far) >= frr + middle * (next_frr - frr)
            low, high = (low, middle) if crossed else (middle, high)
        assert metrics.equal_error_rate(scores, same) == pytest.approx(
            far + high * (next_far - far), abs=1e-12
        )


def test_eer_of_known_cases() -> None:
    same = [True, True, False, False]
    assert metrics.equal_error_rate([0.9, 0.8, 0.2, 0.1], same) == 0.0
    assert metrics.equal_error_rate([0.1, 0.2, 0.8, 0.9], same) == 1.0
    assert metrics.equal_error_rate([0.5, 0.5, 0.5, 0.5], same) == 0.5
    assert metrics.equal_error_rate([0.9, 0.4, 0.6, 0.1], same) == 0.5


@pytest.mark.parametrize("target", [0.0, 0.01, 0.05, 0.1, 1 / 3, 0.5, 1.0])
def test_tar_at_far_is_the_best_point_that_does_not_exceed_the_target(target: float) -> None:
    for scores, same in CASES:
        (point,) = tar_at_fars(scores, same, [target])
        impostors, genuine = scores[~same], scores[same]
        allowed = [
            float(np.mean(genuine >= threshold))
            for threshold in [*np.unique(scores), math.inf]
            if np.mean(impostors >= threshold) <= target
        ]
        assert point.rate == pytest.approx(max(allowed))
        assert point.reached <= target
        # The threshold in the result reproduces the rates in the result.
        assert np.mean(impostors >= point.threshold) == point.reached
        assert np.mean(genuine >= point.threshold) == point.rate
        assert math.isfinite(point.threshold)
        assert point.impostors == len(impostors)
        assert point.resolved == (target >= 1 / len(impostors))


def test_tar_at_far_refuses_the_nearest_point_when_it_exceeds_the_target() -> None:
    # Of ten impostors, two share the top score: FAR goes from 0 straight to 0.2.
    impostors = [0.9, 0.9, *np.linspace(0.1, 0.2, 8)]
    genuine = [0.95, 0.9, 0.8, 0.7]
    (point,) = tar_at_fars([*impostors, *genuine], [False] * 10 + [True] * 4, [0.19])
    assert (point.reached, point.rate, point.threshold) == (0.0, 0.25, 0.95)
    assert point.resolved
    (finer,) = tar_at_fars([*impostors, *genuine], [False] * 10 + [True] * 4, [0.09])
    assert not finer.resolved


def test_a_target_of_exactly_one_impostor_is_resolved_and_reached() -> None:
    for impostors in (3, 7, 10, 49, 1000, 3000):
        scores = [*np.arange(impostors, dtype=float), impostors - 1.5]
        same = [False] * impostors + [True]
        (point,) = tar_at_fars(scores, same, [1 / impostors])
        assert point.resolved
        assert point.reached == 1 / impostors
        assert point.rate == 1.0


@pytest.mark.parametrize("target", [-0.1, 1.5, math.nan])
def test_a_far_outside_the_unit_range_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        tar_at_fars([0.1, 0.9], [False, True], [target])


def naive_threshold(scores: np.ndarray, same: np.ndarray) -> float:
    distinct = sorted({float(score) for score in scores})
    candidates = [distinct[0]]
    candidates += [a + (b - a) / 2 for a, b in itertools.pairwise(distinct)]
    candidates.append(math.nextafter(distinct[-1], math.inf))
    best, best_right = candidates[0], -1
    for candidate in candidates:  # rising, and only a better one replaces: the lowest wins
        right = sum((score >= candidate) == kind for score, kind in zip(scores, same, strict=True))
        if right > best_right:
            best, best_right = candidate, right
    return best


def test_best_threshold_accuracy_against_trying_every_threshold() -> None:
    for scores, same in CASES:
        threshold = naive_threshold(scores, same)
        accuracy = np.mean((scores >= threshold) == same)
        assert metrics.best_threshold_accuracy(scores, same) == (accuracy, threshold)


@pytest.mark.parametrize("count", [2, 5, 10])
def test_fold_accuracy_against_brute_force(count: int) -> None:
    for scores, same in CASES:
        folds = np.random.default_rng(3).permutation(np.arange(len(scores)) % count)
        result = metrics.fold_accuracy(scores, same, folds)
        accuracies = []
        for fold in range(count):
            rest = folds != fold
            threshold = naive_threshold(scores[rest], same[rest])
            right = [
                (score >= threshold) == kind
                for score, kind in zip(scores[~rest], same[~rest], strict=True)
            ]
            accuracies.append(sum(right) / len(right))
        assert result.accuracies == pytest.approx(tuple(accuracies))
        mean = sum(accuracies) / count
        assert result.mean == pytest.approx(mean)
        assert result.std == pytest.approx(
            math.sqrt(sum((a - mean) ** 2 for a in accuracies) / count)
        )
        assert result.mean_threshold == pytest.approx(np.mean(result.thresholds))


def test_ties_between_thresholds_go_to_the_lowest() -> None:
    # "Accept all", the cut at 0.25 and the cut at 0.45 are all right on three of five.
    scores, same = [0.1, 0.2, 0.3, 0.4, 0.5], [True, False, True, False, True]
    assert metrics.best_threshold_accuracy(scores, same) == (0.6, 0.1)


def test_a_threshold_between_neighbouring_floats_still_separates() -> None:
    low = 0.5
    high = float(np.nextafter(low, 1.0))
    assert metrics.best_threshold_accuracy([low, high], [False, True]) == (1.0, high)


def test_reversed_scores_are_best_rejected_or_accepted_altogether() -> None:
    scores, same = [0.1, 0.2, 0.8, 0.9, 0.95], [True, True, False, False, False]
    accuracy, threshold = metrics.best_threshold_accuracy(scores, same)
    assert accuracy == 0.6
    assert 0.95 < threshold < 0.9500001


def test_order_of_the_pairs_does_not_matter() -> None:
    scores, same = tied_pairs(11)
    folds = np.arange(len(scores)) % 10
    shuffled = np.random.default_rng(0).permutation(len(scores))
    assert metrics.fold_accuracy(scores, same, folds) == metrics.fold_accuracy(
        scores[shuffled], same[shuffled], folds[shuffled]
    )
    assert metrics.equal_error_rate(scores, same) == metrics.equal_error_rate(
        scores[shuffled], same[shuffled]
    )


def test_a_long_list_has_the_numbers_of_its_distribution() -> None:
    generator = np.random.default_rng(0)
    same = generator.random(300_000) < 0.5
    scores = generator.normal(size=300_000) + same
    # Two normal distributions, one deviation apart: Φ(1/2), 1 - Φ(1/2) and Φ(1/√2).
    normal = NormalDist()
    accuracy = metrics.fold_accuracy(scores, same, np.arange(300_000) % 10)
    assert accuracy.mean == pytest.approx(normal.cdf(0.5), abs=0.003)
    assert metrics.equal_error_rate(scores, same) == pytest.approx(normal.cdf(-0.5), abs=0.003)
    area = metrics.area_under_curve(scores, same)
    assert area == pytest.approx(normal.cdf(0.5**0.5), abs=0.003)


@pytest.mark.parametrize(
    ("scores", "same", "message"),
    [
        ([0.1, 0.2], [True, True], "2 genuine and 0 impostor"),
        ([], [], "0 genuine and 0 impostor"),
        ([0.1, math.nan, math.inf], [True, False, True], "2 of 3 scores are not finite.*pair 1"),
        ([0.1, 0.2], [True], r"shapes \(2,\) and \(1,\)"),
    ],
)
def test_unusable_scores_are_refused(scores: list[float], same: list[bool], message: str) -> None:
    for function in (metrics.roc_curve, metrics.best_threshold_accuracy):
        with pytest.raises(ValueError, match=message):
            function(scores, same)


def test_unusable_folds_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two folds, got 1"):
        metrics.fold_accuracy([0.1, 0.9], [False, True], [0, 0])
    with pytest.raises(ValueError, match="give one each"):
        metrics.fold_accuracy([0.1, 0.9], [False, True], [0, 1, 2])
