"""Not this person: a binary classifier for one person, learned from faces that are not theirs.

SphereFace2's own idea, one-against-all with a bias, on frozen embeddings: σ(s · w·x + b). It starts
from the mean of the person's photos and bends away from the faces that were rejected. It takes part
in a decision only where it does better on photos that it has not seen.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sphereface2.galleries.gallery import Embeddings, Gallery, embeddings_of

LEAST_PHOTOS = 3
"""Photos of the person, from which on a classifier is tried."""
LEAST_NEGATIVES = 5
"""Faces that are not the person: rejected ones and strangers of the collection together."""
SCALE = 30.0  # s, the radius r of SphereFace2
STIFFNESS = 1.0  # ρ: what it costs to leave the mean of the person's photos
_STRANGERS = 100  # the nearest ones
_LEAVE_ONE_OUT = 60  # photos; of more, a tenth at a time is left out
_STEPS = 50

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """How the classifier does on left-out faces, and the plain rule beside it.

    photos, negatives: how many there are
    kept, passed: of those, how many the plain rule and the classifier together accept
    plain_kept, plain_passed: how many the plain rule accepts, as it is
    strict_kept: how many photos it accepts with a threshold that lets as few negatives pass
    """

    photos: int
    negatives: int
    kept: int
    passed: int
    plain_kept: int
    plain_passed: int
    strict_kept: int

    @property
    def is_better(self) -> bool:
        """Half the false accepts or fewer, at the cost of a tenth of the person's photos at most.

        And no fewer photos than a higher threshold alone would keep at as few false accepts. With a
        handful of faces chance alone would often pass a milder test.
        """
        return (
            2 * self.passed <= self.plain_passed
            and self.plain_passed > 0
            and 10 * (self.plain_kept - self.kept) <= self.plain_kept
            and self.kept >= max(1, self.strict_kept)
        )


@dataclass(frozen=True)
class Objection:
    """What was learned from faces that are not this person, for one face.

    trial: None if there are too few photos or faces to learn from
    logit: s · w·x + b; below 0 it speaks against the person
    """

    person: str
    photos: int
    negatives: int
    trial: Trial | None = None
    logit: float | None = None

    @property
    def used(self) -> bool:
        return self.trial is not None and self.trial.is_better

    @property
    def stands(self) -> bool:
        """Whether it turns the decision against the person."""
        return self.used and self.logit is not None and self.logit < 0

    def words(self) -> str:
        """How it enters the decision, or why it does not."""
        known = f"{self.negatives} faces known not to be {self.person}"
        if self.trial is None:
            return (
                f"{known}: not learned from yet, which takes {LEAST_NEGATIVES}, and "
                f"{LEAST_PHOTOS} photos of the person (there are {self.photos})"
            )
        trial = self.trial
        measured = (
            f"left out in turn, {trial.kept} of {trial.photos} photos of the person are accepted "
            f"with it and {trial.passed} of {trial.negatives} of those faces; without it "
            f"{trial.plain_kept} and {trial.plain_passed}"
        )
        if not self.used:
            return f"{known}: not used, because it does no better than the score alone ({measured})"
        against = "speaks AGAINST" if self.stands else "does not speak against"
        return f"{known}: what was learned from them {against} this face ({measured})"

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "used": self.used, "stands": self.stands, "words": self.words()}


def object_to(
    gallery: Gallery, person: str, embedding: Embeddings, *, threshold: float | None
) -> Objection | None:
    """What the faces that are not this person say about one; None if there are none of them.

    threshold: of the plain rule, the mean cosine with the person's photos; without one nothing is
        decided, and so nothing learned
    """
    rejected = [each.embedding for each in gallery.negatives(person)]
    strangers = [each.embedding for each in gallery.negatives(None)]
    if not rejected and not strangers:
        return None
    photos = embeddings_of(gallery, person).astype(np.float64)
    negatives = np.array([*rejected, *_nearest(photos, strangers)], np.float64)
    found = Objection(person, len(photos), len(negatives))
    if threshold is None or len(photos) < LEAST_PHOTOS or len(negatives) < LEAST_NEGATIVES:
        return found
    trial = try_out(photos, negatives, threshold)
    weight, bias = fit(photos, negatives)
    logit = SCALE * float(weight @ embedding.astype(np.float64)) + bias
    return Objection(person, len(photos), len(negatives), trial, logit)


def _nearest(photos: Array, strangers: list[Embeddings]) -> list[Embeddings]:
    if len(strangers) <= _STRANGERS or not len(photos):
        return strangers[:_STRANGERS]
    scores = np.array(strangers, np.float64) @ photos.mean(axis=0)
    return [strangers[each] for each in np.sort(np.argsort(-scores, kind="stable")[:_STRANGERS])]


def fit(photos: Array, negatives: Array) -> tuple[Array, float]:
    """(w, b) of the person's classifier.

    They minimise the loss: half the mean of softplus(∓(s · w·x + b)) of each kind, and
    ρ/2 · |w - mean|².
    """
    rows = np.concatenate([photos, negatives])
    is_photo = np.arange(len(rows)) < len(photos)
    coordinates, axes = _span(rows)
    centre = _unit_mean(photos)
    moved, bias = _newton(rows @ centre, coordinates, is_photo)
    return centre + moved @ axes, bias


def try_out(photos: Array, negatives: Array, threshold: float) -> Trial:
    """Leave each face out in turn, learn from the others, and judge it."""
    rows = np.concatenate([photos, negatives])
    count = len(rows)
    is_photo = np.arange(count) < len(photos)
    coordinates, _ = _span(rows)
    folds = np.arange(count) if count <= _LEAVE_ONE_OUT else np.arange(count) % 10
    cosines = rows @ photos.T
    plain, logits = np.empty(count), np.empty(count)
    for fold in np.unique(folds):
        out = folds == fold
        rest = ~out
        centre = _unit_mean(rows[rest & is_photo])
        along = rows @ centre
        moved, bias = _newton(along[rest], coordinates[rest], is_photo[rest])
        logits[out] = SCALE * (along[out] + coordinates[out] @ moved) + bias
    for number in range(count):
        known = np.arange(len(photos)) != number  # a negative has no column of its own
        plain[number] = cosines[number, known].mean()
    passes = plain >= threshold
    accepted = passes & (logits >= 0)
    passed = int(np.count_nonzero(accepted & ~is_photo))
    # The plain rule with a threshold of its own for this person: above the first negative that
    # must not pass.
    falling = np.sort(plain[~is_photo])[::-1]
    strict = max(threshold, np.nextafter(falling[passed], 2.0) if passed < len(falling) else -2.0)
    return Trial(
        photos=len(photos),
        negatives=len(negatives),
        kept=int(np.count_nonzero(accepted & is_photo)),
        passed=passed,
        plain_kept=int(np.count_nonzero(passes & is_photo)),
        plain_passed=int(np.count_nonzero(passes & ~is_photo)),
        strict_kept=int(np.count_nonzero((plain >= strict) & is_photo)),
    )


def _unit_mean(photos: Array) -> Array:
    mean: Array = photos.mean(axis=0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)


def _span(rows: Array) -> tuple[Array, Array]:
    """Coordinates (N, r) of the rows in r axes (r, D) of their span, in which w - mean lies."""
    left, sizes, axes = np.linalg.svd(rows, full_matrices=False)
    real = sizes > 1e-9 * sizes[0]
    return left[:, real] * sizes[real], axes[real]


def _newton(along: Array, coordinates: Array, is_photo: NDArray[np.bool_]) -> tuple[Array, float]:
    """The minimum of that loss over w - mean, in coordinates, and b; convex, so there is one."""
    count, width = coordinates.shape
    design = np.column_stack([SCALE * coordinates, np.ones(count)])
    sign = np.where(is_photo, 1.0, -1.0)
    share = np.where(is_photo, 0.5 / is_photo.sum(), 0.5 / (~is_photo).sum())
    stiffness = np.append(np.full(width, STIFFNESS), 1e-6)  # kept finite where all are separated

    def value(unknowns: Array) -> float:
        logits = SCALE * along + design @ unknowns
        return float(
            share @ np.logaddexp(0.0, -sign * logits) + (stiffness * unknowns) @ unknowns / 2
        )

    unknowns = np.zeros(width + 1)
    unknowns[-1] = -SCALE * (along[is_photo].mean() + along[~is_photo].mean()) / 2
    now = value(unknowns)
    for _ in range(_STEPS):
        logits = SCALE * along + design @ unknowns
        wrong = np.exp(-np.logaddexp(0.0, sign * logits))
        gradient = design.T @ (-share * sign * wrong) + stiffness * unknowns
        curve = (design * (share * wrong * (1 - wrong))[:, None]).T @ design
        step = np.linalg.solve(curve + np.diag(stiffness), gradient)
        scale = 1.0
        while (then := value(unknowns - scale * step)) > now and scale > 1e-6:
            scale /= 2
        unknowns = unknowns - scale * step
        if now - then < 1e-13:
            break
        now = then
    return unknowns[:-1], float(unknowns[-1])
