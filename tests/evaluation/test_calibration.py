"""Calibration: against scikit-learn, against the definition of g, and by what it refuses."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from pydantic import TypeAdapter
from sklearn.linear_model import LogisticRegression

from sphereface2.evaluation.calibration import (
    Calibration,
    RankedScores,
    _newton,
    calibrate,
    fit_probability,
    invert_adjustment,
    reliability,
)
from sphereface2.evaluation.thresholds import tar_at_fars
from sphereface2.evaluation.uncertainty import WITH_THRESHOLD, Interval, wilson, wilson_ends
from sphereface2.runs.evaluate import learned_bias
from tests.evaluation.test_comparison import scored


def pairs(seed: int, *, genuine: int = 300, impostor: int = 500) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    scores = np.concatenate(
        [0.5 + 0.15 * generator.normal(size=genuine), 0.2 * generator.normal(size=impostor)]
    )
    return scores, np.arange(genuine + impostor) < genuine


class TestProbability:
    @pytest.mark.parametrize("seed", range(3))
    def test_the_fit_is_that_of_scikit_learn(self, seed: int) -> None:
        scores, same = pairs(seed)
        fitted = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(scores[:, None], same)
        # At the prior of the set itself nothing is moved.
        found = fit_probability(scores, same, prior=300 / 800)
        assert found.slope == pytest.approx(fitted.coef_[0, 0], rel=1e-5)
        assert found.intercept == pytest.approx(fitted.intercept_[0], rel=1e-5)
        np.testing.assert_allclose(
            found(scores), fitted.predict_proba(scores[:, None])[:, 1], atol=1e-6
        )

    def test_the_prior_moves_the_odds_and_nothing_else(self) -> None:
        scores, same = pairs(0)
        even, rare = (fit_probability(scores, same, prior=prior) for prior in (0.5, 0.01))
        assert even.slope == rare.slope
        odds = [p(scores) / (1 - p(scores)) for p in (even, rare)]
        np.testing.assert_allclose(odds[0] / odds[1], 99.0, rtol=1e-6)
        assert even(np.array([even.even])) == pytest.approx(0.5)

    def test_the_mix_of_the_set_does_not_matter_once_the_prior_is_stated(self) -> None:
        many, few = (fit_probability(*pairs(0, impostor=n), prior=0.5) for n in (20_000, 5_000))
        assert many.even == pytest.approx(few.even, abs=0.02)

    def test_kinds_that_never_overlap_still_give_a_finite_map(self) -> None:
        same = np.arange(40) < 20
        found = fit_probability(np.where(same, 0.9, 0.1), same)
        assert 0 < found.slope < 1e3
        assert found(np.array([0.9]))[0] == pytest.approx(21 / 22)
        assert found(np.array([0.1]))[0] == pytest.approx(1 / 22)

    def test_useless_scores_are_refused(self) -> None:
        scores, same = pairs(0)
        with pytest.raises(ValueError, match="genuine pairs do not score higher"):
            fit_probability(-scores, same)
        with pytest.raises(ValueError, match="800 genuine and 0 impostor"):
            fit_probability(scores, np.ones(800, bool))
        scores[3] = np.nan
        with pytest.raises(ValueError, match="1 of 800 scores are not finite"):
            fit_probability(scores, same)

    def test_reliability_of_a_true_map(self) -> None:
        generator = np.random.default_rng(0)
        scores = generator.normal(size=40_000)
        same = generator.random(40_000) < 1 / (1 + np.exp(-2 * scores))
        bins, error = reliability(scores, same, np.arange(40_000) % 10, prior=float(same.mean()))
        assert len(bins) == 10
        assert sum(each.pairs for each in bins) == 40_000
        assert error < 0.01
        for each in bins:
            assert abs(each.probability - each.share) < 0.03
            assert each.interval.low <= each.share <= each.interval.high

    def test_reliability_sees_a_map_that_is_wrong(self) -> None:
        scores, same = pairs(0, genuine=4000, impostor=4000)
        bent = np.where(scores > 0.3, 1.0, 0.0) * 0.2 + scores**3
        _, error = reliability(bent, same, np.arange(8000) % 10)
        _, straight = reliability(scores, same, np.arange(8000) % 10)
        assert error > 2 * straight


class TestThresholds:
    def test_they_are_those_of_the_metrics(self) -> None:
        pairs_of = scored(0, noise=0.3)
        found = calibrate(pairs_of, model="m", replicates=60, far_targets=(0.01, 0.1, 0.001))
        assert [each.target for each in found.thresholds] == [0.1, 0.01, 0.001]
        assert [each.resolved for each in found.thresholds] == [True, True, False]
        for each in found.thresholds:
            (point,) = tar_at_fars(pairs_of.scores, pairs_of.same, [each.target])
            assert (each.threshold, each.rate) == (point.threshold, point.rate)
            assert (each.reached, each.impostors) == (point.reached, 300)
            assert each.false_rate == wilson(round(300 * point.reached), 300)
            if each.resolved:
                ends = each.threshold_interval
                assert ends is not None
                assert ends.low <= each.threshold <= ends.high
        assert found.thresholds[2].interval is None
        assert found.resolved_thresholds == tuple(each.threshold for each in found.thresholds[:2])
        assert (found.pairs, found.genuine, found.impostor, found.people) == (600, 300, 300, 60)

    @pytest.mark.parametrize("share", [0.0, 1.0])
    def test_an_impossible_prior_or_target_is_refused(self, share: float) -> None:
        with pytest.raises(ValueError, match=f"prior must lie between 0 and 1, got {share}"):
            calibrate(scored(0, noise=0.3), prior=share)
        with pytest.raises(ValueError, match=f"target FAR must lie between 0 and 1, got {share}"):
            calibrate(scored(0, noise=0.3), far_targets=(0.1, share))


class TestBias:
    @pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0, 3.0, 3.5])
    def test_the_inverse_of_g(self, sharpness: float) -> None:
        for cosine in (-1.0, -0.3, 0.0, 0.4, 1.0):
            value = 2 * ((cosine + 1) / 2) ** sharpness - 1
            assert invert_adjustment(value, sharpness) == pytest.approx(cosine)
        assert invert_adjustment(1.01, sharpness) is None
        assert invert_adjustment(-1.01, sharpness) is None

    def test_its_threshold_is_where_the_logit_is_zero(self) -> None:
        pairs_of = scored(0, noise=0.3)
        bias, radius, sharpness = 3.1, 30.0, 3.0
        found = calibrate(pairs_of, replicates=20, bias=(bias, radius, sharpness)).bias
        assert found is not None
        assert found.threshold is not None
        g = 2 * ((found.threshold + 1) / 2) ** sharpness - 1
        assert radius * g + bias == pytest.approx(0.0, abs=1e-9)
        accepted = pairs_of.scores >= found.threshold
        assert found.far.value == np.mean(accepted[~pairs_of.same])
        assert found.tar.value == np.mean(accepted[pairs_of.same])

    @pytest.mark.parametrize(("bias", "accepted"), [(40.0, 300), (-40.0, 0)])
    def test_a_bias_beyond_the_radius_decides_every_pair_alike(
        self, bias: float, accepted: int
    ) -> None:
        found = calibrate(scored(0, noise=0.3), replicates=20, bias=(bias, 30.0, 3.0)).bias
        assert found is not None
        assert found.threshold is None
        assert (found.far.successes, found.tar.successes) == (accepted, accepted)

    def test_it_is_found_in_the_model_folder_or_in_the_log(self) -> None:
        head = {"name": "sphereface2-c", "radius": 30.0, "sharpness": 3.0}
        lines = [
            {"kind": "train", "step": step, "head": {"bias": float(step)}} for step in (1, 20, 40)
        ]
        lines.append({"kind": "evaluation", "step": 40, "metrics": {}})
        assert learned_bias({"head": head, "head_bias": 2.5}, lines) == (2.5, 30.0, 3.0)
        assert learned_bias({"head": head, "best_step": 25}, lines) == (20.0, 30.0, 3.0)
        assert learned_bias({"head": head}, lines) == (40.0, 30.0, 3.0)
        assert learned_bias({"head": head}) is None
        assert learned_bias({"head": {"name": "cosface", "scale": 64.0}}, lines) is None
        assert learned_bias({}) is None


def test_a_calibration_round_trips_through_json_and_knows_its_model() -> None:
    found = calibrate(scored(0, noise=0.3), model="abc", replicates=20, bias=(3.1, 30.0, 3.0))
    again = Calibration.from_mapping(json.loads(json.dumps(found.to_mapping())))
    assert again == found
    again.require_model("abc")
    with pytest.raises(ValueError, match="made with the model abc, these embeddings come from"):
        again.require_model("def")
    again.require_model("abc", flip=True)
    with pytest.raises(ValueError, match=r"holds for embeddings with their .* these are without"):
        again.require_model("abc", flip=False)
    broken = found.to_mapping()
    del broken["probability"]["slope"]
    with pytest.raises(ValueError, match=r"cannot be read \(probability\.slope"):
        Calibration.from_mapping(broken)


def test_a_calibration_of_an_older_version_is_read() -> None:
    found = calibrate(scored(0, noise=0.3), replicates=20)
    stored = found.to_mapping()
    stored["thresholds"] = [
        {
            "target_far": each.target,
            "resolved": each.resolved,
            "threshold": each.threshold,
            "threshold_interval": each.threshold_interval and asdict(each.threshold_interval),
            "far": asdict(each.false_rate),
            "tar": each.rate,
            "tar_interval": each.interval and asdict(each.interval),
        }
        for each in found.thresholds
    ]
    older = Calibration.from_mapping(json.loads(json.dumps(stored)))
    assert older.thresholds == tuple(replace(each, genuine=None) for each in found.thresholds)


def test_people_are_optional() -> None:
    known = calibrate(scored(0, noise=0.3), replicates=20)
    found = calibrate(replace(scored(0, noise=0.3), people=None), replicates=20)
    assert found.people is None
    assert [each.threshold for each in found.thresholds] == [
        each.threshold for each in known.thresholds
    ]
    assert found.thresholds[0].interval is not None
    assert found.thresholds[0].interval.method == WITH_THRESHOLD
    assert found.calibration_error == known.calibration_error


def test_scores_that_are_all_the_same_say_nothing_but_the_share() -> None:
    slope, intercept = _newton(np.full(8, 0.5), np.array([1.0, 0, 0, 0] * 2))
    assert slope * 0.5 + intercept == pytest.approx(math.log(1 / 3), abs=1e-6)


@pytest.mark.parametrize("count", [1, 7, 128, 129, 5000, 60_000])
def test_counts_are_exact_above_and_five_percent_off_at_most_below(count: int) -> None:
    generator = np.random.default_rng(count)
    scores = np.round(generator.normal(size=count), 3)  # with ties
    ranked = RankedScores.of(scores)
    assert ranked.pairs == count
    assert len(ranked.ranks) < 300
    for score in [-9.0, 9.0, *generator.normal(size=200), *generator.choice(scores, 50)]:
        true = int(np.count_nonzero(scores >= score))
        found = ranked.at_or_above(score)
        assert true <= found <= 1.05 * true + 1
        if true < 120:
            # A tie may run over the end of what is kept exactly.
            assert found == true


def test_rates_of_independent_pairs_are_wilsons() -> None:
    scores = np.linspace(0, 1, 100)
    rate = RankedScores.of(scores).rate(float(scores[-3]))
    assert rate == wilson(3, 100)
    assert RankedScores.of(scores).rate(2.0) == wilson(0, 100)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02, 0.001])
def test_the_threshold_keeps_to_its_share(share: float) -> None:
    scores = np.round(np.random.default_rng(0).normal(size=20_000), 2)
    threshold = RankedScores.of(scores).threshold(share)
    reached = np.mean(scores >= threshold)
    assert reached <= share
    # The next score down would be beyond it, but for the 5 % between what is kept.
    lower = scores[scores < threshold].max()
    assert np.mean(scores >= lower) > 0.9 * share


@pytest.mark.parametrize("share", [0.5, 0.2, 0.05])
def test_pairs_that_share_people_are_worth_fewer(share: float) -> None:
    # 60 people with an offset each: all impostor pairs among them, which share it.
    generator = np.random.default_rng(1)
    people = np.array([(a, b) for a in range(60) for b in range(a)])
    offset = generator.normal(size=60)
    scores = offset[people].sum(axis=1) + generator.normal(size=len(people))
    score = float(np.quantile(scores, 1 - share))
    found = RankedScores.of(scores, people).rate(score).interval
    # A bootstrap over people by hand: a pair counts as often as both of its people are drawn.
    accepted = scores >= score
    shares = []
    for _ in range(400):
        times = np.bincount(generator.integers(0, 60, 60), minlength=60)
        weights = times[people].prod(axis=1)
        shares.append(np.sum(weights * accepted) / weights.sum())
    low, high = np.quantile(shares, [0.025, 0.975])
    assert 0.75 < (found.high - found.low) / (high - low) < 1.5
    assert found.low < share < found.high
    plain = RankedScores.of(scores).rate(score).interval
    assert found.high - found.low > 1.5 * (plain.high - plain.low)


def test_the_lesser_worth_of_the_two_nearest_shares_counts() -> None:
    scores = tuple(np.linspace(1, 0, 1_001)[:-1].tolist())
    worth = ((0.5, 900.0), (0.2, 400.0), (0.1, 500.0), (0.05, 50.0))
    ranked = RankedScores(scores, tuple(range(1, 1_001)), worth)

    def counted(share: float) -> Interval:
        return ranked.rate(scores[round(1_000 * share) - 1]).interval

    assert (counted(0.3).low, counted(0.3).high) == wilson_ends(0.3, 400)
    assert (counted(0.15).low, counted(0.15).high) == wilson_ends(0.15, 400), "not that of 0.05"
    assert (counted(0.2).low, counted(0.2).high) == wilson_ends(0.2, 400)
    assert (counted(0.01).low, counted(0.01).high) == wilson_ends(0.01, 50)
    assert (counted(0.6).low, counted(0.6).high) == wilson_ends(0.6, 900)


def test_one_pair_of_known_people_is_worth_one() -> None:
    ranked = RankedScores.of(np.array([0.3]), np.array([[0, 1]]))
    assert {pairs for _, pairs in ranked.worth} == {1.0}


def test_they_are_plain_numbers() -> None:
    ranked = RankedScores.of(np.random.default_rng(0).normal(size=500))
    values = json.loads(json.dumps(asdict(ranked)))
    assert TypeAdapter(RankedScores).validate_python(values) == ranked
