"""A face: what a detector says of it, which of several to take, and its aligned crop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import hypot
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

MOST_PIXELS = 4_000_000
"""Detectors look at a picture shrunk to at most so many pixels: more takes gigabytes."""


@dataclass(frozen=True, eq=False)
class Face:
    """One face in a photo, in pixels of that photo; parts of it may lie outside."""

    box: tuple[float, float, float, float]
    """left, top, right, bottom."""
    landmarks: NDArray[np.float64]
    """(5, 2): x and y of the eye on the left of the picture, the eye on its right, the tip of the
    nose, the left and the right corner of the mouth."""
    score: float
    """How sure the detector is, from 0 to 1."""

    @classmethod
    def of(cls, box: NDArray[np.float64], landmarks: NDArray[np.float64], score: float) -> Face:
        """A face from a detector's arrays."""
        left, top, right, bottom = box.tolist()
        return cls((left, top, right, bottom), landmarks, float(score))

    @property
    def area(self) -> float:
        left, top, right, bottom = self.box
        return (right - left) * (bottom - top)

    @property
    def centre(self) -> tuple[float, float]:
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2

    def shifted(self, x: float, y: float) -> Face:
        """The same face in a picture whose origin lies (-x, -y) away."""
        left, top, right, bottom = self.box
        box = (left + x, top + y, right + x, bottom + y)
        return Face(box, self.landmarks + np.array([x, y]), self.score)

    def scaled(self, x: float, y: float) -> Face:
        """The same face in a picture that is `x` times as wide and `y` times as high."""
        left, top, right, bottom = self.box
        box = (left * x, top * y, right * x, bottom * y)
        return Face(box, self.landmarks * np.array([x, y]), self.score)

    def mirrored(self, width: float) -> Face:
        """The same face in the mirror image of a picture of this width."""
        left, top, right, bottom = self.box
        # What was the left eye or corner of the mouth is now the right one.
        landmarks = self.landmarks[[1, 0, 2, 4, 3]] * [-1, 1] + [width, 0]
        return Face((width - right, top, width - left, bottom), landmarks, self.score)


class Detector(Protocol):
    """Finds the faces in a picture."""

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        """The faces in a uint8 RGB picture of shape (height, width, 3), the surest first."""
        ...


def prominent(faces: Sequence[Face], width: int, height: int) -> Face:
    """The face that a photo is of: large, whole and near the middle.

    That with the largest area inside the photo less twice the squared distance between its centre
    and that of the photo. The largest box alone is often that of a neighbour whom the border cuts.
    """

    def prominence(face: Face) -> float:
        left, top, right, bottom = face.box
        inside_x = min(right, width) - max(left, 0)
        inside_y = min(bottom, height) - max(top, 0)
        x, y = face.centre
        away = (x - width / 2) ** 2 + (y - height / 2) ** 2
        return max(inside_x, 0) * max(inside_y, 0) - 2 * away

    return max(faces, key=prominence)


def largest(faces: Sequence[Face], width: int, height: int) -> Face:
    """The face with the largest box."""
    return max(faces, key=lambda face: face.area)


def most_central(faces: Sequence[Face], width: int, height: int) -> Face:
    """The face whose centre is nearest to that of the picture."""
    return min(
        faces, key=lambda face: hypot(face.centre[0] - width / 2, face.centre[1] - height / 2)
    )


CHOICES: dict[str, Callable[[Sequence[Face], int, int], Face]] = {
    "prominent": prominent,
    "largest": largest,
    "central": most_central,
}
"""Which of the faces to take, given the width and height of their picture."""


def large_enough(faces: Sequence[Face], min_face: int | None) -> list[Face]:
    """The faces whose longer side has at least `min_face` pixels, if it is given.

    Detectors look for faces from that size on but see some smaller ones as well.
    """
    if min_face is None:
        return list(faces)
    return [
        face
        for face in faces
        if max(face.box[2] - face.box[0], face.box[3] - face.box[1]) >= min_face
    ]


def check_min_face(min_face: int | None) -> None:
    """Refuse a smallest face that no detector can see."""
    if min_face is not None and min_face < 10:
        raise ValueError(f"min_face must be at least 10 pixels, got {min_face}")


# Second looks: a face that a detector misses it may find mirrored, enlarged or reduced.

FIRST_LOOK = "first"

_LEAST_GAIN = 1.2  # an enlargement by less shows a detector nothing new


def find_faces(
    detector: Detector, image: NDArray[np.uint8], *, min_face: int | None = None
) -> tuple[list[Face], str]:
    """The faces of a picture, the surest first, and the look that found them.

    Second looks are taken in the order of `SECOND_LOOKS`, each only if those before it found
    nothing. `min_face` is the detector's own: in an enlarged picture it sees smaller ones as well.
    """
    faces = detector.detect(image)
    if faces:
        return faces, FIRST_LOOK
    for name, look in SECOND_LOOKS.items():
        faces = large_enough(look(detector, image), min_face)
        if faces:
            return faces, name
    return [], FIRST_LOOK


def _mirrored(detector: Detector, image: NDArray[np.uint8]) -> list[Face]:
    found = detector.detect(np.ascontiguousarray(image[:, ::-1]))
    return [face.mirrored(image.shape[1]) for face in found]


def _resized(detector: Detector, image: NDArray[np.uint8], *, by: float) -> list[Face]:
    height, width = image.shape[:2]
    if by > 1:
        by = min(by, (MOST_PIXELS / (height * width)) ** 0.5)
        if by < _LEAST_GAIN:
            return []
    size = (max(1, round(width * by)), max(1, round(height * by)))
    how = cv2.INTER_AREA if by < 1 else cv2.INTER_LINEAR
    resized = np.asarray(cv2.resize(image, size, interpolation=how), np.uint8)
    return [face.scaled(width / size[0], height / size[1]) for face in detector.detect(resized)]


SECOND_LOOKS: dict[str, Callable[[Detector, NDArray[np.uint8]], list[Face]]] = {
    "mirrored": _mirrored,
    "enlarged": partial(_resized, by=2.0),
    "reduced": partial(_resized, by=0.75),
}
"""Each gives faces in pixels of the picture as it is."""


# Alignment: a face turned, scaled and shifted so that its five landmarks lie where models expect.

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
