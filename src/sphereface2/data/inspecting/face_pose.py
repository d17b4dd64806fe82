"""Where the average face has its eyes, nose and mouth, against where aligned faces have them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.inspecting.face_average import DETAIL_SIDE, SIDE, FaceAverage, eye_sized

# Eyes, nose tip and corners of the mouth of an aligned face of 112 × 112 pixels.
POINTS = (
    (38.2946, 51.6963),
    (73.5318, 51.5014),
    (56.0252, 71.7366),
    (41.5493, 92.3655),
    (70.7299, 92.2041),
)

MIN_AGREEMENT = 0.13
"""Aligned faces reach 0.3 and more, profiles alone 0.16, photos that are not aligned 0.1."""
MIN_MATCH = 0.6
"""Aligned faces reach 0.9, noise and faces lying on their side 0.58; below, there is no face to
be placed."""
MAX_DISPLACEMENT = 5.0
"""Pixels of 112, on average over the five points; aligned faces of two sources have 1 and 2.3."""
_ENOUGH = 20  # pictures without which nothing is said

# The dark parts of a face and the bright ridge of the nose, in pixels of 56: which point they lie
# at, offset to the right and down from it, half widths, strength. Fitted once to averages of
# aligned photos.
_EYES, _NOSE, _MOUTH = (0, 1), (2,), (3, 4)
_PARTS = (
    (_EYES, 0.0, 0.0, 5.1, 2.5, -1.0),
    (_EYES, -2.0, -3.1, 2.5, 0.7, -0.7),  # inner end of the brow: towards the nose
    (_NOSE, 0.0, 2.7, 4.5, 3.0, -0.5),
    (_NOSE, 0.0, -3.0, 1.8, 6.0, 0.14),
    (_MOUTH, 0.0, -0.1, 7.5, 3.0, -0.44),
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 10, 46, 17, 52  # the part of the picture that is compared
_BORDER = 12


@dataclass(frozen=True)
class AlignmentCheck:
    """How the average face lies; lengths are pixels of a 112 × 112 picture.

    agreement: mean correlation of two pictures' eyes, noses and mouths
    match: correlation of the average with the drawn face at its best place
    right, down, scale, turn: that place, against an aligned face; degrees counter-clockwise
    displacement: mean distance of the five points from where they belong
    verdict: aligned, displaced, scattered, no face or not judged
    """

    images: int
    agreement: float
    match: float
    right: float
    down: float
    scale: float
    turn: float
    displacement: float
    verdict: str


def check_alignment(average: FaceAverage) -> AlignmentCheck:
    """Whether the pictures are aligned with each other, and at the place of the template."""
    agreement = average.agreement()
    match, scale, turn, points = _best_pose(average.detail())
    offset = points - _points()
    right, down = (offset.mean(axis=0) * SIDE / DETAIL_SIDE).tolist()
    displacement = float(np.linalg.norm(offset, axis=1).mean()) * SIDE / DETAIL_SIDE
    if average.count < _ENOUGH:
        verdict = "not judged"
    elif agreement < MIN_AGREEMENT:
        verdict = "scattered"
    elif match < MIN_MATCH:
        verdict = "no face"
    elif displacement > MAX_DISPLACEMENT:
        verdict = "displaced"
    else:
        verdict = "aligned"
    return AlignmentCheck(
        images=average.count,
        agreement=agreement,
        match=match,
        right=right,
        down=down,
        scale=scale,
        turn=turn,
        displacement=displacement,
        verdict=verdict,
    )


def drawn_face() -> NDArray[np.float32]:
    """An aligned face as a few dark and bright spots, of eye's size only, 56 × 56."""
    rows, columns = np.mgrid[:DETAIL_SIDE, :DETAIL_SIDE]
    face = np.zeros((DETAIL_SIDE, DETAIL_SIDE), np.float32)
    points = _points()
    for at, right, down, wide, high, strength in _PARTS:
        # The mouth is one part between its two corners; each eye is one of its own.
        places = [points[list(at)].mean(axis=0)] if at is _MOUTH else [points[i] for i in at]
        for place in places:
            outwards = -1 if place[0] < DETAIL_SIDE / 2 and at is _EYES else 1
            x, y = place[0] + outwards * right, place[1] + down
            face += strength * np.exp(
                -(((columns - x) / wide) ** 2 + ((rows - y) / high) ** 2) / 2
            ).astype(np.float32)
    return eye_sized(face)


def _points() -> NDArray[np.float64]:
    # Pixel centres: x of 112 is (x + ½)/2 − ½ of 56.
    return (np.array(POINTS) + 0.5) * DETAIL_SIDE / SIDE - 0.5


def _best_pose(structure: NDArray[np.float32]) -> tuple[float, float, float, NDArray[np.float64]]:
    """Match, scale, turn, and the five points in the picture where the drawn face fits best."""
    face = drawn_face()[_TOP:_BOTTOM, _LEFT:_RIGHT]
    framed = np.pad(structure, _BORDER)
    coarse = _search(framed, face, np.geomspace(0.6, 1.6, 15).tolist(), range(-30, 31, 5))
    _, scale, turn, _ = coarse
    return _search(
        framed,
        face,
        (scale * np.geomspace(0.94, 1.06, 7)).tolist(),
        np.arange(turn - 4, turn + 5).tolist(),
    )


def _search(
    framed: NDArray[np.float32],
    face: NDArray[np.float32],
    scales: Iterable[float],
    turns: Iterable[float],
) -> tuple[float, float, float, NDArray[np.float64]]:
    middle = (DETAIL_SIDE - 1) / 2 + _BORDER
    turns = list(turns)
    best = (-2.0, 1.0, 0.0, _points())
    for scale in scales:
        for turn in turns:
            undo = cv2.getRotationMatrix2D((middle, middle), -turn, 1 / scale)
            upright = cv2.warpAffine(framed, undo, framed.shape[::-1])
            scores = cv2.matchTemplate(upright, face, cv2.TM_CCOEFF_NORMED)
            _, match, _, (left, top) = cv2.minMaxLoc(scores)
            if match > best[0]:
                places = _points() + np.array([left - _LEFT, top - _TOP])
                redo = cv2.invertAffineTransform(undo)
                points = np.column_stack((places, np.ones(len(places)))) @ redo.T - _BORDER
                best = (float(match), float(scale), float(turn), np.asarray(points, np.float64))
    return best
