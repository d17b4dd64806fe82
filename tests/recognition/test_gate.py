"""What is measured on a face, against naive formulas, and what the gate says about it."""

import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.evaluation.calibration import Calibration, calibrate
from sphereface2.evaluation.decision import low_genuine
from sphereface2.faces.face import TEMPLATE, Face
from sphereface2.galleries import open_gallery
from sphereface2.galleries.gallery import Embeddings, NewPhoto
from sphereface2.recognition.gate import (
    Gate,
    Quality,
    eye_distance,
    outliers,
    sharpness,
    yaw,
)
from sphereface2.recognition.photos import FoundFace
from tests.evaluation.test_decision import SCORED

GOOD = Quality(sharpness=500.0, eye_distance=60.0, yaw=5.0, rival=0.0, faces=1)


def texture(seed: int = 0) -> NDArray[np.uint8]:
    noise = np.random.default_rng(seed).integers(0, 256, (112, 112, 3)).astype(np.uint8)
    return np.asarray(cv2.GaussianBlur(noise, (0, 0), 0.8), np.uint8)


def test_sharpness_is_the_variance_of_the_laplacian_over_the_face() -> None:
    crop = texture()
    grey = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY).astype(float)
    values = []
    for y in range(28, 100):
        for x in range(26, 86):
            around = grey[y - 1, x] + grey[y + 1, x] + grey[y, x - 1] + grey[y, x + 1]
            values.append(around - 4 * grey[y, x])
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    assert sharpness(crop) == pytest.approx(variance, rel=1e-9)


def test_blur_lowers_it_and_a_larger_crop_of_the_same_hardly_changes_it() -> None:
    crop = texture()
    blurred = [
        sharpness(np.asarray(cv2.GaussianBlur(crop, (0, 0), sigma), np.uint8))
        for sigma in (1.0, 2.0, 3.0)
    ]
    assert sharpness(crop) > blurred[0] > blurred[1] > blurred[2]
    large = np.asarray(cv2.resize(crop, (224, 224), interpolation=cv2.INTER_NEAREST), np.uint8)
    assert sharpness(large) == pytest.approx(sharpness(crop), rel=1e-6)


def turned(degrees: float, *, roll: float = 0.0, scale: float = 40.0) -> NDArray[np.float64]:
    """Five points in space, turned to a side, rolled and projected."""
    points = np.array([[-0.5, 0, 0], [0.5, 0, 0], [0, 0.6, 0.5], [-0.4, 1.2, 0], [0.4, 1.2, 0]])
    angle, roll = math.radians(degrees), math.radians(roll)
    x = points[:, 0] * math.cos(angle) + points[:, 2] * math.sin(angle)
    flat = np.stack([x, points[:, 1]], axis=1)
    rolled = np.array([[math.cos(roll), -math.sin(roll)], [math.sin(roll), math.cos(roll)]])
    return np.asarray(scale * flat @ rolled.T + 100)


@pytest.mark.parametrize("degrees", [0, 10, -25, 35, 60, -80])
def test_the_yaw_of_points_turned_in_space_is_found(degrees: float) -> None:
    for roll in (0.0, 20.0, -50.0):
        assert yaw(turned(degrees, roll=roll)) == pytest.approx(abs(degrees), abs=1e-6)
    flat = turned(0)
    flat[1] = flat[0]
    assert yaw(flat) == 90


def test_the_distance_of_the_eyes_is_that_of_the_aligned_face() -> None:
    angle, scale = 0.3, 2.5
    turn = scale * np.array(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )
    points = TEMPLATE @ turn.T + [40, -7]
    assert eye_distance(points) == pytest.approx(float(np.hypot(*(points[1] - points[0]))))
    # A head that is turned keeps its size, though its eyes come closer.
    one, other = turned(0), turned(50)
    assert np.hypot(*(other[1] - other[0])) < 0.7 * np.hypot(*(one[1] - one[0]))
    assert eye_distance(other) > 0.8 * eye_distance(one)


def test_quality_is_kept_as_facts_and_read_again() -> None:
    face = Face((0, 0, 50, 50), turned(20), 0.9)
    quality = Quality.of(FoundFace("a.jpg", texture(), None, face, others=2, rival=0.5))
    assert (quality.faces, quality.rival) == (3, 0.5)
    assert quality.yaw == pytest.approx(20, abs=0.1)
    assert Quality.from_facts({**quality.to_mapping(), "digest": "x"}) == quality
    assert Quality.from_facts({"note": 1}) is None
    unseen = Quality.of(FoundFace("a.jpg", texture()))
    assert (unseen.yaw, unseen.eye_distance, unseen.faces) == (None, None, None)
    assert Gate().look(unseen) == []


