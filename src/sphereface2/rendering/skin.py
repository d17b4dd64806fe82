"""The texture of a head: shapes drawn on it, and the skin that all pictures of a person share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.rendering.person import Colour, Person
from sphereface2.rendering.surface import (
    BOTTOM,
    CHIN_Y,
    FACE_RADIUS,
    TOP,
    eye_position,
    mouth_height,
    nose_height,
)

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


# -- what all pictures of one person share: skin, lines of age, beard, strands of hair -----------

LINES_WINDOW = window((-44, 44), (-46, 54))
BEARD_WINDOW = window((-62, 62), (0, 66))
_ALONG, _ACROSS = np.linspace(0, 1, 8), np.linspace(-1, 1, 15)


@dataclass(frozen=True, eq=False)
class Skin:
    """What the pictures of one person share: the skin, and what age and smile take from it."""

    base: Picture
    age_lines: Picture
    smile_lines: Picture


@lru_cache(maxsize=1)
def _rosy() -> NDArray[np.float32]:
    """Where cheeks, nose and chin blush, 0 to 1."""
    warm = np.zeros((TEXELS, TEXELS), np.uint8)
    for x, y, width, height in ((21, 8, 17, 15), (-21, 8, 17, 15), (0, 9, 10, 11), (0, 42, 12, 8)):
        ellipse(warm, to_texel(x, y), (width, height), 255)
    return cv2.blur(cv2.blur(warm, (17, 17)), (17, 17)) * np.float32(1 / 255)


@lru_cache(maxsize=1)
def _chin_shadow() -> NDArray[np.float32]:
    """What the chin throws on the neck, by row."""
    rows = (np.arange(TEXELS) - to_texel(0, CHIN_Y + 2)[1]) / 9
    return np.clip(rows, 0, 0.7).astype(np.float32)[:, None]


@lru_cache(maxsize=4)
def skin_of(person: Person) -> Skin:
    """The bare skin of a person, and its lines."""
    rng = np.random.Generator(np.random.PCG64(person.skin_seed))
    eye_x, eye_y = eye_position(person)
    mouth_y, nose_y = mouth_height(person), nose_height(person, 0.3)
    blotches = cv2.resize(rng.standard_normal((32, 32), np.float32), (TEXELS, TEXELS))
    mottling = cv2.addWeighted(blotches, 0.02, _noise(rng, "fine"), 0.013, 1)
    dim = np.zeros((TEXELS, TEXELS), np.uint8)
    for side in (-1, 1):
        ellipse(dim, to_texel(side * eye_x, eye_y - 1.5), (18, 13), 110 + 16 * person.eye_depth)
    ellipse(dim, to_texel(0, mouth_y + 8.0), (12, 3.6), 90)
    ellipse(dim, to_texel(0, nose_y + 5.0), (9, 2.6), 100)
    shade = cv2.blur(cv2.blur(dim, (9, 9)), (9, 9)) * np.float32(1 / 255)
    shade += _chin_shadow()
    blush = 0.05 + 0.15 * person.redness
    planes = []
    # OpenCV rounds to whole numbers; the half makes it cut.
    for tone, by_blush, by_shade in zip(
        person.skin, (0.1, 1.0, 0.9), (0.36, 0.48, 0.46), strict=True
    ):
        plane = cv2.addWeighted(_rosy(), -by_blush * blush, shade, -by_shade, 1)
        cv2.multiply(plane, mottling, dst=plane)
        planes.append(cv2.addWeighted(plane, tone, plane, 0, -0.5, dtype=cv2.CV_8U))
    base = np.asarray(cv2.merge(planes), dtype=np.uint8)
    _marks(base, person, rng)
    _nostrils(base, person)
    age_lines, smile_lines = _age_lines(person, rng), _smile_lines(person)
    return Skin(base, _cut(age_lines, person), _cut(smile_lines, person))


def _marks(texture: Picture, person: Person, rng: np.random.Generator) -> None:
    """Freckles and moles."""
    rows, columns, corner = LINES_WINDOW
    region = texture[rows, columns]
    marks = np.full_like(region, 255)
    for tone in (0.8, 0.85, 0.9):
        count = int(43 * person.freckles)
        spots = to_texels(rng.normal(0, 17, count), rng.normal(4, 8, count)) - corner
        rings = list((spots[:, None] + 0.9 * FIXED * RING).astype(np.int32))
        cv2.fillPoly(marks, rings, (255 * tone**0.5, 255 * tone, 235 * tone), cv2.LINE_AA, 4)
    for _ in range(rng.poisson(1.4)):
        size = rng.uniform(0.9, 1.9)
        x, y = to_texel(rng.uniform(-30, 30), rng.uniform(-30, 44))
        ellipse(marks, (x - columns.start, y - rows.start), (size, size), (130, 92, 80))
    soften(marks, 0.5)
    cv2.multiply(region, marks, dst=region, scale=1 / 255)


@lru_cache(maxsize=3)
def _noise_sheet(kind: str) -> NDArray[np.float32]:
    """A large sheet of noise of unit deviation that everybody's skin and hair is cut from."""
    rng = np.random.Generator(np.random.PCG64(11))
    noise = rng.standard_normal((3 * TEXELS, 3 * TEXELS), np.float32)
    spread_x, spread_y = {"fine": (1.0, 1.0), "streaks": (1.0, 14.0), "curls": (2.0, 2.4)}[kind]
    smooth = cv2.GaussianBlur(noise, (0, 0), sigmaX=spread_x, sigmaY=spread_y)
    return np.asarray(smooth / smooth.std())


