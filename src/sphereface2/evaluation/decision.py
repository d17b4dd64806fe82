"""From a score to an answer: a probability, the false accepts at it, a decision.

All of it comes from a calibration; what its pairs cannot resolve is said, not guessed.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sphereface2.evaluation.calibration import Calibration, RankedScores, check_request
from sphereface2.evaluation.thresholds import beside, in_figures, minimum_trials, resolves
from sphereface2.evaluation.uncertainty import Rate

DEFAULT_FALSE_ACCEPTS = 1e-3
NOT_CALIBRATED = "because this model is not calibrated"
HOW_TO_CALIBRATE = (
    "calibrate it once on pairs of known people: sphereface2 calibrate MODEL --on SET "
    "(docs/using.md says how to make such a set)"
)


@dataclass(frozen=True)
class Answer:
    """What a score says about two photos; all but the score is None without a calibration.

    probability: that it is the same person, if `prior` of all pairs that are compared are
    false_accepts: the share of pairs of different people that score at least this high
    accepted: whether the score reaches `threshold`, which at most `target` of the pairs of
        different people reach
    set_name: the pairs that it was calibrated on
    """

    score: float
    probability: float | None = None
    prior: float | None = None
    false_accepts: Rate | None = None
    target: float | None = None
    threshold: float | None = None
    accepted: bool | None = None
    set_name: str | None = None

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    def sentences(self) -> list[str]:
        """The answer in words: the decision, the probability, the false accepts."""
        if self.threshold is None or self.target is None or self.false_accepts is None:
            said = f"score {in_figures(self.score)}: no decision, {NOT_CALIBRATED}"
            return [said, HOW_TO_CALIBRATE]
        verdict, against = "NOT ACCEPTED as the same person", "is below"
        if self.accepted:
            verdict, against = "SAME PERSON", "reaches"
        score, limit = beside(self.score, self.threshold)
        decided = (
            f"{verdict}: the score {score} {against} {limit}, the threshold for at most "
            f"{one_in(self.target)} false accepts"
        )
        assert self.probability is not None
        assert self.prior is not None
        probable = (
            f"probability of one person: {as_probability(self.probability)}, if "
            f"{in_percent(self.prior)} of the pairs that you compare are one (the prior)"
        )
        return [decided, probable, self.false_accepts_in_words()]

    def false_accepts_in_words(self) -> str:
        """What the calibration's pairs of different people say about this score."""
        rate = self.false_accepts
        assert rate is not None
        high = in_percent(rate.interval.high)
        if rate.successes == 0:
            return (
                f"false accepts at this score: none of the {rate.trials:,} pairs of different "
                f"people of {self.set_name} score as high; below {high} (95% sure), and more "
                "cannot be said with these pairs"
            )
        return (
            f"false accepts at this score: {rate.successes:,} of the {rate.trials:,} pairs of "
            f"different people of {self.set_name} score as high, {in_percent(rate.value)} (95% "
            f"interval {in_percent(rate.interval.low)} to {high})"
        )


def decide(
    score: float,
    calibration: Calibration | None,
    *,
    false_accepts: float | None = None,
    prior: float | None = None,
) -> Answer:
    """The answer that a calibration gives for a score.

    false_accepts: the share of pairs of different people that may be accepted; 0.001 if not given,
        or the least that the calibration resolves
    prior: the share of pairs that are one person where this is used; the calibration's own if not
        given
    """
    check_request([] if false_accepts is None else [false_accepts], 0.5 if prior is None else prior)
    if calibration is None:
        if false_accepts is not None or prior is not None:
            raise ValueError(
                "a false accept rate and a prior need a calibrated model: sphereface2 calibrate "
                "MODEL --on SET"
            )
        return Answer(score)
    impostors = ranked_impostors(calibration)
    target = false_accepts
    if target is None:
        target = max(DEFAULT_FALSE_ACCEPTS, _least(impostors.pairs))
    threshold = threshold_for(calibration, target)
    chances = calibration.probability
    if prior is not None:
        chances = chances.at_prior(prior)
    return Answer(
        score=score,
        probability=float(chances(np.array([score]))[0]),
        prior=chances.prior,
        false_accepts=impostors.rate(score),
        target=target,
        threshold=threshold,
        accepted=score >= threshold,
        set_name=calibration.set_name,
    )


