"""Is it this person, and who is it? The answers about a photo, and the rule of a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sphereface2.data.sources.image_file import decode
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.decision import (
    HOW_TO_CALIBRATE,
    NOT_CALIBRATED,
    Answer,
    alarms_at,
    as_probability,
    decide,
    false_accepts_for,
    false_alarms,
    in_percent,
    one_in,
    resolvable,
)
from sphereface2.evaluation.thresholds import beside, in_figures
from sphereface2.evaluation.uncertainty import Rate
from sphereface2.galleries.gallery import Gallery
from sphereface2.recognition.photos import FoundFace
from sphereface2.recognition.rejection import Objection
from sphereface2.workers import counted

_MOST_SCORES = 10  # in a sentence
DEFAULT_FALSE_ALARMS = 0.01
"""The share of searches for a stranger that may find somebody, where the pairs resolve it."""


@dataclass(frozen=True, eq=False)
class Verification:
    """Whether a photo shows the person of one photo or several.

    answer: for `score`, the mean of `scores`, the cosines of the photo with each of the person's
    person: those of the person's photos that there are pictures of
    name: of somebody who is enrolled; objection: what was learned from faces that are not theirs
    """

    answer: Answer
    scores: tuple[float, ...]
    photo: FoundFace
    person: tuple[FoundFace, ...]
    model: str
    name: str | None = None
    objection: Objection | None = None

    @property
    def accepted(self) -> bool | None:
        """The decision; None without a calibration."""
        return _accepted(self.answer, self.objection)

    @property
    def faces(self) -> tuple[FoundFace, ...]:
        return (self.photo, *self.person)

    def sentences(self) -> list[str]:
        """The answer in words, and how it came about where that is not plain."""
        said = self.answer.sentences()
        if self.answer.accepted and not self.accepted:
            said[0] = f"NOT ACCEPTED as {self.name}, though by the score alone: {said[0]}"
        if self.objection is not None:
            said.append(self.objection.words())
        if len(self.scores) > 1:
            each = ", ".join(in_figures(score) for score in self.scores[:_MOST_SCORES])
            more = len(self.scores) - _MOST_SCORES
            each += f" and {more} more" if more > 0 else ""
            said.append(f"the score is the mean over the person's photos: {each}")
        return said + [note for face in self.faces for note in face.notes()]

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values; the pictures are left out."""
        return {
            **self.answer.to_mapping(),
            "accepted": self.accepted,
            "person": self.name,
            "scores": list(self.scores),
            "objection": None if self.objection is None else self.objection.to_mapping(),
            "words": self.sentences(),
            "photos": [face.to_mapping() for face in self.faces],
            "model": self.model,
        }


@dataclass(frozen=True)
class Rule:
    """The threshold of a search, and how it was asked for.

    target: the share of pairs of different people that may reach it; None without a calibration
    alarms: the share of searches for a stranger that it stands for in this gallery
    asked: what the user has given: "false_alarms", "false_accepts" or nothing, ""
    """

    people: int
    target: float | None = None
    alarms: float | None = None
    asked: str = ""

    @classmethod
    def of(
        cls,
        calibration: Calibration | None,
        people: int,
        *,
        alarms: float | None = None,
        false_accepts: float | None = None,
    ) -> Rule:
        """The rule for a gallery of so many people; without a wish, 1 false alarm in 100 searches.

        A wish that the calibration cannot resolve is refused by `decide`.
        """
        if alarms is not None and false_accepts is not None:
            raise ValueError("give false alarms or false accepts: one follows from the other")
        if calibration is None:
            if alarms is not None or false_accepts is not None:
                raise ValueError(f"there is no threshold, {NOT_CALIBRATED}; {HOW_TO_CALIBRATE}")
            return cls(people)
        if false_accepts is not None:
            return cls(people, false_accepts, alarms_at(false_accepts, people), "false_accepts")
        target = false_accepts_for(DEFAULT_FALSE_ALARMS if alarms is None else alarms, people)
        if alarms is not None:
            return cls(people, target, alarms, "false_alarms")
        target = resolvable(calibration, target)
        return cls(people, target, alarms_at(target, people))

    def words(self) -> str:
        """What the threshold is for."""
        assert self.target is not None
        assert self.alarms is not None
        among = f"searches for a stranger among {counted(self.people, 'person', 'people')}"
        alarms = (
            f"{one_in(self.alarms)} {among} is a false alarm"
            if self.alarms <= 0.1
            else f"{in_percent(self.alarms)} of the {among} are false alarms"
        )
        if self.asked == "false_alarms":
            return f"the threshold at which at most {alarms}"
        rate = f"at most {one_in(self.target)} false accepts, at which about {alarms}"
        if self.asked == "false_accepts" or self.alarms <= DEFAULT_FALSE_ALARMS * (1 + 1e-9):
            return f"the threshold for {rate}"
        return f"the strictest threshold that the calibration resolves: {rate}"


@dataclass(frozen=True)
class Candidate:
    """Somebody whom a photo may show.

    answer: for the mean cosine with all photos of the person; its probability is that of this
        person among all of the gallery
    best: the highest of these cosines; photos: how many there are
    false_alarms: the share of searches for a stranger in this gallery in which somebody scores as
        high; wrong_people: how many do on average
    objection: what was learned from faces that are not this person, where there are any
    """

    person: str
    photos: int
    best: float
    answer: Answer
    false_alarms: Rate | None = None
    wrong_people: float | None = None
    objection: Objection | None = None

    @property
    def accepted(self) -> bool | None:
        """The decision; None without a calibration."""
        return _accepted(self.answer, self.objection)

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "person": self.person,
            "photos": self.photos,
            "best": self.best,
            **self.answer.to_mapping(),
            "accepted": self.accepted,
            "false_alarms": None if self.false_alarms is None else asdict(self.false_alarms),
            "wrong_people": self.wrong_people,
            "objection": None if self.objection is None else self.objection.to_mapping(),
        }


