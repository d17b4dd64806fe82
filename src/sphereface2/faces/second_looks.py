"""Second looks: a face that a detector misses it may find mirrored, enlarged or reduced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.faces.detector import MOST_PIXELS, Detector, Face, large_enough

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
