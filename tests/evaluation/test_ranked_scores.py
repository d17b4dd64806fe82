"""Ranked scores: against the counts over all scores, and intervals against a bootstrap."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from pydantic import TypeAdapter

from sphereface2.evaluation.ranked_scores import RankedScores
from sphereface2.evaluation.uncertainty import Interval, wilson, wilson_ends


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
