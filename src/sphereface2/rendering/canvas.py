"""Drawing on the texture of a head: where a point of the skin lies, and soft shapes there."""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.rendering.person import Colour
from sphereface2.rendering.surface import BOTTOM, FACE_RADIUS, TOP

Picture = NDArray[np.uint8]
Curve = NDArray[np.float64]
FIXED = 16
Points = NDArray[np.int32]
"""Corners in sixteenths of a texel: OpenCV draws from whole numbers."""
Texel = tuple[float, float]
Grey = float

TEXELS = 256
"""Side of the texture; it covers the same (azimuth, y) square as the surface map."""
_TURN = np.linspace(0, 2 * np.pi, 21)[:-1]
RING = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=-1)
"""Corners of a circle of radius 1."""


_ROWS = TEXELS / (BOTTOM - TOP)
_FIRST_ROW = -TOP * _ROWS - 0.5
_TURN_OF_ARC = 0.5 / FACE_RADIUS
_MIDDLE = TEXELS / 2 - 0.5


def to_texel(x: float, y: float) -> Texel:
    """A point on the skin (arc distance from the middle, height) as a texel."""
    return math.sin(x * _TURN_OF_ARC) * (TEXELS / 2) + _MIDDLE, y * _ROWS + _FIRST_ROW


def to_texels(x: Curve, y: Curve) -> Points:
    """Points on the skin, as `to_texel`, shape (..., n, 2)."""
    column = np.sin(x * _TURN_OF_ARC)
    column *= FIXED * TEXELS / 2
    column += FIXED * _MIDDLE
    row = y * (FIXED * _ROWS)
    row += FIXED * _FIRST_ROW
    points = np.empty((*row.shape, 2), np.int32)
    points[..., 0] = column
    points[..., 1] = row
    return points


def fill(picture: Picture, points: Points, colour: Colour | Grey) -> None:
    cv2.fillPoly(picture, [points], colour, cv2.LINE_AA, 4)


def line(picture: Picture, points: Points, colour: Colour | Grey, thickness: int = 1) -> None:
    cv2.polylines(picture, [points], False, colour, thickness, cv2.LINE_AA, 4)


def band(upper: Points, lower: Points) -> Points:
    """The outline of what lies between two curves."""
    return np.concatenate([upper, lower[::-1]])


def ellipse(
    picture: Picture, centre: Texel, axes: tuple[float, float], colour: Colour | Grey
) -> None:
    middle = int(FIXED * centre[0]), int(FIXED * centre[1])
    radii = int(FIXED * axes[0]), int(FIXED * axes[1])
    cv2.ellipse(picture, middle, radii, 0, 0, 360, colour, -1, cv2.LINE_AA, 4)


def soften(region: Picture, sigma: float) -> None:
    # Two deviations either way: OpenCV's three take twice the time, for a grey level at most.
    side = 2 * round(2 * sigma) + 1
    cv2.GaussianBlur(region, (side, side), sigma, dst=region)


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """`share` of `other`, the rest of `one`."""
    red, green, blue = (a + (b - a) * share for a, b in zip(one, other, strict=True))
    return red, green, blue


def scaled(colour: Colour, red: float, green: float, blue: float) -> Colour:
    return colour[0] * red, colour[1] * green, colour[2] * blue


def blend(region: Picture, colour: Colour, share: NDArray[np.float32]) -> None:
    """Move `region` towards `colour` by `share` (0 to 1), in place."""
    paint = np.empty(region.shape, np.uint8)
    # Numpy would take longer to repeat three bytes than OpenCV takes for all of this.
    cv2.rectangle(paint, (0, 0), region.shape[1::-1], colour, -1)
    cv2.blendLinear(region, paint, 1 - share, share, dst=region)


def window(x: tuple[float, float], y: tuple[float, float]) -> tuple[slice, slice, Points]:
    """Rows, columns and first corner of a part of the texture."""
    left, top = (int(value) for value in to_texel(x[0], y[0]))
    right, bottom = (int(value) for value in to_texel(x[1], y[1]))
    corner = np.array([left * FIXED, top * FIXED], np.int32)
    return slice(top, bottom + 1), slice(left, right + 1), corner