def _noise(rng: np.random.Generator, kind: str) -> NDArray[np.float32]:
    left, top = rng.integers(0, 2 * TEXELS, 2)
    return _noise_sheet(kind)[top : top + TEXELS, left : left + TEXELS]


def _cut(dark: Picture, person: Person) -> Picture:
    """What lines of this darkness (0 to 255) take away from the skin's colour."""
    # Less from red than from the rest: blood shines through.
    shares = (0.75 * person.skin[0], person.skin[1], person.skin[2])
    return np.asarray(cv2.merge([cv2.addWeighted(dark, s / 255, dark, 0, 0) for s in shares]))


@lru_cache(maxsize=4)
def eyeball_of(person: Person) -> Picture:
    """White, iris, pupil and glint, larger than the lids let see."""
    ball = np.empty((61, 73, 3), np.uint8)
    ball[:] = (236, 229, 223)
    centre = (36.0, 30.0)
    ellipse(ball, centre, (6.5, 7.0), scaled(person.iris, 0.4, 0.4, 0.4))
    ellipse(ball, centre, (5.6, 6.1), person.iris)
    ellipse(ball, (36.3, 32.0), (3.9, 3.2), scaled(person.iris, 1.4, 1.4, 1.4))
    ellipse(ball, centre, (2.8, 3.0), (14, 12, 12))
    ellipse(ball, (38.0, 27.6), (1.5, 1.5), (255, 255, 255))
    return ball


def _nostrils(texture: Picture, person: Person) -> None:
    nose_y = nose_height(person, 0.3)
    rows, columns, corner = window((-13, 13), (nose_y - 5, nose_y + 7))
    region = texture[rows, columns]
    bend = np.linspace(-1, 1, 9)
    for side in (-1, 1):
        wing = side * (7.0 + 1.0 * person.nose_width - 1.4 * bend**2)
        crease = to_texels(wing, nose_y + 0.8 + 2.6 * bend) - corner
        line(region, crease, scaled(person.skin, 0.74, 0.62, 0.6), 1)
        x, y = to_texel(side * (3.6 + 0.6 * person.nose_width), nose_y + 3.3)
        hole = (x - columns.start, y - rows.start)
        ellipse(region, hole, (2.6, 1.3), scaled(person.skin, 0.42, 0.28, 0.28))
    soften(region, 0.8)


