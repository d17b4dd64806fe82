"""Which face of a photo is taken, and the table of detectors."""

import inspect

import numpy as np
import pytest

from sphereface2.faces import CHOICES, DETECTORS, Face
from sphereface2.tables import build, look_up


def face(left: float, top: float, side: float) -> Face:
    return Face((left, top, left + side, top + side), np.full((5, 2), left), 0.9)


def test_the_largest_and_the_most_central_face() -> None:
    small_in_the_middle, large_at_the_edge = face(180, 130, 40), face(0, 0, 90)
    faces = [large_at_the_edge, small_in_the_middle]
    assert look_up("choice", CHOICES, "largest")(faces, 400, 300) is large_at_the_edge
    assert look_up("choice", CHOICES, "central")(faces, 400, 300) is small_in_the_middle
    # The centre is that of the picture, not of the coordinates.
    assert look_up("choice", CHOICES, "central")(faces, 100, 100) is large_at_the_edge


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
