"""A search's answer: against naive formulas, and in words that say what it rests on."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from sphereface2.evaluation.calibration import Calibration, calibrate
from sphereface2.evaluation.decision import decide, false_accepts_for, false_alarms
from sphereface2.recognition.answers import (
    Candidate,
    Identification,
    Rule,
    candidate,
    share_out,
)
from sphereface2.recognition.photos import FoundFace
from sphereface2.recognition.rejection import Objection, Trial
from tests.evaluation.test_decision import SCORED


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(SCORED, replicates=0)


def answered(rule: Rule, calibration: Calibration | None, *people: Candidate) -> Identification:
    shared = share_out(people, rule.people, calibration)
    photo = FoundFace("a.jpg", np.zeros((112, 112, 3), np.uint8))
    return Identification(shared, rule, photo, "default", "digest")


def test_a_candidate_has_the_mean_score_and_the_alarms_of_this_gallery(
    calibration: Calibration,
) -> None:
    rule = Rule.of(calibration, 20, alarms=0.05)
    assert rule.target == pytest.approx(1 - 0.95 ** (1 / 20))
    found = candidate("Ada", [0.3, 0.5], rule, calibration)
    assert found.answer.score == pytest.approx(0.4)
    assert (found.best, found.photos) == (0.5, 2)
    plain = decide(found.answer.score, calibration, false_accepts=rule.target)
    assert plain.false_accepts is not None
    assert found.answer.threshold == plain.threshold
    assert found.false_alarms == false_alarms(plain.false_accepts, 20)
    assert found.wrong_people == pytest.approx(20 * plain.false_accepts.value)


def test_probabilities_are_those_of_the_naive_sum(calibration: Calibration) -> None:
    rule = Rule.of(calibration, 50)
    scores = {"Ada": 0.5, "Ben": 0.45, "Cem": 0.1}
    found = share_out(
        [candidate(name, [score], rule, calibration, prior=0.3) for name, score in scores.items()],
        50,
        calibration,
    )
    probability = calibration.probability.at_prior(0.5)
    odds = {}
    for name, score in scores.items():
        p = float(probability(np.array([score]))[0])
        odds[name] = p / (1 - p) * 0.3 / 50
    total = sum(odds.values()) + 0.7
    for each in found:
        assert each.answer.probability == pytest.approx(odds[each.person] / total)
    assert [each.person for each in found] == ["Ada", "Ben", "Cem"]
    # Twins share what one of them would have alone.
    twins = share_out([candidate(name, [0.7], rule, calibration) for name in "ab"], 50, calibration)
    assert twins[0].answer.probability == twins[1].answer.probability
    assert (twins[0].answer.probability or 1) < 0.5


def test_without_a_wish_the_rule_is_the_strictest_that_is_resolved(
    calibration: Calibration,
) -> None:
    few = Rule.of(calibration, 3)
    assert few.target == pytest.approx(false_accepts_for(0.01, 3))
    assert few.alarms == pytest.approx(0.01)
    assert few.words().startswith("the threshold for at most 1 in 299 false accepts")
    many = Rule.of(calibration, 1000)
    assert many.target == 1 / 4000
    assert many.alarms == pytest.approx(1 - (1 - 1 / 4000) ** 1000)
    assert "the strictest threshold that the calibration resolves" in many.words()
    assert "22% of the searches for a stranger among 1,000 people are false alarms" in many.words()
    asked = Rule.of(calibration, 3, alarms=0.02)
    assert (
        "at most 1 in 50 searches for a stranger among 3 people is a false alarm" in asked.words()
    )
    assert Rule.of(calibration, 3, false_accepts=0.01).asked == "false_accepts"
    with pytest.raises(ValueError, match="one follows from the other"):
        Rule.of(calibration, 3, alarms=0.1, false_accepts=0.1)
    with pytest.raises(ValueError, match="cannot tell 1 in"):
        candidate("Ada", [0.4], Rule.of(calibration, 1000, alarms=0.001), calibration)
    with pytest.raises(ValueError, match="not calibrated"):
        Rule.of(None, 3, alarms=0.1)


def test_the_words_name_the_person_the_chance_and_the_alarms(calibration: Calibration) -> None:
    rule = Rule.of(calibration, 40, false_accepts=0.001)
    people = [candidate(name, [s], rule, calibration) for name, s in (("Ada", 0.7), ("Ben", 0.1))]
    found = answered(rule, calibration, *people)
    assert found.match is not None
    assert found.match.person == "Ada"
    words = found.sentences()
    assert words[0].startswith("Ada: the score 0.700 reaches 0.4")
    assert "probability of Ada" in words[1]
    assert "50% of the people you search for are enrolled" in words[1]
    assert "none of the 4,000 pairs" in words[2]
    assert "for a stranger among 40 people" in words[3]
    assert words[-1] == "next: Ben 0.100"
    nobody = answered(rule, calibration, people[1])
    assert nobody.match is None
    assert nobody.sentences()[0].startswith("NOBODY of 40 people: the best score is 0.100 (Ben)")
    assert nobody.to_mapping()["person"] is None
    assert found.to_mapping()["candidates"][0]["wrong_people"] == 0


def test_a_score_next_to_the_threshold_is_told_apart_from_it(calibration: Calibration) -> None:
    rule = Rule.of(calibration, 40, false_accepts=0.001)
    limit = candidate("Ada", [0.7], rule, calibration).answer.threshold
    assert limit is not None
    for away, words in (
        (-1e-6, r"is (\S+) \(Ada\), below (\S+),"),
        (1e-6, r"(\S+) reaches (\S+),"),
    ):
        found = answered(rule, calibration, candidate("Ada", [limit + away], rule, calibration))
        shown = re.search(words, found.sentences()[0])
        assert shown is not None
        score, threshold = map(float, shown.groups())
        assert (score < threshold) == (away < 0)


def test_an_objection_turns_the_decision_and_the_next_one_is_taken(
    calibration: Calibration,
) -> None:
    rule = Rule.of(calibration, 2, false_accepts=0.01)
    against = Objection("Ada", 6, 5, Trial(6, 5, 6, 0, 6, 5, 6), -3.0)
    ada = replace(candidate("Ada", [0.7], rule, calibration), objection=against)
    ben = candidate("Ben", [0.6], rule, calibration)
    assert ada.answer.accepted
    assert not ada.accepted
    found = answered(rule, calibration, ada, ben)
    assert found.match is not None
    assert found.match.person == "Ben"
    assert any("speaks AGAINST" in each for each in found.sentences())
    alone = answered(rule, calibration, ada)
    assert alone.match is None
    assert "faces marked as not Ada speak against it" in alone.sentences()[0]
    assert alone.to_mapping()["candidates"][0]["objection"]["trial"]["passed"] == 0


def test_without_a_calibration_it_says_so() -> None:
    rule = Rule.of(None, 2)
    found = answered(rule, None, candidate("Ada", [0.7], rule, None))
    assert found.match is None
    assert found.candidates[0].accepted is None
    assert "no decision, because this model is not calibrated" in found.sentences()[0]
    assert "sphereface2 calibrate MODEL --on SET" in found.sentences()[1]
    assert not math.isnan(found.to_mapping()["candidates"][0]["score"])