@dataclass(frozen=True, eq=False)
class Identification:
    """Who a photo shows, of the people of a gallery: the candidates, the likeliest first."""

    candidates: tuple[Candidate, ...]
    rule: Rule
    photo: FoundFace
    gallery: str
    model: str

    @property
    def match(self) -> Candidate | None:
        """The person found; None if nobody was, or if the model is not calibrated."""
        return next((each for each in self.candidates if each.accepted), None)

    def sentences(self) -> list[str]:
        """The answer in words."""
        first = self.match or self.candidates[0]
        answer = first.answer
        people = counted(self.rule.people, "person", "people")
        if answer.threshold is None or first.false_alarms is None:
            said = [
                f"nearest of {people}: {first.person}, score {in_figures(answer.score)}; no "
                f"decision, {NOT_CALIBRATED}",
                HOW_TO_CALIBRATE,
            ]
            return said + self._others(first) + self.photo.notes()
        score, limit = beside(answer.score, answer.threshold)
        if first.accepted:
            said = [f"{first.person}: the score {score} reaches {limit}, {self.rule.words()}"]
        elif answer.accepted:
            said = [
                f"NOBODY of {people}: {first.person} scores {score} and reaches {limit}, but faces "
                f"marked as not {first.person} speak against it"
            ]
        else:
            said = [
                f"NOBODY of {people}: the best score is {score} ({first.person}), below {limit}, "
                f"{self.rule.words()}"
            ]
        assert answer.probability is not None
        assert answer.prior is not None
        said.append(
            f"probability of {first.person}: {as_probability(answer.probability)}, if "
            f"{in_percent(answer.prior)} of the people you search for are enrolled (the prior), "
            "each as likely as the other"
        )
        said += [answer.false_accepts_in_words(), _alarms_in_words(first, people)]
        said += [each.objection.words() for each in self.candidates if each.objection is not None]
        return said + self._others(first) + self.photo.notes()

    def _others(self, first: Candidate) -> list[str]:
        others = [each for each in self.candidates if each is not first]
        if not others:
            return []
        names = ", ".join(f"{each.person} {in_figures(each.answer.score)}" for each in others)
        return [f"next: {names}"]

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values; the pictures are left out."""
        match = self.match
        return {
            "person": None if match is None else match.person,
            "candidates": [each.to_mapping() for each in self.candidates],
            "rule": asdict(self.rule),
            "words": self.sentences(),
            "photo": self.photo.to_mapping(),
            "gallery": self.gallery,
            "model": self.model,
        }


def _accepted(answer: Answer, objection: Objection | None) -> bool | None:
    stands = objection is not None and objection.stands
    return None if answer.accepted is None else answer.accepted and not stands


def _alarms_in_words(candidate: Candidate, people: str) -> str:
    rate = candidate.false_alarms
    assert rate is not None
    assert candidate.wrong_people is not None
    if rate.successes == 0:
        share = f"fewer than {in_percent(rate.interval.high)} (95% sure) of the searches"
        wrong = "somebody scores as high"
    else:
        share = (
            f"{in_percent(rate.value)} (95% interval {in_percent(rate.interval.low)} to "
            f"{in_percent(rate.interval.high)}) of the searches"
        )
        wrong = f"{candidate.wrong_people:.2g} wrong people score as high on average"
    return f"false alarms at this score: in {share} for a stranger among {people}, {wrong}"


def candidate(
    person: str,
    scores: Sequence[float],
    rule: Rule,
    calibration: Calibration | None,
    *,
    prior: float | None = None,
) -> Candidate:
    """Somebody whom a search found, by the cosines with all of their photos."""
    mean = float(np.clip(np.mean(scores), -1.0, 1.0))
    answer = decide(mean, calibration, false_accepts=rule.target, prior=prior)
    found = Candidate(person, len(scores), max(scores), answer)
    if answer.false_accepts is None:
        return found
    return replace(
        found,
        false_alarms=false_alarms(answer.false_accepts, rule.people),
        wrong_people=rule.people * answer.false_accepts.value,
    )


def share_out(
    candidates: Sequence[Candidate], people: int, calibration: Calibration | None
) -> tuple[Candidate, ...]:
    """The candidates, best first, with probabilities that take in that only one can be right.

    With a chance p that the person is one of N and odds r that the score gives for each, which is
    P(score | same) / P(score | different): r·p/N / (Σ r·p/N + 1 - p), over all who were scored.
    """
    ranked = sorted(candidates, key=lambda each: (-each.answer.score, each.person))
    if calibration is None:
        return tuple(ranked)
    prior = ranked[0].answer.prior
    assert prior is not None
    even = calibration.probability.at_prior(0.5)
    scores = np.array([each.answer.score for each in ranked])
    # In logarithms: odds of a good model overflow.
    chances = even.slope * scores + even.intercept + math.log(prior / people)
    total = np.logaddexp.reduce([*chances, math.log1p(-prior)])
    shares = np.exp(chances - total)
    return tuple(
        replace(each, answer=replace(each.answer, probability=float(share)))
        for each, share in zip(ranked, shares, strict=True)
    )


def faces_of(gallery: Gallery, person: str, *, most: int) -> Iterator[FoundFace]:
    """The first faces of a person whose crops were kept, to be shown."""
    shown = 0
    for photo in gallery.photos(person):
        if shown < most and (crop := gallery.crop(photo.id)):
            shown += 1
            yield FoundFace(photo.source or photo.id, decode(crop, photo.id), aligned=True)
