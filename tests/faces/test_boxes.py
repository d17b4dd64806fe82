"""Boxes: suppression against a loop, and the moves between the networks."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.faces.mtcnn import moved, squared, suppress

Floats = NDArray[np.float64]


def naive_suppress(boxes: Floats, scores: Floats, *, overlap: float, of_smaller: bool) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        area_i = (boxes[i][2] - boxes[i][0]) * (boxes[i][3] - boxes[i][1])
        stays = True
        for j in kept:
            area_j = (boxes[j][2] - boxes[j][0]) * (boxes[j][3] - boxes[j][1])
            width = min(boxes[i][2], boxes[j][2]) - max(boxes[i][0], boxes[j][0])
            height = min(boxes[i][3], boxes[j][3]) - max(boxes[i][1], boxes[j][1])
            shared = width * height if width > 0 and height > 0 else 0
            whole = min(area_i, area_j) if of_smaller else area_i + area_j - shared
            stays = stays and shared / whole <= overlap
        if stays:
            kept.append(i)
    return kept


@pytest.mark.parametrize("of_smaller", [False, True])
@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.7])
def test_suppression_is_that_of_a_loop(overlap: float, of_smaller: bool) -> None:
    generator = np.random.default_rng(3)
    corners = generator.uniform(0, 100, (200, 2))
    boxes = np.hstack([corners, corners + generator.uniform(10, 60, (200, 2))])
    scores = generator.permutation(200) / 200
    expected = naive_suppress(boxes, scores, overlap=overlap, of_smaller=of_smaller)
    kept = suppress(boxes, scores, overlap=overlap, of_smaller=of_smaller)
    assert kept.tolist() == expected
    assert 5 < len(expected) < 195


def test_suppression_of_nothing() -> None:
    assert suppress(np.zeros((0, 4)), np.zeros(0), overlap=0.5).tolist() == []


def test_edges_move_by_shares_of_the_size() -> None:
    boxes = np.array([[10.0, 20.0, 30.0, 60.0]])
    assert moved(boxes, np.array([[0.1, -0.1, 0.5, 0.25]])).tolist() == [[12, 16, 40, 70]]


def test_squares_keep_the_centre_and_the_longer_side() -> None:
    boxes = np.array([[10.0, 20.0, 30.0, 60.0], [0.0, 0.0, 8.0, 4.0]])
    assert squared(boxes).tolist() == [[0, 20, 40, 60], [0, -2, 8, 6]]