def threshold_for(calibration: Calibration, false_accepts: float) -> float:
    """The score that at most this share of the pairs of different people reach.

    A ValueError if the calibration has too few pairs to know.
    """
    for each in calibration.thresholds:
        if math.isclose(each.target, false_accepts) and each.resolved:
            return each.threshold
    impostors = ranked_impostors(calibration)
    if not resolves(false_accepts, impostors.pairs):
        raise ValueError(
            f"the calibration on {calibration.set_name} has {impostors.pairs:,} pairs of different "
            f"people and cannot tell {one_in(false_accepts)} false accepts from none; ask for "
            f"{_least(impostors.pairs):g} or more, or calibrate on a set with at least "
            f"{minimum_trials(false_accepts):,}"
        )
    return impostors.threshold(false_accepts)


def low_genuine(calibration: Calibration, share: float) -> float:
    """The score below which this share of the pairs of one person lie, by their histogram."""
    histogram = calibration.histogram
    below = np.concatenate([[0.0], np.cumsum(histogram.genuine)]) / sum(histogram.genuine)
    # Of edges before which equally few lie the last, so that empty bins are passed over.
    last = np.flatnonzero(np.append(np.diff(below) > 0, True))
    return float(np.interp(share, below[last], np.array(histogram.edges)[last]))


def resolvable(calibration: Calibration, false_accepts: float) -> float:
    """This false accept rate, or the least that the calibration's pairs resolve if that is more."""
    return max(false_accepts, 1 / ranked_impostors(calibration).pairs)


def ranked_impostors(calibration: Calibration) -> RankedScores:
    """The impostor scores of a calibration; one of an earlier version is refused."""
    if calibration.impostor_scores is None:
        raise ValueError(
            "the calibration is of an earlier version and lacks the scores that an answer rests "
            "on; calibrate the model again (sphereface2 calibrate MODEL --on SET)"
        )
    return calibration.impostor_scores


def false_alarms(false_accepts: Rate, people: int) -> Rate:
    """FPIR: the share of searches for a stranger that find somebody among so many people.

    1 - (1 - FAR)^N, which takes the people's scores for independent. `successes` and `trials` stay
    those of the pairs behind it. The mean number of people found wrongly per search is N · FAR.
    """
    if people < 1:
        raise ValueError(f"a gallery to search must hold at least one person, got {people}")
    ends = false_accepts.interval
    low, high = (alarms_at(end, people) for end in (ends.low, ends.high))
    value = alarms_at(false_accepts.value, people)
    return replace(false_accepts, value=value, interval=replace(ends, low=low, high=high))


def alarms_at(false_accepts: float, people: int) -> float:
    """The share of searches among N people that are alarms: `false_accepts_for` the other way."""
    return 1.0 if false_accepts >= 1 else -math.expm1(people * math.log1p(-false_accepts))


def false_accepts_for(alarms: float, people: int) -> float:
    """The false accept rate at which so large a share of searches among N people are alarms."""
    if not 0 < alarms < 1 or people < 1:
        raise ValueError(
            f"false alarms must be a share between 0 and 1, in a gallery of at least one person; "
            f"got {alarms} and {people}"
        )
    return -math.expm1(math.log1p(-alarms) / people)


def share_in_words(text: str) -> float:
    """The share that a text means: "1e-4", "0.01 %", "1 in 1000", "1 in 1,000 searches"."""
    plain = text.replace(",", "").strip()
    ratio = re.fullmatch(r"([\d.]+)\s+in\s+([\d.]+)(\s+[a-z]+)?", plain)
    percent = re.fullmatch(r"([\d.eE+-]+)\s*%", plain)
    try:
        if ratio is not None:
            share = float(ratio[1]) / float(ratio[2])
        else:
            share = float(percent[1]) / 100 if percent is not None else float(plain)
    except (ValueError, ZeroDivisionError):
        share = math.nan
    if not 0 < share < 1:
        raise ValueError(f"'{text}' is not a rate; write 1e-4, 0.01% or '1 in 10,000'")
    return share


def one_in(share: float) -> str:
    """A small share as people say it: "1 in 1,000"."""
    return f"1 in {1 / share:,.0f}" if share <= 0.1 else in_percent(share)


def _least(impostors: int) -> float:
    """The smallest power of ten that so many pairs resolve."""
    return min(0.1, 10.0 ** -math.floor(math.log10(max(impostors, 10)) + 1e-9))


def as_probability(share: float) -> str:
    """A probability in percent; near 0 and 1 the bound that it lies beyond."""
    if share > 0.9995:
        return "above 99.9%"
    return "below 0.1%" if share < 0.0005 else f"{100 * share:.1f}%"


def in_percent(share: float) -> str:
    """A share as a percentage of two figures."""
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"
