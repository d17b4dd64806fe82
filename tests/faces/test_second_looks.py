"""Second looks: taken in order, only where they are needed, and mapped back to the picture."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.faces import MTCNN, Face, find_faces
from sphereface2.faces.face import FIRST_LOOK, MOST_PIXELS, SECOND_LOOKS

Images = NDArray[np.uint8]


class Only:
    """Finds the bright patch of a picture, but only in one kind of it; notes what it was shown."""

    def __init__(self, look: str, *, width: int = 200) -> None:
        self.look, self.width = look, width
        self.shown: list[str] = []

    def detect(self, image: Images) -> list[Face]:
        seen = self._kind(image)
        self.shown.append(seen)
        if seen != self.look:
            return []
        rows, columns = np.nonzero(image[..., 0] > 150)
        left, top, right, bottom = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        middle = (top + bottom) / 2
        landmarks = [[left, top], [right, top], [left, middle], [left, bottom], [right, bottom]]
        return [Face((left, top, right, bottom), np.array(landmarks, np.float64), 0.9)]

    def _kind(self, image: Images) -> str:
        if image.shape[1] != self.width:
            return "enlarged" if image.shape[1] > self.width else "reduced"
        return FIRST_LOOK if image[0, 0, 1] else "mirrored"


def picture() -> Images:
    image = np.zeros((120, 200, 3), np.uint8)
    image[0, 0, 1] = 255  # tells the picture from its mirror image
    image[40:80, 20:60, 0] = 255
    return image


@pytest.mark.parametrize("look", [FIRST_LOOK, *SECOND_LOOKS])
def test_each_look_gives_the_face_where_it_is_in_the_picture(look: str) -> None:
    detector = Only(look)
    (face,), found_by = find_faces(detector, picture())
    assert found_by == look
    order = [FIRST_LOOK, *SECOND_LOOKS]
    assert detector.shown == order[: order.index(look) + 1]
    assert face.box == pytest.approx((20, 40, 60, 80), abs=1)
    # From the left of the picture to its right, also after the mirror; and which is which.
    assert face.landmarks[:2, 0] == pytest.approx([20, 60], abs=1)
    assert face.landmarks[3:, 0] == pytest.approx([20, 60], abs=1)
    assert face.landmarks[2] == pytest.approx([60 if look == "mirrored" else 20, 60], abs=1)


def test_the_order_is_mirrored_enlarged_reduced_and_then_there_is_none() -> None:
    detector = Only("nowhere")
    assert find_faces(detector, picture()) == ([], FIRST_LOOK)
    assert detector.shown == [FIRST_LOOK, "mirrored", "enlarged", "reduced"]


def test_an_enlarged_picture_shows_no_faces_below_the_smallest() -> None:
    assert find_faces(Only("enlarged"), picture(), min_face=39)[1] == "enlarged"
    assert find_faces(Only("enlarged"), picture(), min_face=50) == ([], FIRST_LOOK)


def test_a_large_picture_is_not_enlarged() -> None:
    side = int(MOST_PIXELS**0.5)
    detector = Only("nowhere", width=side)
    find_faces(detector, np.zeros((side, side, 3), np.uint8))
    assert "enlarged" not in detector.shown
    assert detector.shown[-1] == "reduced"


def test_small_faces_that_the_first_look_misses_are_found_enlarged(rendered: list[Images]) -> None:
    detector = MTCNN()
    found = []
    for image in rendered:
        canvas = np.full((90, 90, 3), 120, np.uint8)
        canvas[39:51, 39:51] = cv2.resize(image, (12, 12), interpolation=cv2.INTER_AREA)
        faces, look = find_faces(detector, canvas)
        found.append(look if faces else "none")
        for face in faces:
            assert np.abs(np.array(face.centre) - 45).max() < 4
    assert found.count("enlarged") >= 3
