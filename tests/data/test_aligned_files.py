"""Faces aligned as they are read: onto the template, and what is wrong with a list is told."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.sources.image_list import AlignedFiles, require_images
from sphereface2.faces.face import TEMPLATE


def write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image[:, :, ::-1])


def test_a_turned_face_comes_back_upright(tmp_path: Path) -> None:
    upright = np.zeros((112, 112, 3), np.uint8)
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255)]
    for (x, y), colour in zip(TEMPLATE.round().astype(int), colours, strict=True):
        cv2.circle(upright, (int(x), int(y)), 5, colour, -1)
    angle = np.deg2rad(30)
    turn = 1.5 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = np.column_stack([turn, [80.0, 10.0]])
    write(tmp_path / "a.png", cv2.warpAffine(upright, matrix, (300, 300)))
    points = TEMPLATE @ matrix[:, :2].T + matrix[:, 2]
    faces = AlignedFiles(tmp_path, ["a.png"], points[None])
    faces.prepare(workers=1, progress=None)
    assert faces[0].shape == (112, 112, 3)
    for (x, y), colour in zip(TEMPLATE.round().astype(int), colours, strict=True):
        np.testing.assert_allclose(faces[0][y, x], colour, atol=30)
    assert AlignedFiles(tmp_path, ["a.png"], points[None], size=56)[0].shape == (56, 56, 3)


def test_missing_images_are_counted_and_the_first_named(tmp_path: Path) -> None:
    write(tmp_path / "1.png", np.zeros((8, 8, 3), np.uint8))
    told: list[tuple[int, int]] = []
    names = [f"{number}.png" for number in range(1, 6)]
    with pytest.raises(FileNotFoundError, match=r"4 of the 5 images .* such as 2\.png, 3\.png, 4"):
        require_images(tmp_path, names, progress=lambda *state: told.append(state), every=2)
    assert told == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize("fault", [np.nan, 7.0])
def test_landmarks_without_a_direction_are_refused(tmp_path: Path, fault: float) -> None:
    points = np.tile(TEMPLATE, (3, 1, 1))
    points[1] = fault
    with pytest.raises(ValueError, match=r"1 of the 3 faces .* such as those of b"):
        AlignedFiles(tmp_path, ["a", "b", "c"], points)
    with pytest.raises(ValueError, match=r"need landmarks of the shape \(2, 5, 2\)"):
        AlignedFiles(tmp_path, ["a", "b"], points)
