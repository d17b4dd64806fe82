import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_curve as sklearn_roc

from sphereface2.evaluation.thresholds import (
    HighestScores,
    Measure,
    Trials,
    allowed,
    counted_off,
    kept_for,
    minimum_trials,
    tar_at_fars,
)
from sphereface2.evaluation.uncertainty import wilson

TARGETS = (0.0, 0.001, 0.01, 0.1, 0.5, 1.0)


def _scores(seed: int, *, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    genuine = rng.normal(1.0, 1.0, 60).astype(np.float32)
    impostors = rng.normal(0.0, 1.0, 300).astype(np.float32)
    if ties:
        return np.round(genuine), np.round(impostors)
    return genuine, impostors


@pytest.mark.parametrize("ties", [False, True])
def test_rates_equal_those_of_scikit_learn_and_of_the_metrics(ties: bool) -> None:
    for seed in range(5):
        genuine, impostors = _scores(seed, ties=ties)
        tail = HighestScores(kept_for(TARGETS, impostors.size))
        for part in np.array_split(impostors, 7):
            tail.add(part)
        measures = Trials(genuine, tail.falling(), impostors.size).rates_at(TARGETS, name="TAR@FAR")
        same = np.concatenate([np.ones(genuine.size, bool), np.zeros(impostors.size, bool)])
        scores = np.concatenate([genuine, impostors])
        fpr, tpr, _ = sklearn_roc(same, scores, drop_intermediate=False)
        for target, measure, point in zip(
            TARGETS, measures, tar_at_fars(scores, same, TARGETS), strict=True
        ):
            assert measure.at is not None
            assert measure.rate.value == tpr[fpr <= target].max()
            assert measure.at.reached in fpr
            assert measure.at.reached <= target
            assert measure.at.reached == point.reached
            assert measure.at.threshold == pytest.approx(point.threshold, abs=1e-6)
            assert measure.at.resolved == (target >= 1 / impostors.size)


@pytest.mark.parametrize("kept", [100, 300])
@pytest.mark.parametrize("ties", [False, True])
def test_every_point_of_the_thinned_curve_is_an_operating_point(ties: bool, kept: int) -> None:
    genuine, impostors = _scores(3, ties=ties)
    highest = np.sort(impostors)[::-1][:kept]
    roc = Trials(genuine, highest, impostors.size).thin_roc()
    assert len(roc.far) > 2
    for far, tar, threshold in zip(roc.far, roc.tar, roc.threshold, strict=True):
        assert far == np.mean(impostors >= threshold)
        assert tar == np.mean(genuine >= threshold)
    assert list(roc.far) == sorted(roc.far)
    # It goes as far down as the impostor scores at hand say what is accepted, and skips nobody.
    lowest = highest[-1] if kept < 300 else -np.inf
    assert set(roc.threshold) >= set(genuine[genuine > lowest].tolist())
    # From "accept none" on, and where all scores are known as far as "accept all".
    assert (roc.far[0], roc.tar[0]) == (0.0, 0.0)
    assert ((roc.far[-1], roc.tar[-1]) == (1.0, 1.0)) == (kept == 300)


def test_a_thinned_curve_has_both_ends_where_some_trials_are_never_accepted() -> None:
    genuine = np.array([-np.inf, -np.inf, 0.5], np.float32)
    roc = Trials(genuine, np.array([0.25, -0.5], np.float32), 2).thin_roc()
    assert (roc.far, roc.tar) == ((0.0, 0.0, 1.0), (0.0, 1 / 3, 1 / 3))
    nobody = Trials(genuine[:2], np.array([0.25, -0.5], np.float32), 2).thin_roc()
    assert (nobody.far, nobody.tar) == ((0.0, 1.0), (0.0, 0.0))


@pytest.mark.parametrize("keep", [1, 10, 5_000, 300_000])
def test_the_highest_scores_are_the_sorted_ones(keep: int) -> None:
    rng = np.random.default_rng(0)
    scores = np.round(rng.normal(size=400_000), 3).astype(np.float32)
    tail = HighestScores(keep)
    for part in np.array_split(scores, 9):
        tail.add(part)
    np.testing.assert_array_equal(tail.falling(), np.sort(scores)[::-1][:keep])


def test_what_cannot_be_among_the_highest_is_not_held() -> None:
    tail = HighestScores(10)
    for part in np.array_split(np.arange(400_000, dtype=np.float32), 40):  # each above the last
        tail.add(part)
        assert sum(map(len, tail._parts)) <= 2 * 10 + 65_536
    np.testing.assert_array_equal(tail.falling(), np.arange(399_999, 399_989, -1))


def test_allowed_is_the_largest_count_within_the_target() -> None:
    for total in [1, 7, 1_000, 3_530_000_000, 15_638_932]:
        for target in [0.0, 1e-6, 1e-5, 0.1, 0.3, 1.0]:
            count = allowed(target, total)
            assert count / total <= target
            assert count == total or (count + 1) / total > target


def test_the_ends_of_a_threshold_are_wilsons_counts_rounded_outwards() -> None:
    for count, total in [(0, 50), (1, 300), (3, 300), (20, 2_000), (150, 300), (299, 300), (9, 9)]:
        fewest, most = counted_off(count, total)
        share = binomtest(count, total).proportion_ci(0.95, method="wilson")
        # Whole pairs with the interval between them, and no wider than that.
        assert 0 <= fewest <= max(share.low, 0.0) * total < fewest + 1
        assert most - 1 < share.high * total <= most + 1e-9
        assert most <= total


def test_known_counts_of_a_threshold() -> None:
    # Wilson at 95 %: 20 of 2000 are 0.649 % to 1.538 %, that is 12.97 to 30.76 pairs.
    assert counted_off(20, 2_000) == (12, 31)
    assert counted_off(2, 1_000) == (0, 8)
    assert counted_off(3, 1_000) == (1, 9)
    # One more than the most, so that the score just below the loosest threshold is among them.
    assert kept_for([0.01], 2_000) == 32
    assert kept_for([0.001, 0.01, 0.0], 2_000) == 32
    assert kept_for([1.0], 2_000) == 2_000


def test_a_rate_swings_between_the_scores_of_the_counted_impostors() -> None:
    """Impostors 1999, 1998, ... 0 and genuine scores on and between them, with a tie at each."""
    highest = np.arange(1999, -1, -1, dtype=np.float32)
    genuine = np.repeat(np.arange(1960, 2000, 0.5, dtype=np.float32), 2)
    below, above = Trials(genuine, highest, 2_000).swing(20)
    here = np.mean(genuine > 1979)  # above the 21st impostor, the first that is turned away
    # At the strict end the 12th impostor is just accepted, at the loose end the 32nd just not.
    assert below == pytest.approx(here - np.mean(genuine >= 1988))
    assert above == pytest.approx(np.mean(genuine > 1968) - here)
    # With fewer than three false accepts nothing bounds the threshold from above.
    assert Trials(genuine, highest, 2_000).swing(2)[0] == math.inf
    # Where all impostors may be accepted, so is every genuine pair but one without a score.
    unscored = np.array([-np.inf, 0.0, 1.0, 5.0], np.float32)
    few = np.array([3, 2, 1], np.float32)
    assert Trials(unscored, few, 3).swing(3) == (0.75 - 0.25, 0.0)


def test_the_interval_holds_the_true_rate_although_the_threshold_is_estimated() -> None:
    """Two Gaussians, 20 false accepts: holding the threshold fixed would cover far too seldom."""
    normal = NormalDist()
    truth = 1.0 - normal.cdf(normal.inv_cdf(1.0 - 0.01) - 2.0)
    covered = fixed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        genuine = rng.normal(2.0, 1.0, 2_000).astype(np.float32)
        impostors = rng.normal(0.0, 1.0, 2_000).astype(np.float32)
        (measure,) = Trials.of(genuine, impostors).rates_at((0.01,), name="TAR@FAR")
        interval = measure.rate.interval
        covered += interval.low <= truth <= interval.high
        plain = wilson(measure.rate.successes, 2_000).interval
        fixed += plain.low <= truth <= plain.high
    assert covered >= 184  # 92 % of 200; chance alone goes this low in 1 of 25 at 95 %
    assert fixed < 150


def test_an_unresolved_target_is_known_as_such() -> None:
    genuine, impostors = _scores(0, ties=False)
    (measure,) = Trials.of(genuine, impostors).rates_at((1e-6,), name="TAR@FAR")
    assert not measure.resolved
    assert Measure("rank 1", wilson(90, 1_000)).resolved


def test_the_trials_that_a_false_rate_needs() -> None:
    assert [minimum_trials(target) for target in (0.0, 1.0, 0.3, 1e-6)] == [0, 1, 4, 1_000_000]


@pytest.mark.parametrize("target", [-0.1, 1.1])
def test_a_target_that_is_not_a_share_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match=f"must lie between 0 and 1, got {target}"):
        allowed(target, 10)


def test_of_no_scores_none_are_the_highest() -> None:
    tail = HighestScores(3)
    assert tail.falling().tolist() == []
    assert tail.falling().dtype == np.float32
    tail.add(np.array([0.5, 0.25], np.float32))
    assert [*tail.falling().tolist(), float(tail.floor)] == [0.5, 0.25, -np.inf]
    tail.add(np.array([0.75, 0.125], np.float32))
    assert [*tail.falling().tolist(), float(tail.floor)] == [0.75, 0.5, 0.25, 0.25]


def test_a_thinned_curve_has_at_most_four_hundred_points_over_its_whole_length() -> None:
    rng = np.random.default_rng(0)
    genuine = rng.normal(2, 1, 5_000).astype(np.float32)
    highest = np.sort(rng.normal(0, 1, 20_000).astype(np.float32))[::-1]
    roc = Trials(genuine, highest, 20_000).thin_roc()
    assert 300 < len(roc.far) <= 400
    assert roc.far[0] == 0.0
    assert roc.tar[-1] == 1.0
    # The steps grow evenly on the logarithmic scale of false accepts.
    assert np.count_nonzero(np.asarray(roc.far) < 0.001) > 20
