"""Alignment: turn, scale and shift a face so that its five landmarks lie where a model expects."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

TEMPLATE_SIZE = 112

TEMPLATE: NDArray[np.float64] = np.array(
    [
        [38.2946, 51.6963],  # the eye on the left of the picture
        [73.5318, 51.5014],  # the eye on its right
        [56.0252, 71.7366],  # tip of the nose
        [41.5493, 92.3655],  # left corner of the mouth
        [70.7299, 92.2041],  # right corner of the mouth
    ]
)
"""Where the landmarks lie in a crop of 112×112, as in the data sets that everybody trains on."""


def similarity_transform(
    source: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The (2, 3) matrix of rotation, one scale and shift that takes `source` nearest to `target`.

    Nearest in the sum of squared distances (Umeyama 1991). In the plane there is a closed form:
    with points as complex numbers around their mean, z -> a·z has its least squares at
    a = Σ conj(z)·w / Σ |z|². It cannot mirror.
    """
    z, w = (points[:, 0] + 1j * points[:, 1] for points in (source, target))
    spread = z - z.mean()
    power = float(np.vdot(spread, spread).real)
    if not np.isfinite(power) or power == 0:
        raise ValueError("the landmarks of a face are all one point")
    a = np.vdot(spread, w - w.mean()) / power
    b = w.mean() - a * z.mean()
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


def align_face(
    image: NDArray[np.uint8], landmarks: NDArray[np.float64], *, size: int = TEMPLATE_SIZE
) -> NDArray[np.uint8]:
    """The face as (size, size, 3), its landmarks on the template; black beyond the picture."""
    matrix = similarity_transform(landmarks, TEMPLATE * (size / TEMPLATE_SIZE))
    # Warping takes each pixel from its four nearest. Where the face shrinks by more than two that
    # skips pixels and the crop sparkles, so the picture is averaged down first.
    shrink = int(1 / np.hypot(matrix[0, 0], matrix[1, 0]))
    if shrink >= 2:
        image, matrix = _shrunk(image, matrix, shrink, size)
    crop = cv2.warpAffine(image, matrix, (size, size), flags=cv2.INTER_LINEAR)
    return np.asarray(crop, np.uint8)


def _shrunk(
    image: NDArray[np.uint8], matrix: NDArray[np.float64], by: int, size: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The part of the picture that the crop shows, `by` times smaller, and the matrix for it."""
    height, width = image.shape[:2]
    corners = np.array([[0, size, 0, size], [0, 0, size, size]], np.float64)
    shown = np.linalg.solve(matrix[:, :2], corners - matrix[:, 2:])
    left, top = np.clip(np.floor(shown.min(axis=1)) - by, 0, [width, height]).astype(int).tolist()
    right, bottom = np.ceil(shown.max(axis=1) + by).astype(int).tolist()
    part = image[top : max(bottom, top), left : max(right, left)]
    # Whole groups of `by` pixels only: the last columns of the photo may not fill one.
    rows, columns = part.shape[0] // by, part.shape[1] // by
    if rows == 0 or columns == 0:
        return image, matrix
    small = cv2.resize(
        part[: rows * by, : columns * by], (columns, rows), interpolation=cv2.INTER_AREA
    )
    # Pixel i of the small picture covers pixels by·i to by·i + by - 1, so its centre lies at
    # by·i + (by - 1)/2 of the part.
    offset = np.array([left, top]) + (by - 1) / 2
    moved = np.column_stack([matrix[:, :2] * by, matrix[:, :2] @ offset + matrix[:, 2]])
    return np.asarray(small, np.uint8), moved
