"""Five points to the template: the transform, and where the pixels go."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.faces.face import TEMPLATE, align_face, similarity_transform

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
    matrix = similarity_transform(TEMPLATE * [-1, 1], TEMPLATE)
    assert np.linalg.det(matrix[:, :2]) > 0


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
