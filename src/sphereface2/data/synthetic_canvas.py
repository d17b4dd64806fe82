"""Drawing on the texture of a head: where a point of the skin lies, and soft shapes there."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sphereface2.data.synthetic_person import Colour
from sphereface2.data.synthetic_surface import BOTTOM, FACE_RADIUS, TOP

Picture = NDArray[np.uint8]
Points = NDArray[np.float64]
Grey = float

TEXELS = 256
"""Side of the texture; it covers the same (azimuth, y) square as the surface map."""
_TURN = np.linspace(0, 2 * np.pi, 21)[:-1]
RING = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=-1)
"""Corners of a circle of radius 1."""


def to_texels(x: ArrayLike, y: ArrayLike) -> Points:
    """Points on the skin (arc distance from the middle, height) as texels, shape (n, 2)."""
    row = np.asarray(y, dtype=np.float64) * (TEXELS / (BOTTOM - TOP)) + (
        -TOP * TEXELS / (BOTTOM - TOP) - 0.5
    )
    points = np.empty((*row.shape, 2))
    points[..., 0] = np.sin(np.asarray(x) * (0.5 / FACE_RADIUS)) * (TEXELS / 2) + (TEXELS / 2 - 0.5)
    points[..., 1] = row
    return points


def fill(picture: Picture, points: Points, colour: Colour | Grey) -> None:
    cv2.fillPoly(picture, [(points * 16).astype(np.int32)], colour, cv2.LINE_AA, 4)


def line(picture: Picture, points: Points, colour: Colour | Grey, thickness: int = 1) -> None:
    fixed = [(points * 16).astype(np.int32)]
    cv2.polylines(picture, fixed, False, colour, thickness, cv2.LINE_AA, 4)


def ellipse(
    picture: Picture, centre: Points, axes: tuple[float, float], colour: Colour | Grey
) -> None:
    x, y = centre.tolist()
    middle, radii = (int(16 * x), int(16 * y)), (int(16 * axes[0]), int(16 * axes[1]))
    cv2.ellipse(picture, middle, radii, 0, 0, 360, colour, -1, cv2.LINE_AA, 4)


def soften(region: Picture, sigma: float) -> None:
    cv2.GaussianBlur(region, (0, 0), sigma, dst=region)


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """`share` of `other`, the rest of `one`."""
    red, green, blue = (a + (b - a) * share for a, b in zip(one, other, strict=True))
    return red, green, blue


def scaled(colour: Colour, red: float, green: float, blue: float) -> Colour:
    return colour[0] * red, colour[1] * green, colour[2] * blue


def blend(region: Picture, colour: Colour, share: NDArray[np.float32]) -> None:
    """Move `region` towards `colour` by `share` (0 to 1), in place."""
    base = region.astype(np.float32)
    base += (np.array(colour, dtype=np.float32) - base) * share[:, :, None]
    region[:] = base.astype(np.uint8)


def window(x: tuple[float, float], y: tuple[float, float]) -> tuple[slice, slice, Points]:
    """Rows, columns and first texel of a part of the texture."""
    (left, top), (right, bottom) = to_texels(x, y).astype(int)
    return slice(top, bottom + 1), slice(left, right + 1), np.array([left, top], dtype=float)
