"""Which face of a photo is taken, and the table of detectors."""

import inspect

import numpy as np
import pytest

from sphereface2.faces import CHOICES, DETECTORS, Face
from sphereface2.registry import build, look_up


def face(left: float, top: float, side: float) -> Face:
    return Face((left, top, left + side, top + side), np.full((5, 2), left), 0.9)


def test_the_largest_and_the_most_central_face() -> None:
    small_in_the_middle, large_at_the_edge = face(180, 130, 40), face(0, 0, 90)
    faces = [large_at_the_edge, small_in_the_middle]
    assert look_up("choice", CHOICES, "largest")(faces, 400, 300) is large_at_the_edge
    assert look_up("choice", CHOICES, "central")(faces, 400, 300) is small_in_the_middle
    # The centre is that of the picture, not of the coordinates.
    assert look_up("choice", CHOICES, "central")(faces, 100, 100) is large_at_the_edge


def test_the_prominent_face_is_large_whole_and_near_the_middle() -> None:
    choose = look_up("choice", CHOICES, "prominent")
    middle, cut = face(180, 130, 60), face(-60, 100, 110)
    assert choose([cut, middle], 400, 300) is middle
    assert look_up("choice", CHOICES, "largest")([cut, middle], 400, 300) is cut
    # A large face beside the middle counts more than a small one behind it.
    large, small = face(80, 60, 180), face(190, 140, 30)
    assert choose([small, large], 400, 300) is large
    assert look_up("choice", CHOICES, "central")([small, large], 400, 300) is small
    # Of two alike the whole one, even where the other's centre is a little nearer.
    whole, half = face(0, 100, 120), face(275, 100, 160)
    assert choose([half, whole], 400, 300) is whole
    alone = face(380, 280, 15)
    assert choose([alone], 400, 300) is alone


def test_a_face_is_scaled_and_mirrored_with_its_landmarks() -> None:
    landmarks = np.array([[12.0, 20], [18, 20], [15, 24], [13, 28], [17, 28]])
    original = Face((10, 15, 20, 30), landmarks, 0.9)
    twice = original.scaled(2, 3)
    assert twice.box == (20, 45, 40, 90)
    assert twice.landmarks[0].tolist() == [24, 60]
    mirrored = original.mirrored(100)
    assert mirrored.box == (80, 15, 90, 30)
    # The eye on the left of the picture still comes first.
    assert mirrored.landmarks.tolist() == [[82, 20], [88, 20], [85, 24], [83, 28], [87, 28]]
    assert mirrored.mirrored(100).box == original.box


def test_a_face_shifts_with_its_landmarks() -> None:
    moved = face(10, 20, 5).shifted(-3, 4)
    assert moved.box == (7, 24, 12, 29)
    assert moved.landmarks[0].tolist() == [7, 14]


def test_an_unknown_choice_or_detector_is_named() -> None:
    with pytest.raises(ValueError, match="unknown choice 'larges'; did you mean 'largest'"):
        look_up("choice", CHOICES, "larges")
    with pytest.raises(ValueError, match="unknown detector 'mtcn'; did you mean 'mtcnn'"):
        build("detector", DETECTORS, "mtcn")


@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_takes_the_smallest_face(name: str) -> None:
    assert "min_face" in inspect.signature(DETECTORS[name]).parameters
    with pytest.raises(ValueError, match="min_face must be at least 10 pixels, got 3"):
        build("detector", DETECTORS, name, min_face=3)