def _age_lines(person: Person, rng: np.random.Generator) -> Picture:
    rows, columns, corner = LINES_WINDOW
    dark = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.uint8)
    eye_x, eye_y = eye_position(person)
    nose_y, mouth_y = nose_height(person, 0.6), mouth_height(person)
    along, across = _ALONG, _ACROSS

    def draw(x: Curve, y: Curve, depth: float, thickness: int) -> None:
        strength = 255 * depth * (0.6 + 0.7 * rng.random())
        line(dark, to_texels(x, y) - corner, strength, thickness)

    for side in (-1, 1):
        draw(side * (eye_x + 6 * across), eye_y + 6 + 2.2 * (1 - across**2), 0.26, 2)
        draw(side * (eye_x + 6 * across), eye_y + 8 + 3.2 * (1 - across**2), 0.16, 1)
        fold_y = nose_y - 1 + (mouth_y + 3 - nose_y) * along**1.25
        draw(side * (7 + 8.5 * along**0.8), fold_y, 0.34, 2)
        draw(side * (12 + 2.5 * along), mouth_y + 4 + 8 * along, 0.24, 2)
        for k in (-1, 0, 1):
            draw(side * (eye_x + 9 + 5.5 * along), eye_y + k * (1.3 + 1.4 * along), 0.34, 1)
        draw(side * (2.6 - 0.7 * along), eye_y - 8 + 6 * along, 0.24, 1)
    for k in range(4):
        height = eye_y - 16 - 4.2 * k - 1.5 * np.cos(2.2 * across + rng.normal(0, 0.5))
        draw((18 - k) * across + rng.normal(0, 1.5), height, 0.3, 1)
    soften(dark, 0.9)
    return dark


def _smile_lines(person: Person) -> Picture:
    rows, columns, corner = LINES_WINDOW
    dark = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.uint8)
    nose_y, mouth_y, along = nose_height(person, 0.3), mouth_height(person), _ALONG
    for side in (-1, 1):
        fold_y = nose_y - 1 + (mouth_y + 1 - nose_y) * along**1.25
        line(dark, to_texels(side * (7.5 + 10.5 * along**0.8), fold_y) - corner, 66, 2)
    soften(dark, 1.1)
    return dark


@lru_cache(maxsize=4)
def beard_shape(person: Person) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    mouth_y = mouth_height(person)
    rows, columns, corner = BEARD_WINDOW
    share = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.uint8)
    along = np.linspace(-1, 1, 21)
    edge = mouth_y + 4 - 26 * np.abs(along) ** 3.2 - 3 * np.exp(-((along / 0.3) ** 2))
    chin = np.array([edge, np.full(21, 64.0)])
    fill(share, band(*to_texels(56 * along, chin) - corner), 255)
    moustache = np.array([mouth_y - 2.5 - 3.6 * (1 - along**2), mouth_y + 0.5 + 3 * along**2])
    fill(share, band(*to_texels(15 * along, moustache) - corner), 255)
    soften(share, 2.6)
    grain = hair_strands(person)[rows, columns] * np.float32(1 / 255)
    return share * np.float32(1 / 255), np.float32(0.7) + np.float32(0.5) * grain


@lru_cache(maxsize=4)
def hair_strands(person: Person) -> Picture:
    """Light and dark strands: long streaks for straight hair, curls for curly hair."""
    rng = np.random.Generator(np.random.PCG64(person.skin_seed + 1))
    curly = 46 * person.hair_texture
    straight, curls = _noise(rng, "streaks"), _noise(rng, "curls")
    # OpenCV rounds to whole numbers; the half makes it cut.
    strands = cv2.addWeighted(straight, 46 - curly, curls, curly, 127.5, dtype=cv2.CV_8U)
    return np.asarray(strands, dtype=np.uint8)