@pytest.mark.parametrize(
    ("code", "bad", "good"),
    [
        ("several_faces", {"rival": 0.25, "faces": 2}, {"rival": 0.24, "faces": 2}),
        ("too_small", {"eye_distance": 15.9}, {"eye_distance": 16.0}),
        ("blurred", {"sharpness": 39.9}, {"sharpness": 40.0}),
        ("turned_away", {"yaw": 35.1}, {"yaw": 35.0}),
    ],
)
def test_each_check_has_a_reason_a_limit_and_a_switch(
    code: str, bad: dict[str, Any], good: dict[str, Any]
) -> None:
    (reason,) = Gate().look(replace(GOOD, **bad))
    assert reason.code == code
    assert reason.limit == getattr(Gate(), code)
    assert reason.value in bad.values()
    assert "limit" in reason.words
    shown = re.findall(
        r"[\d.]+", reason.words
    )  # what was measured is not shown as the limit itself
    assert len(set(shown)) == len(shown) or code == "several_faces"
    assert Gate().look(replace(GOOD, **good)) == []
    assert Gate.of(allow=[code.replace("_", "-")]).look(replace(GOOD, **bad)) == []


def test_a_gate_in_words() -> None:
    gate = Gate.of(limits=["blurred=60", "turned-away = 20"], allow=["too_small"])
    assert gate == Gate(blurred=60.0, turned_away=20.0, too_small=None)
    everything = Gate.of(allow=["all"])
    assert all(getattr(everything, each.name) is None for each in fields(everything))
    for wrong, why in (
        ("blurred=0", "above 0"),
        ("unlike_others=1", "below 1"),
        ("turned_away=91", "at most 90"),
        ("blurred=nan", "above 0"),
        ("blured=3", "did you mean 'blurred'"),
        ("blurred", "is not a limit"),
    ):
        with pytest.raises(ValueError, match=why):
            Gate.of(limits=[wrong])


def naive_outliers(rows: Embeddings, settled: Embeddings, limit: float) -> dict[int, float]:
    left = list(range(len(rows)))
    out: dict[int, float] = {}
    while True:
        worst, least = None, limit
        for one in left:
            others = [*settled, *(rows[other] for other in left if other != one)]
            if not others:
                continue
            mean = sum(float(other @ rows[one]) for other in others) / len(others)
            if mean < least:
                worst, least = one, mean
        if worst is None:
            return out
        out[worst] = least
        left.remove(worst)


def unit(rows: NDArray[np.float64]) -> Embeddings:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


@pytest.mark.parametrize("settled", [0, 1, 4])
def test_outliers_are_those_of_the_naive_loop(settled: int) -> None:
    for seed in range(5):
        generator = np.random.default_rng(seed)
        centre = 2 * np.eye(1, 16)
        rows = unit(generator.normal(size=(7, 16)) + centre)
        kept = unit(generator.normal(size=(settled, 16)) + centre) if settled else rows[:0]
        expected = naive_outliers(rows, kept, 0.45)
        found = outliers(rows, kept, 0.45)
        assert found == pytest.approx(expected, abs=1e-5)
    # Two that do not fit: the first stays.
    assert list(outliers(np.eye(2, 16, dtype=np.float32), kept[:0], 0.4)) == [1]


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(SCORED, replicates=0)


def test_the_limit_of_unlike_photos_is_a_quantile_of_genuine_pairs(
    calibration: Calibration,
) -> None:
    genuine = SCORED.scores[SCORED.same]
    for share in (0.02, 0.05, 0.3):
        limit = low_genuine(calibration, share)
        assert np.mean(genuine < limit) == pytest.approx(share, abs=0.02)


def around(centre: NDArray[np.float64], count: int, seed: int, spread: float = 0.1) -> Embeddings:
    noise = np.random.default_rng(seed).normal(size=(count, centre.size))
    return unit(centre + spread * noise)


def test_new_photos_are_compared_with_the_person_and_with_everybody_else(
    tmp_path: Path, calibration: Calibration
) -> None:
    ada, ben, cem = np.eye(3, 32)
    gallery = open_gallery(str(tmp_path), model="m", dim=32, create=True)
    gallery.add("Ada", [NewPhoto(row) for row in around(ada, 3, 0)])
    gallery.add("Ben", [NewPhoto(row) for row in around(ben, 3, 1)])
    new = np.concatenate([around(ada, 1, 2), around(cem, 1, 3), around(ben, 1, 4)])

    def codes(gate: Gate, person: str, rows: Embeddings) -> list[list[str]]:
        judged = gate.compare(person, rows, gallery, calibration)
        return [[reason.code for reason in reasons] for reasons in judged]

    everything = ["unlike_others", "same_as_another"]
    assert codes(Gate(), "Ada", new) == [[], ["unlike_others"], everything]
    assert codes(Gate(unlike_others=None), "Ada", new)[1] == []
    assert codes(Gate(same_as_another=None), "Ada", new)[2] == ["unlike_others"]
    # Somebody new has nobody to be unlike to, but may be there under another name.
    assert codes(Gate(), "Eve", new[2:]) == [["same_as_another"]]
    assert codes(Gate(), "Eve", new[1:2]) == [[]]
    # Ada's own photo resembles nobody more than Ada, whatever stands beside it.
    assert codes(Gate(), "Ada", new[:1]) == [[]]
    (reason,) = Gate().compare("Eve", new[2:], gallery, calibration)[0]
    assert "shows the face of Ben" in reason.words
    assert Gate().compare("Ada", new, gallery, None) == [[], [], []]
    assert "not calibrated" in Gate().unchecked(None)[0]
    assert Gate().unchecked(calibration) == []
    gallery.close()
