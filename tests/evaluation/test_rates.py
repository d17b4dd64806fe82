import numpy as np
import pytest

from sphereface2.evaluation.uncertainty import WILSON_OVER_PEOPLE, mean_rate, rate_of, wilson


def test_without_people_it_is_wilsons() -> None:
    hits = np.array([True] * 90 + [False] * 10)
    assert rate_of(hits, None) == wilson(90, 100)


def test_a_person_with_many_trials_is_one_draw() -> None:
    """All-or-nothing people: the interval must be that of the people, not of the trials."""
    rng = np.random.default_rng(0)
    person_hits = rng.random(100) < 0.8
    hits, people = np.repeat(person_hits, 50), np.repeat(np.arange(100), 50)
    rate = rate_of(hits, people)
    assert rate.value == person_hits.mean()
    assert rate.interval.method == "bootstrap over people"
    over_people = wilson(int(person_hits.sum()), 100).interval
    width = rate.interval.high - rate.interval.low
    assert width == pytest.approx(over_people.high - over_people.low, rel=0.15)


def test_where_all_trials_agree_each_person_is_one_trial() -> None:
    rate = rate_of(np.ones(1000, bool), np.arange(1000) % 20)
    assert (rate.value, rate.interval.method) == (1.0, WILSON_OVER_PEOPLE)
    assert rate.interval.low == wilson(20, 20).interval.low


def test_the_mean_over_parts_is_the_mean_of_their_shares() -> None:
    first = (np.array([True, False, True, True]), np.array([0, 0, 1, 2]))
    second = (np.array([False, True]), np.array([5, 6]))
    rate = mean_rate([first, second])
    assert rate.value == (0.75 + 0.5) / 2
    assert (rate.successes, rate.trials) == (4, 6)
    assert rate.interval.low <= rate.value <= rate.interval.high


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one trial"):
        rate_of(np.zeros(0, bool), np.zeros(0, int))


def test_the_interval_is_that_of_the_resampled_people() -> None:
    rng = np.random.default_rng(3)
    hits, people = rng.random(80) < 0.7, rng.integers(0, 15, 80)
    for confidence in (0.95, 0.8):
        rate = rate_of(hits, people, confidence=confidence, resamples=50, seed=4)
        draws = np.random.default_rng(4)
        drawn = []
        for _ in range(50):
            chosen = draws.integers(0, 15, 15)
            trials = np.concatenate([hits[people == person] for person in chosen])
            drawn.append(trials.mean())
        tail = (1 - confidence) / 2
        low, high = np.quantile(drawn, [tail, 1 - tail])
        assert (rate.interval.low, rate.interval.high) == pytest.approx((low, high))
        assert rate.interval.confidence == confidence
    assert rate_of(hits, people) == rate_of(hits, people, confidence=0.95, resamples=1000, seed=0)
    assert rate_of(hits, None, confidence=0.8) == wilson(int(hits.sum()), 80, confidence=0.8)


def test_people_who_all_fail_are_one_trial_each() -> None:
    parts = [(np.zeros(6, bool), np.arange(6) % 3), (np.zeros(4, bool), np.arange(4))]
    rate = mean_rate(parts, confidence=0.9)
    assert rate.interval.high == wilson(0, 7, confidence=0.9).interval.high
    assert (rate.value, rate.successes, rate.trials) == (0.0, 0, 10)
