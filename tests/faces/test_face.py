"""A face: which of a photo is taken, second looks for it, and its place in the crop."""

import inspect

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.faces import DETECTORS
from sphereface2.faces.detectors import MTCNN
from sphereface2.faces.face import (
    CHOICES,
    FIRST_LOOK,
    MOST_PIXELS,
    SECOND_LOOKS,
    TEMPLATE,
    Face,
    align_face,
    find_faces,
    similarity_transform,
)
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


Points = NDArray[np.float64]


def naive(source: Points, target: Points) -> Points:
    """Least squares in the four unknowns p, q, x, y of u = p·s - q·t + x, v = q·s + p·t + y."""
    rows, values = [], []
    for (s, t), (u, v) in zip(source, target, strict=True):
        rows += [[s, -t, 1, 0], [t, s, 0, 1]]
        values += [u, v]
    p, q, x, y = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
    return np.array([[p, -q, x], [q, p, y]])


def placed(angle: float, scale: float, shift: tuple[float, float]) -> Points:
    """The template turned, scaled and shifted: the landmarks of a face somewhere in a photo."""
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    landmarks: Points = (TEMPLATE - 56) @ turn.T + np.array(shift)
    return landmarks


def apply(matrix: Points, points: Points) -> Points:
    moved: Points = points @ matrix[:, :2].T + matrix[:, 2]
    return moved


@pytest.mark.parametrize("seed", range(5))
def test_the_transform_is_the_least_squares_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    source, target = generator.normal(50, 30, (2, 5, 2))
    assert np.allclose(similarity_transform(source, target), naive(source, target), atol=1e-9)


@pytest.mark.parametrize(("angle", "scale"), [(0.0, 1.0), (0.4, 3.0), (-2.8, 0.3), (np.pi, 11.0)])
def test_clean_points_are_met_exactly_as_by_opencv(angle: float, scale: float) -> None:
    landmarks = placed(angle, scale, (300, 200))
    matrix = similarity_transform(landmarks, TEMPLATE)
    assert np.allclose(apply(matrix, landmarks), TEMPLATE, atol=1e-9)
    theirs, _ = cv2.estimateAffinePartial2D(landmarks, TEMPLATE)
    assert np.allclose(matrix, theirs, atol=1e-3)


def test_a_mirrored_face_is_not_mirrored_back() -> None:
    mirrored = TEMPLATE * [-1, 1]
    assert np.allclose(similarity_transform(mirrored, TEMPLATE), naive(mirrored, TEMPLATE))


def test_landmarks_on_one_point_are_refused() -> None:
    with pytest.raises(ValueError, match="all one point"):
        similarity_transform(np.full((5, 2), 7.0), TEMPLATE)


def test_a_face_in_place_stays_as_it_is() -> None:
    image = np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8)
    assert np.array_equal(align_face(image, TEMPLATE), image)


def centres(crop: NDArray[np.uint8]) -> Points:
    """The middles of the five spots: the mean place of the light around where each should be."""
    size = crop.shape[0]
    found = []
    for x, y in TEMPLATE * (size / 112):
        reach = size // 14
        left, top = round(x) - reach, round(y) - reach
        light = crop[top : round(y) + reach + 1, left : round(x) + reach + 1].sum(axis=2) / 1.0
        rows, columns = np.mgrid[: light.shape[0], : light.shape[1]]
        found.append(
            [left + (columns * light).sum() / light.sum(), top + (rows * light).sum() / light.sum()]
        )
    return np.array(found)


@pytest.mark.parametrize(
    ("scale", "size"), [(0.7, 112), (1.0, 160), (1.9, 112), (2.5, 112), (4.2, 160), (9.3, 112)]
)
def test_spots_at_the_landmarks_come_to_lie_on_the_template(scale: float, size: int) -> None:
    # Also where the face is large, and the photo is averaged down before it is warped.
    side = round(140 * scale)
    landmarks = placed(0.3, scale, (0.5 * side + 0.4, 0.5 * side - 0.3))
    image = np.zeros((side, side + 20, 3), np.uint8)
    rows, columns = np.mgrid[:side, : side + 20]
    for x, y in landmarks:
        spot = 255 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * (2 * scale) ** 2))
        image = np.maximum(image, spot[..., None].round().astype(np.uint8))
    crop = align_face(image, landmarks, size=size)
    assert crop.shape == (size, size, 3)
    assert np.allclose(centres(crop), TEMPLATE * size / 112, atol=0.1)


def test_a_large_face_is_averaged_not_sampled() -> None:
    # Stripes of one pixel: taking single pixels of them would give black and white.
    image = np.zeros((900, 900, 3), np.uint8)
    image[:, ::2] = 255
    crop = align_face(image, placed(0.1, 8.2, (450, 450)))
    assert crop[20:90, 20:90].std() < 5
    assert abs(crop[20:90, 20:90].mean() - 127.5) < 3


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_beyond_the_photo_it_is_black(scale: float) -> None:
    image = np.full((300, 300, 3), 200, np.uint8)
    crop = align_face(image, placed(0.0, scale, (0, 150)))
    assert crop[:, :50].max() == 0
    assert crop[50:60, 62:].min() == 200


def test_landmarks_far_outside_the_photo_give_a_black_crop() -> None:
    image = np.full((50, 60, 3), 200, np.uint8)
    for scale in (1.0, 6.0):
        assert align_face(image, placed(0.0, scale, (5000, -4000))).max() == 0


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
