"""Which photos may be enrolled: what is measured on a face, the limits, and reasons in words."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.transforms import resize
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.decision import (
    NOT_CALIBRATED,
    false_accepts_for,
    in_percent,
    low_genuine,
    resolvable,
    threshold_for,
)
from sphereface2.evaluation.thresholds import beside
from sphereface2.faces.face import TEMPLATE, TEMPLATE_SIZE, similarity_transform
from sphereface2.galleries.gallery import Embeddings, Gallery, embeddings_of, knows
from sphereface2.recognition.photos import FoundFace
from sphereface2.registry import look_up

# Of an aligned crop of 112×112: brows to chin, without hair and background.
_FACE = (slice(28, 100), slice(26, 86))
# How far the tip of the nose stands out before the line of the eyes, in distances of the eyes.
_NOSE = 0.5


def sharpness(crop: NDArray[np.uint8]) -> float:
    """The variance of the Laplacian over the face, at 112×112 pixels; blur lowers it."""
    grey = cv2.cvtColor(resize(crop, TEMPLATE_SIZE), cv2.COLOR_RGB2GRAY)
    laplacian = cv2.Laplacian(grey.astype(np.float64), cv2.CV_64F, ksize=1)
    return float(np.asarray(laplacian)[_FACE].var())


def eye_distance(landmarks: NDArray[np.float64]) -> float:
    """Pixels of the photo between the eyes, as alignment has it.

    That of the template, through the similarity that aligns all five points: a head that is turned
    does not count as small, as it would by the distance of its two eyes.
    """
    matrix = similarity_transform(landmarks, TEMPLATE)
    return float(np.hypot(*(TEMPLATE[1] - TEMPLATE[0])) / np.hypot(matrix[0, 0], matrix[1, 0]))


def yaw(landmarks: NDArray[np.float64]) -> float:
    """Degrees by which a head is turned to a side, from 0 to 90, by an estimate from five points.

    Eyes 1 apart and a nose that stands out by 0.5 before the middle between them, turned by φ: the
    eyes appear cos φ apart and the nose moves sideways by 0.5 · sin φ, which gives tan φ. Whatever
    the roll; noses differ, and detectors place the hidden eye of a profile too far out, so that
    angles above 45° come out too small.
    """
    left, right, nose = landmarks[:3]
    across = right - left
    distance = float(np.hypot(*across))
    if distance == 0:
        return 90.0
    sideways = float((nose - (left + right) / 2) @ across) / distance**2
    return math.degrees(math.atan(abs(sideways) / _NOSE))


@dataclass(frozen=True)
class Quality:
    """What is measured on one face; None where no detector looked.

    eye_distance: pixels; yaw: degrees; rival: the largest other face's share of this one's area
    """

    sharpness: float
    eye_distance: float | None = None
    yaw: float | None = None
    rival: float = 0.0
    faces: int | None = None

    @classmethod
    def of(cls, found: FoundFace) -> Self:
        blur = round(sharpness(found.crop), 1)
        if found.face is None:
            return cls(blur)
        points = found.face.landmarks
        return cls(
            blur,
            round(eye_distance(points), 1),
            round(yaw(points), 1),
            round(found.rival, 3),
            found.others + 1,
        )

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values, as a gallery keeps them with a photo."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self | None:
        """What was measured when a photo was enrolled; None where nothing was."""
        if not isinstance(facts.get("sharpness"), int | float):
            return None
        return cls(**{each.name: facts[each.name] for each in fields(cls) if each.name in facts})


@dataclass(frozen=True)
class Reason:
    """Why a photo is not taken: a code for programs, words for people, what was measured."""

    code: str
    words: str
    value: float | None = None
    limit: float | None = None


NO_FACE, UNREADABLE = "no_face", "unreadable"


@dataclass(frozen=True)
class Gate:
    """The checks of an enrolment, each with its limit; None switches a check off.

    several_faces: another face has at least this share of the face's area
    too_small: the eyes are fewer pixels apart (35 in a crop of 112×112)
    blurred: the variance of the Laplacian at 112×112 is lower
    turned_away: the head is turned to a side by more degrees
    unlike_others: its mean score with the person's other photos is as low as those of this share
        of the pairs of one person
    same_as_another: somebody else of the gallery scores as high as so few enrolments of a new
        person would by chance, and higher than photos of the person that are enrolled

    The last two need a calibrated model; without one they are left out, and a note says so.
    """

    several_faces: float | None = 0.25
    too_small: float | None = 16.0
    blurred: float | None = 40.0
    turned_away: float | None = 35.0
    unlike_others: float | None = 0.05
    same_as_another: float | None = 0.01

    def __post_init__(self) -> None:
        for each in fields(self):
            limit = getattr(self, each.name)
            if limit is None:
                continue
            most = _MOST.get(each.name, 1.0)
            if not 0 < limit <= most or (limit == 1 and each.name in _RATES):
                raise ValueError(
                    f"the limit of {each.name} must be above 0 and "
                    f"{'below 1' if each.name in _RATES else f'at most {most:g}'}, got {limit}"
                )

    @classmethod
    def of(cls, *, allow: Sequence[str] = (), limits: Sequence[str] = ()) -> Self:
        """By words: `allow` names checks that are switched off (or all), `limits` say NAME=VALUE.

        Hyphens and underscores are alike.
        """
        names = {each.name: each.name for each in fields(cls)}
        gate = cls()
        for text in limits:
            word, _, value = text.partition("=")
            name = look_up("check", names, _plain(word))
            try:
                limit = float(value)
            except ValueError:
                raise ValueError(
                    f"'{text}' is not a limit; write it as in blurred=60 (the checks: "
                    f"{', '.join(names)})"
                ) from None
            gate = replace(gate, **{name: limit})
        for word in allow:
            off = list(names) if word == "all" else [look_up("check", names, _plain(word))]
            gate = replace(gate, **dict.fromkeys(off))
        return gate

    def look(self, quality: Quality) -> list[Reason]:
        """What speaks against a photo by itself."""
        measured = (quality.rival, quality.eye_distance, quality.sharpness, quality.yaw)
        found = []
        for (code, (is_beyond, words)), value in zip(_BY_ITSELF.items(), measured, strict=True):
            limit = getattr(self, code)
            if value is None or limit is None or not is_beyond(value, limit):
                continue
            shares = {"share": in_percent(value), "most": in_percent(limit)}
            shown, _ = beside(value, limit, fewest=0)
            said = words.format(value=shown, limit=limit, faces=quality.faces, **shares)
            found.append(Reason(code, said, value, limit))
        return found

    def compare(
        self,
        person: str,
        embeddings: Embeddings,
        gallery: Gallery,
        calibration: Calibration | None,
    ) -> list[list[Reason]]:
        """What speaks against each of a person's new photos (N, D), by the scores."""
        reasons: list[list[Reason]] = [[] for _ in embeddings]
        if calibration is None or not len(embeddings):
            return reasons
        people, _ = gallery.count()
        known = knows(gallery, person)
        own = embeddings_of(gallery, person) if known else embeddings[:0]
        if self.unlike_others is not None:
            limit = low_genuine(calibration, self.unlike_others)
            for number, score in outliers(embeddings, own, limit).items():
                shown, least = beside(score, limit)
                words = (
                    f"it is unlike the person's other photos: its mean score with them is {shown} "
                    f"(limit {least}: {in_percent(self.unlike_others)} of pairs of one person "
                    "score lower)"
                )
                reasons[number].append(Reason("unlike_others", words, score, limit))
        if self.same_as_another is not None and people - known > 0:
            rate = false_accepts_for(self.same_as_another, people)
            limit = threshold_for(calibration, resolvable(calibration, rate))
            for number, hits in enumerate(gallery.search(embeddings, people=3)):
                row = embeddings[number]
                others = [hit.person for hit in hits if hit.person != person]
                means = [float((embeddings_of(gallery, each) @ row).mean()) for each in others]
                scores = np.clip(means, -1.0, 1.0).tolist()
                score, other = max(zip(scores, others, strict=True), default=(-1.0, ""))
                # The other new photos do not count: they may all show the same wrong person.
                mine = float((own @ row).mean()) if len(own) else -1.0
                if score >= limit and score > mine:
                    shown, most = beside(score, limit)
                    words = (
                        f"it shows the face of {other}, who is enrolled already: the score is "
                        f"{shown} (limit {most})"
                    )
                    reasons[number].append(Reason("same_as_another", words, score, limit))
        return reasons

    def unchecked(self, calibration: Calibration | None) -> list[str]:
        """What could not be looked at, in words."""
        names = [name for name in _RATES if getattr(self, name) is not None]
        if calibration is not None or not names:
            return []
        return [
            f"not checked: {' and '.join(names)}, {NOT_CALIBRATED} (sphereface2 calibrate MODEL "
            "--on SET)"
        ]


