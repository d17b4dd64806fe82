"""Answers: against counts over the calibration's own pairs, also where these resolve too little."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sphereface2.evaluation.calibration import Calibration, calibrate
from sphereface2.evaluation.decision import (
    Answer,
    _least,
    decide,
    false_accepts_for,
    false_alarms,
    low_genuine,
    one_in,
    share_in_words,
    threshold_for,
)
from sphereface2.evaluation.pair_scores import PairScores
from sphereface2.evaluation.uncertainty import wilson
from sphereface2.evaluation.verification import ScoreHistogram


def scored_pairs(impostors: int = 4000) -> PairScores:
    generator = np.random.default_rng(0)
    genuine = 500
    scores = np.concatenate(
        [0.6 + 0.15 * generator.normal(size=genuine), 0.15 * generator.normal(size=impostors)]
    )
    count = len(scores)
    return PairScores(
        name="known",
        scores=np.clip(scores, -1, 1),
        pairs=np.arange(2 * count).reshape(count, 2),
        same=np.arange(count) < genuine,
        folds=np.arange(count) % 10,
        sources=np.full(count, "known"),
        positions=np.arange(count),
    )


SCORED = scored_pairs()


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    made = calibrate(SCORED, replicates=0)
    return Calibration.from_mapping(made.to_mapping())  # as a model folder keeps it


@pytest.mark.parametrize("score", [-0.3, 0.0, 0.21, 0.4, 0.9])
def test_an_answer_states_what_the_pairs_show(calibration: Calibration, score: float) -> None:
    answer = decide(score, calibration, false_accepts=0.01)
    impostors = SCORED.scores[~SCORED.same]
    higher = int(np.count_nonzero(impostors >= score))
    assert answer.false_accepts is not None
    assert answer.threshold is not None
    assert higher <= answer.false_accepts.successes <= 1.05 * higher + 1
    assert np.mean(impostors >= answer.threshold) <= 0.01
    assert answer.accepted == (score >= answer.threshold)
    assert answer.probability == pytest.approx(
        calibration.probability(np.array([score]))[0], abs=1e-12
    )
    assert (answer.prior, answer.target, answer.set_name) == (0.5, 0.01, "known")


def test_another_prior_moves_the_odds_by_its_own(calibration: Calibration) -> None:
    even, rare = (decide(0.4, calibration, prior=prior).probability for prior in (0.5, 0.001))
    assert even is not None
    assert rare is not None
    assert even / (1 - even) == pytest.approx(999 * rare / (1 - rare), rel=1e-9)


@pytest.mark.parametrize("target", [0.1, 0.037, 0.001, 0.0005])
def test_any_rate_that_is_resolved_has_a_threshold(calibration: Calibration, target: float) -> None:
    reached = np.mean(SCORED.scores[~SCORED.same] >= threshold_for(calibration, target))
    assert reached <= target
    # Thresholds that are stored with the calibration lie at the next genuine score above.
    if target not in (0.1, 0.001):
        assert reached > 0.95 * target - 1 / 4000


def test_what_the_pairs_cannot_resolve_is_said(calibration: Calibration) -> None:
    with pytest.raises(ValueError, match=r"4,000 pairs .* cannot tell 1 in 100,000 .* 0\.001 or"):
        decide(0.5, calibration, false_accepts=1e-5)
    answer = decide(0.95, calibration)
    assert answer.false_accepts == wilson(0, 4000)
    assert "none of the 4,000 pairs" in answer.sentences()[2]
    assert "below 0.096%" in answer.sentences()[2]
    assert answer.sentences()[0].startswith("SAME PERSON: the score 0.950 reaches")
    few = calibrate(scored_pairs(60), replicates=0)
    assert decide(0.5, few).target == 0.1  # the default of 0.001 is beyond 60 pairs


def test_a_score_below_the_threshold_is_not_called_a_stranger(calibration: Calibration) -> None:
    said = decide(0.1, calibration).sentences()[0]
    assert said.startswith("NOT ACCEPTED as the same person: the score 0.100 is below")


def test_without_a_calibration_the_answer_says_so() -> None:
    answer = decide(0.7, None)
    assert answer == Answer(0.7)
    assert "not calibrated" in answer.sentences()[0]
    assert "sphereface2 calibrate" in answer.sentences()[1]
    with pytest.raises(ValueError, match="need a calibrated model"):
        decide(0.7, None, false_accepts=0.01)


def test_a_calibration_of_before_is_refused(calibration: Calibration) -> None:
    with pytest.raises(ValueError, match="calibrate the model again"):
        decide(0.5, replace(calibration, impostor_scores=None), false_accepts=0.02)


def test_false_alarms_are_those_of_independent_people() -> None:
    generator = np.random.default_rng(0)
    rate = wilson(30, 3000)
    found = false_alarms(rate, 50)
    alarms = (generator.random((20_000, 50)) < 0.01).any(axis=1)
    assert found.value == pytest.approx(alarms.mean(), abs=0.01)
    assert found.interval.low < found.value < found.interval.high
    assert false_alarms(rate, 1).value == pytest.approx(0.01)
    assert false_accepts_for(found.value, 50) == pytest.approx(0.01)
    assert false_alarms(wilson(0, 10), 5).value == 0
    assert false_alarms(wilson(10, 10), 5).value == 1
    for people in (0, -1):
        with pytest.raises(ValueError, match="at least one person"):
            false_alarms(rate, people)


@pytest.mark.parametrize(
    ("text", "share"),
    [("1e-4", 1e-4), ("0.01%", 1e-4), ("1 in 10,000", 1e-4), ("2 in 50 searches", 0.04)],
)
def test_rates_in_words(text: str, share: float) -> None:
    assert share_in_words(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["0", "1", "two", "1 in 0", "-1e-3", "nan", "", "120%"])
def test_what_is_not_a_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        share_in_words(text)


def test_small_shares_are_said_as_people_say_them() -> None:
    assert one_in(0.001) == "1 in 1,000"
    assert one_in(0.5) == "50%"
    assert one_in(0.1) == "1 in 10"
    assert one_in(0.15) == "15%"


def answer_of(probability: float, *, successes: int = 3) -> Answer:
    return Answer(
        score=-0.25,
        probability=probability,
        prior=0.05,
        false_accepts=wilson(successes, 200),
        target=0.01,
        threshold=0.5,
        accepted=False,
        set_name="pairs",
    )


def test_the_sentences_of_an_answer() -> None:
    assert answer_of(0.25).sentences() == [
        "NOT ACCEPTED as the same person: the score −0.250 is below 0.500, the threshold for at "
        "most 1 in 100 false accepts",
        "probability of one person: 25.0%, if 5% of the pairs that you compare are one (the prior)",
        "false accepts at this score: 3 of the 200 pairs of different people of pairs score as "
        "high, 1.5% (95% interval 0.51% to 4.3%)",
    ]
    assert answer_of(0.25, successes=0).sentences()[2] == (
        "false accepts at this score: none of the 200 pairs of different people of pairs score as "
        "high; below 1.9% (95% sure), and more cannot be said with these pairs"
    )
    assert answer_of(0.25, successes=100).sentences()[2].endswith("50% (95% interval 43% to 57%)")
    for share, words in ((0.9996, "above 99.9%"), (0.9994, "99.9%"), (0.0006, "0.1%"),
                         (0.0004, "below 0.1%"), (0.5, "50.0%")):  # fmt: skip
        assert f": {words}, if 5%" in answer_of(share).sentences()[1]


@pytest.mark.parametrize(
    ("score", "threshold", "shown"),
    [
        (0.99996, 0.99998, ("0.99996", "0.99998")),  # a collapsed model: all scores are nearly 1
        (-0.0001, 0.0001, ("−0.0001", "0.0001")),
        (1.0, float(np.nextafter(1.0, 2.0)), ("1.0000000000000000", "1.0000000000000002")),
        (0.25, 0.5, ("0.250", "0.500")),
        (1.0, 1.0, ("1.000", "1.000")),
    ],
)
def test_a_score_and_its_threshold_are_told_apart(
    score: float, threshold: float, shown: tuple[str, str]
) -> None:
    for value, limit, numbers, against in (
        (score, threshold, shown, "reaches" if score == threshold else "is below"),
        (threshold, score, shown[::-1], "reaches"),
    ):
        answer = replace(
            answer_of(0.5), score=value, threshold=limit, accepted=against == "reaches"
        )
        said = f"the score {numbers[0]} {against} {numbers[1]}, the threshold"
        assert said in answer.sentences()[0]


def test_an_answer_as_plain_values(calibration: Calibration) -> None:
    threshold = threshold_for(calibration, 0.01)
    at_threshold = decide(threshold, calibration, false_accepts=0.01)
    assert at_threshold.accepted
    assert not decide(np.nextafter(threshold, -1), calibration, false_accepts=0.01).accepted
    values = at_threshold.to_mapping()
    assert json.loads(json.dumps(values)) == values
    assert values["false_accepts"]["trials"] == 4000
    assert (values["score"], values["threshold"]) == (threshold, threshold)
    assert Answer(0.5).to_mapping()["threshold"] is None


def test_what_a_decision_may_be_asked_for(calibration: Calibration) -> None:
    with pytest.raises(ValueError, match="need a calibrated model"):
        decide(0.7, None, prior=0.5)
    for options in ({"prior": 0.0}, {"prior": 1.0}, {"false_accepts": 0.0}, {"false_accepts": 1.0}):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            decide(0.5, calibration, **options)
    assert decide(0.5, calibration, prior=0.25).prior == 0.25
    assert calibration.impostor_scores is not None
    least = 1 / calibration.impostor_scores.pairs
    assert threshold_for(calibration, least) > threshold_for(calibration, 2 * least)
    with pytest.raises(ValueError, match=r"ask for 0\.001 or more, .* with at least 4,445$"):
        threshold_for(calibration, 0.9 * least)
    for alarms, people in ((0.0, 5), (1.0, 5), (0.5, 0)):
        with pytest.raises(ValueError, match="a share between 0 and 1, in a gallery of at least"):
            false_accepts_for(alarms, people)
    assert false_accepts_for(0.5, 1) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("pairs", "least"), [(1, 0.1), (10, 0.1), (99, 0.1), (100, 0.01), (1000, 0.001), (9999, 0.001)]
)
def test_the_rate_that_so_many_pairs_resolve(pairs: int, least: float) -> None:
    assert _least(pairs) == pytest.approx(least)


@pytest.mark.parametrize(
    ("share", "score"), [(0.0, 0.1), (0.1, 0.15), (0.2, 0.2), (0.6, 0.25), (1.0, 0.3)]
)
def test_the_score_that_few_pairs_of_one_person_stay_below(
    calibration: Calibration, share: float, score: float
) -> None:
    """Of ten genuine pairs none score below 0.1, two from there to 0.2 and eight above."""
    histogram = ScoreHistogram((0.0, 0.1, 0.2, 0.3), (0, 2, 8), (9, 9, 9))
    assert low_genuine(replace(calibration, histogram=histogram), share) == pytest.approx(score)
