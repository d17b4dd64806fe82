"""Not this person: the classifier against naive ones, and when it takes part in a decision."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from sphereface2.galleries import open_gallery
from sphereface2.galleries.gallery import Gallery, NewPhoto
from sphereface2.recognition.rejection import (
    LEAST_NEGATIVES,
    SCALE,
    STIFFNESS,
    Objection,
    Trial,
    fit,
    object_to,
    try_out,
)

Array = NDArray[np.float64]
DIM = 24


def rows(centre: Array, count: int, seed: int, spread: float = 0.08) -> Array:
    noise = np.random.default_rng(seed).normal(size=(count, DIM))
    moved = centre + spread * noise
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True))


ADA: Array = np.eye(DIM)[0]
LIKE: Array = 0.85 * np.eye(DIM)[0] + 0.527 * np.eye(DIM)[1]  # a lookalike
THRESHOLD = 0.5


def loss(weight: Array, bias: float, photos: Array, negatives: Array) -> float:
    """What `fit` is to make least, straight from its formula."""
    mean = photos.mean(axis=0)
    away = weight - mean / np.linalg.norm(mean)
    mine = np.logaddexp(0.0, -(SCALE * photos @ weight + bias)).mean()
    others = np.logaddexp(0.0, SCALE * negatives @ weight + bias).mean()
    return float((mine + others) / 2 + STIFFNESS / 2 * away @ away)


def test_the_classifier_is_where_the_loss_is_least() -> None:
    photos, negatives = rows(ADA, 6, 0, 0.2), rows(LIKE, 5, 1, 0.2)
    weight, bias = fit(photos, negatives)
    found = loss(weight, bias, photos, negatives)
    for seed in (0, 1):
        start = np.random.default_rng(seed).normal(size=DIM + 1)
        best = minimize(
            lambda both: loss(both[:-1], both[-1], photos, negatives),
            start,
            method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 200_000, "ftol": 1e-15},
        )
        assert found <= best.fun + 1e-5
        np.testing.assert_allclose(weight, best.x[:-1], atol=0.02)


def test_the_trial_counts_what_refitting_without_each_face_gives() -> None:
    photos, negatives = rows(ADA, 6, 2, 0.25), rows(LIKE, 7, 3, 0.25)
    trial = try_out(photos, negatives, THRESHOLD)
    kept = passed = plain_kept = plain_passed = 0
    scores, others = [], []
    for number, row in enumerate(photos):
        rest = np.delete(photos, number, axis=0)
        weight, bias = fit(rest, negatives)
        mean = float(np.mean([row @ each for each in rest]))
        scores.append(mean)
        plain_kept += mean >= THRESHOLD
        kept += mean >= THRESHOLD and SCALE * weight @ row + bias >= 0
    for number, row in enumerate(negatives):
        weight, bias = fit(photos, np.delete(negatives, number, axis=0))
        mean = float(np.mean([row @ each for each in photos]))
        others.append(mean)
        plain_passed += mean >= THRESHOLD
        passed += mean >= THRESHOLD and SCALE * weight @ row + bias >= 0
    raised = [each for each in np.linspace(THRESHOLD, 1, 20_001) if _above(others, each) <= passed]
    assert trial == Trial(6, 7, kept, passed, plain_kept, plain_passed, _above(scores, raised[0]))


def _above(scores: list[float], threshold: float) -> int:
    return sum(score >= threshold for score in scores)


def test_many_faces_are_left_out_a_tenth_at_a_time() -> None:
    photos, negatives = rows(ADA, 40, 4), rows(LIKE, 40, 5)
    trial = try_out(photos, negatives, THRESHOLD)
    assert (trial.kept, trial.passed, trial.plain_passed) == (40, 0, 40)
    assert trial.is_better


@pytest.fixture
def gallery(tmp_path: Path) -> Iterator[Gallery]:
    made = open_gallery(str(tmp_path), model="m", dim=DIM, create=True)
    made.add("Ada", [NewPhoto(row.astype(np.float32)) for row in rows(ADA, 6, 10)])
    yield made
    made.close()


def objections(gallery: Gallery, faces: Array) -> list[Objection | None]:
    return [
        object_to(gallery, "Ada", face.astype(np.float32), threshold=THRESHOLD) for face in faces
    ]


def test_a_lookalike_is_rejected_and_the_person_still_passes(gallery: Gallery) -> None:
    own, lookalike = rows(ADA, 8, 11), rows(LIKE, 8, 12)
    known = rows(ADA, 6, 10)
    # The plain rule takes both for Ada.
    assert min((own @ known.T).mean(axis=1).min(), (lookalike @ known.T).mean(axis=1).min()) > 0.5
    assert objections(gallery, own) == [None] * 8
    ids = [
        gallery.add_negative("Ada", row.astype(np.float32))
        for row in rows(LIKE, LEAST_NEGATIVES, 13)
    ]
    for face in objections(gallery, own):
        assert face is not None
        assert face.used
        assert not face.stands
        assert "does not speak against" in face.words()
    for face in objections(gallery, lookalike):
        assert face is not None
        assert face.stands
        assert face.trial is not None
        assert (face.trial.kept, face.trial.photos) == (6, 6)
        assert face.trial.passed <= 1
        assert face.trial.plain_passed == LEAST_NEGATIVES
        assert face.to_mapping()["stands"] is True
    # The same again, and undone: one face fewer is too few to learn from.
    assert objections(gallery, lookalike) == objections(gallery, lookalike)
    gallery.remove_negative(ids[0])
    (undone,) = objections(gallery, lookalike[:1])
    assert undone is not None
    assert undone.trial is None
    assert not undone.stands
    assert f"takes {LEAST_NEGATIVES}" in undone.words()


def test_it_is_not_used_where_it_does_no_better(gallery: Gallery) -> None:
    # Faces like Ada's own: no classifier can part them, and none takes part.
    for row in rows(ADA, 6, 14):
        gallery.add_negative("Ada", row.astype(np.float32))
    found = objections(gallery, np.concatenate([rows(ADA, 4, 15), rows(LIKE, 4, 16)]))
    assert len(found) == 8
    for face in found:
        assert face is not None
        assert not face.used
        assert not face.stands
        assert "not used, because it does no better" in face.words()


def test_strangers_count_as_well_and_nothing_is_learned_without_a_threshold(
    gallery: Gallery,
) -> None:
    for row in rows(LIKE, LEAST_NEGATIVES, 17):
        gallery.add_negative(None, row.astype(np.float32))
    face = LIKE.astype(np.float32)
    found = object_to(gallery, "Ada", face, threshold=THRESHOLD)
    assert found is not None
    assert found.stands
    unsure = object_to(gallery, "Ada", face, threshold=None)
    assert unsure is not None
    assert unsure.trial is None


@pytest.mark.parametrize(
    ("trial", "better"),
    [
        (Trial(10, 5, 10, 0, 10, 5, 10), True),  # as good as a higher threshold, which none set
        (Trial(10, 5, 9, 0, 10, 5, 4), True),
        (Trial(10, 5, 4, 0, 10, 5, 9), False),  # a higher threshold alone keeps more
        (Trial(10, 5, 8, 0, 10, 5, 4), False),  # too many of the person's own
        (Trial(10, 5, 0, 0, 0, 5, 0), False),  # nobody is let in
        (Trial(10, 5, 10, 3, 10, 5, 10), False),  # most of the wrong faces pass all the same
        (Trial(10, 5, 10, 0, 10, 0, 10), False),  # there was nothing to gain
    ],
)
def test_better_means_fewer_mistakes_and_not_only_more_refusals(trial: Trial, better: bool) -> None:
    assert trial.is_better == better