_MOST = {"too_small": 10_000.0, "blurred": 100_000.0, "turned_away": 90.0}  # others: 1
_RATES = ("unlike_others", "same_as_another")


# What a photo itself may show: when it does, and the words for it.
_BY_ITSELF: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "several_faces": (
        operator.ge,
        "it shows {faces} faces, the second {share} as large (limit {most}); cut out the one that "
        "is meant",
    ),
    "too_small": (
        operator.lt,
        "the face is small: its eyes are {value} pixels apart (limit {limit:g})",
    ),
    "blurred": (
        operator.lt,
        "the face is blurred: its sharpness is {value} (limit {limit:g})",
    ),
    "turned_away": (
        operator.gt,
        "the face is turned to the side by about {value}° (limit {limit:g}°)",
    ),
}


def _plain(word: str) -> str:
    return word.strip().replace("-", "_")


def outliers(embeddings: Embeddings, settled: Embeddings, limit: float) -> dict[int, float]:
    """Rows of (N, D) that score below `limit` on average with the other photos of a person.

    settled: (M, D), photos that stay. The worst goes first and the others are judged without it,
    so that one wrong photo does not take right ones with it; of two that are equally bad the later.
    """
    cosines = embeddings @ np.concatenate([settled, embeddings]).T
    kept = list(range(len(embeddings)))
    out: dict[int, float] = {}
    while kept:
        columns = [*range(len(settled)), *(len(settled) + each for each in kept)]
        if len(columns) < 2:
            break
        # Each row's own column holds its cosine with itself, which is left out of the mean.
        sums = cosines[np.ix_(kept, columns)].sum(axis=1, dtype=np.float64)
        itself = np.array([cosines[each, len(settled) + each] for each in kept], np.float64)
        means = (sums - itself) / (len(columns) - 1)
        worst = len(kept) - 1 - int(np.argmin(np.round(means[::-1], 6)))
        if means[worst] >= limit:
            break
        out[kept[worst]] = float(means[worst])
        del kept[worst]
    return out
