"""Is it this person? The answer for one photo and one person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sphereface2.evaluation.decision import Answer, in_figures
from sphereface2.recognition.photos import FoundFace
from sphereface2.recognition.rejection import Objection

_MOST_SCORES = 10  # in a sentence


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
        if self.answer.accepted is None:
            return None
        return self.answer.accepted and not (self.objection is not None and self.objection.stands)

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
