"""The skin of the head as a picture: eyes, brows, nose, mouth, beard, wrinkles and glasses.

The texture covers the same (azimuth, y) square as the surface map, at twice its resolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.synthetic_person import Colour, Conditions, Person
from sphereface2.data.synthetic_surface import (
    BOTTOM,
    CHIN_Y,
    FACE_RADIUS,
    TOP,
    ageing,
    eye_position,
    mouth_height,
    nose_height,
)

Picture = NDArray[np.uint8]
Points = NDArray[np.float64]
Grey = float

TEXELS = 256
_ACROSS = np.linspace(-1, 1, 17)
_ALONG = np.linspace(0, 1, 9)
_LID = (1 - np.abs((_ACROSS + 0.12) / 1.12) ** 2.2) * (1 - np.abs(_ACROSS) ** 6)
_LIP = (1 - np.abs(_ACROSS) ** 1.9) ** 0.8
_FRAMES: tuple[Colour, ...] = ((25, 22, 24), (110, 60, 34), (120, 120, 128), (40, 44, 90))
_CLOTHS: tuple[Colour, ...] = ((150, 190, 214), (232, 232, 232), (46, 48, 54), (186, 206, 190))
_TURN = np.linspace(0, 2 * np.pi, 21)[:-1]
_RING = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=-1)


def to_texels(x: object, y: object) -> Points:
    """Points on the skin (arc distance from the middle, height) as texels, shape (n, 2)."""
    row = np.multiply(y, TEXELS / (BOTTOM - TOP)) + (-TOP * TEXELS / (BOTTOM - TOP) - 0.5)
    points = np.empty((*row.shape, 2))
    points[..., 0] = np.sin(np.multiply(x, 0.5 / FACE_RADIUS)) * (TEXELS / 2) + (TEXELS / 2 - 0.5)
    points[..., 1] = row
    return points


def _fill(picture: Picture, points: Points, colour: Colour | Grey) -> None:
    cv2.fillPoly(picture, [(points * 16).astype(np.int32)], colour, cv2.LINE_AA, 4)


def _line(picture: Picture, points: Points, colour: Colour | Grey, thickness: int = 1) -> None:
    fixed = [(points * 16).astype(np.int32)]
    cv2.polylines(picture, fixed, False, colour, thickness, cv2.LINE_AA, 4)


def _ellipse(
    picture: Picture, centre: Points, axes: tuple[float, float], colour: Colour | Grey
) -> None:
    _fill(picture, centre + _RING * axes, colour)


def _soften(region: Picture, sigma: float) -> None:
    cv2.GaussianBlur(region, (0, 0), sigma, dst=region)


def _mix(one: Colour, other: Colour, share: float) -> Colour:
    """`share` of `other`, the rest of `one`."""
    red, green, blue = (a + (b - a) * share for a, b in zip(one, other, strict=True))
    return red, green, blue


def _scaled(colour: Colour, red: float, green: float, blue: float) -> Colour:
    return colour[0] * red, colour[1] * green, colour[2] * blue


def _blend(region: Picture, colour: Colour, share: NDArray[np.float32]) -> None:
    """Move `region` towards `colour` by `share` (0 to 1), in place."""
    base = region.astype(np.float32)
    base += (np.array(colour, dtype=np.float32) - base) * share[:, :, None]
    region[:] = base.astype(np.uint8)


def _window(x: tuple[float, float], y: tuple[float, float]) -> tuple[slice, slice, Points]:
    """Rows, columns and first texel of a part of the texture."""
    (left, top), (right, bottom) = to_texels(x, y).astype(int)
    return slice(top, bottom + 1), slice(left, right + 1), np.array([left, top], dtype=float)


@dataclass(frozen=True, eq=False)
class Skin:
    """What the pictures of one person share: the skin, and how deep age and smile cut into it."""

    base: Picture
    age_lines: Picture
    smile_lines: Picture


@lru_cache(maxsize=4)
def skin_of(person: Person) -> Skin:
    """The bare skin of a person, and the darkness (0 to 255) of its lines."""
    rng = np.random.Generator(np.random.PCG64(person.skin_seed))
    eye_x, eye_y = eye_position(person)
    mouth_y, nose_y = mouth_height(person), nose_height(person, 0.3)
    blotches = cv2.resize(rng.standard_normal((32, 32), np.float32), (TEXELS, TEXELS))
    # Planes, (3, 256, 256): numpy is slow over a last axis of three.
    skin = np.array(person.skin, dtype=np.float32)[:, None, None] * (
        np.float32(1) + np.float32(0.02) * blotches + np.float32(0.013) * _noise(rng, "fine")
    )
    warm = np.zeros((TEXELS, TEXELS), np.uint8)
    for x, y, width, height in ((21, 8, 17, 15), (-21, 8, 17, 15), (0, 9, 10, 11), (0, 42, 12, 8)):
        _ellipse(warm, to_texels(x, y), (width, height), 255)
    dim = np.zeros((TEXELS, TEXELS), np.uint8)
    for side in (-1, 1):
        _ellipse(dim, to_texels(side * eye_x, eye_y - 1.5), (18, 13), 110 + 16 * person.eye_depth)
    _ellipse(dim, to_texels(0, mouth_y + 8.0), (12, 3.6), 90)
    _ellipse(dim, to_texels(0, nose_y + 5.0), (9, 2.6), 100)
    blush = cv2.blur(cv2.blur(warm, (17, 17)), (17, 17)) * np.float32(1 / 255)
    shade = cv2.blur(cv2.blur(dim, (9, 9)), (9, 9)) * np.float32(1 / 255)
    # The chin throws its shadow on the neck.
    shade += np.clip((np.arange(TEXELS) - to_texels(0, CHIN_Y + 2)[1]) / 9, 0, 0.7)[:, None]
    blush *= np.float32(0.05 + 0.15 * person.redness)
    for plane, by_blush, by_shade in zip(skin, (0.1, 1.0, 0.9), (0.36, 0.48, 0.46), strict=True):
        plane *= 1 - np.float32(by_blush) * blush - np.float32(by_shade) * shade
    base = np.asarray(cv2.merge(list(np.clip(skin, 0, 255).astype(np.uint8))))
    marks = np.full_like(base, 255)
    for tone in (0.74, 0.8, 0.88):
        count = int(43 * person.freckles)
        spots = to_texels(rng.normal(0, 17, count), rng.normal(4, 8, count))
        rings = list(((spots[:, None] + 0.9 * _RING) * 16).astype(np.int32))
        cv2.fillPoly(marks, rings, (255 * tone**0.5, 255 * tone, 235 * tone), cv2.LINE_AA, 4)
    for _ in range(rng.poisson(1.4)):
        size = rng.uniform(0.9, 1.9)
        spot = to_texels(rng.uniform(-30, 30), rng.uniform(-30, 44))
        _ellipse(marks, spot, (size, size), (130, 92, 80))
    _soften(marks, 0.5)
    cv2.multiply(base, marks, dst=base, scale=1 / 255)
    return Skin(base, _age_lines(person, rng), _smile_lines(person))


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


def _age_lines(person: Person, rng: np.random.Generator) -> Picture:
    rows, columns, corner = _LINES_WINDOW
    dark = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.uint8)
    eye_x, eye_y = eye_position(person)
    nose_y, mouth_y = nose_height(person, 0.6), mouth_height(person)
    along, across = np.linspace(0, 1, 8), np.linspace(-1, 1, 15)

    def draw(x: object, y: object, depth: float, thickness: int) -> None:
        _line(dark, to_texels(x, y) - corner, 255 * depth * rng.uniform(0.6, 1.3), thickness)

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
    _soften(dark, 0.9)
    return dark


def _smile_lines(person: Person) -> Picture:
    rows, columns, corner = _LINES_WINDOW
    dark = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.uint8)
    nose_y, mouth_y, along = nose_height(person, 0.3), mouth_height(person), np.linspace(0, 1, 8)
    for side in (-1, 1):
        fold_y = nose_y - 1 + (mouth_y + 1 - nose_y) * along**1.25
        _line(dark, to_texels(side * (7.5 + 10.5 * along**0.8), fold_y) - corner, 66, 2)
    _soften(dark, 1.1)
    return dark


def face_texture(person: Person, conditions: Conditions, hair: Colour) -> Picture:
    """The texture of one picture; `hair` colours brows and beard."""
    skin = skin_of(person)
    texture = skin.base.copy()
    old = ageing(conditions)
    rows, columns, _ = _LINES_WINDOW
    region = texture[rows, columns]
    age, smile = max(old - 0.15, 0.0), max(conditions.smile, 0.0)
    light = cv2.addWeighted(skin.age_lines, -age, skin.smile_lines, -smile, 255)
    # Lines darken blue and green more than red: blood shines through.
    layer = cv2.merge([cv2.addWeighted(light, 0.75, light, 0, 64), light, light])
    cv2.multiply(region, layer, dst=region, scale=1 / 255)
    if conditions.beard > 0.06:
        _beard(texture, person, conditions, hair)
    _mouth(texture, person, conditions, old)
    _nostrils(texture, person, old)
    _brows(texture, person, conditions, hair, old)
    for side in (-1, 1):
        _eye(texture, person, conditions, side, old)
    if conditions.accessory in ("glasses", "sunglasses"):
        _glasses(texture, person, conditions)
    elif conditions.accessory == "mask":
        _mask(texture, person, conditions)
    return texture


def _eye(texture: Picture, person: Person, conditions: Conditions, side: int, old: float) -> None:
    p = person
    eye_x, eye_y = eye_position(person)
    centre = to_texels(side * eye_x, eye_y + 0.35 * p.asymmetry * side)
    low = centre.astype(int) - (26, 20)
    region = texture[low[1] : low[1] + 41, low[0] : low[0] + 53]
    middle = centre - low
    half_width = 11.6 + 0.85 * p.eye_size
    opening = 1 + conditions.eye_opening + 0.14 * p.eye_opening - 0.22 * old
    opening *= 1 - 0.18 * max(conditions.smile, 0)
    upper = (7.0 + 0.55 * p.eye_size) * max(opening, 0.12)
    lower = (3.9 + 0.25 * p.eye_size) * max(0.35 + 0.65 * opening, 0.1)
    tilt = 0.05 + 0.06 * p.eye_tilt - 0.07 * old
    along = _ACROSS * half_width
    slant = middle[1] - side * tilt * along
    # The lid is highest towards the nose, lowest towards the temple.
    top, bottom = np.empty((17, 2)), np.empty((17, 2))
    top[:, 0] = bottom[:, 0] = middle[0] + along
    top[:, 1] = slant - upper * _LID[:: -side]
    bottom[:, 1] = slant + lower * _LID[::side]

    crease = top - (0, 3.0 + 0.9 * p.lid_crease + 1.2 * old)
    if conditions.makeup > 0.1:
        tone = _mix(p.skin, _scaled(p.skin, 0.5, 0.36, 0.46), min(0.8 * conditions.makeup, 0.9))
        _fill(region, np.concatenate([crease - (0, 1), top[::-1]]), tone)
        _soften(region, 1.3)
    _line(region, crease, _scaled(p.skin, 0.68, 0.58, 0.56), 1)
    ball = np.empty_like(region)
    ball[:] = (240 - 10 * old, 234 - 16 * old, 230 - 22 * old)
    _line(ball, top + (0, 1.6), (176, 160, 156), 4)
    gaze = middle + (conditions.gaze_x * 4.5, -1.2 + conditions.gaze_y * 3)
    _ellipse(ball, gaze, (6.5, 7.0), _scaled(p.iris, 0.4, 0.4, 0.4))
    _ellipse(ball, gaze, (5.6, 6.1), p.iris)
    _ellipse(ball, gaze + (0.3, 2.0), (3.9, 3.2), _scaled(p.iris, 1.4, 1.4, 1.4))
    _ellipse(ball, gaze, (2.8, 3.0), (14, 12, 12))
    lash = _scaled(p.skin, 0.24, 0.18, 0.18)
    _ellipse(ball, gaze + (2.0, -2.4), (1.5, 1.5), (255, 255, 255))
    inside = np.zeros(region.shape[:2], np.uint8)
    _fill(inside, np.concatenate([top, bottom[::-1]]), 255)
    cv2.copyTo(ball, inside, region)
    thick = p.femininity + 0.3 * conditions.makeup > 0.5
    _line(region, bottom[2:-1], _scaled(p.skin, 0.62, 0.5, 0.48), 1)
    _line(region, top, lash, 2 if thick else 1)
    if thick:
        corner = top[-1] if side > 0 else top[0]
        _line(region, np.array([corner, corner + (side * 3.0, -2.2)]), lash, 1)
    _soften(region, 0.65)


def _brows(
    texture: Picture, person: Person, conditions: Conditions, hair: Colour, old: float
) -> None:
    p = person
    eye_x, eye_y = eye_position(person)
    along = _ALONG
    inner = eye_x - 10.0 + 1.0 * p.brow_gap
    length = 17.5 + 1.3 * p.brow_length
    thickness = max(3.0 + 0.75 * p.brow_thickness - 0.4 * old, 1.0)
    arch = (2.6 + 1.0 * p.brow_arch) * np.sin(np.pi * along**1.35)
    tilt = (1.0 * p.brow_tilt + 1.2 * min(conditions.brow_raise, 0)) * (1 - 2 * along)
    base = eye_y - 9.2 - 1.0 * p.brow_height - 2.2 * conditions.brow_raise
    height = base - arch - tilt + 1.5 * along**3
    taper = 0.5 * thickness * (0.72 + 0.45 * along - 1.05 * along**3)
    dark = 0.5 if sum(hair) > 330 else 0.75
    tone = _mix(p.skin, _scaled(hair, dark, dark, dark), 0.86)
    edges = np.array([height - taper, height + taper])
    for side in (-1, 1):
        x = side * (inner + length * along)
        upper, lower = to_texels(x, edges - 0.5 * p.asymmetry * side)
        _fill(texture, np.concatenate([upper, lower[::-1]]), tone)
        low, high = np.minimum(upper[0], upper[-1]), np.maximum(lower[0], lower[-1])
        top = int(upper[:, 1].min()) - 4
        _soften(texture[top : int(high[1]) + 4, int(low[0]) - 3 : int(high[0]) + 4], 1.0)


def _nostrils(texture: Picture, person: Person, old: float) -> None:
    nose_y = nose_height(person, old)
    rows, columns, corner = _window((-13, 13), (nose_y - 5, nose_y + 7))
    region = texture[rows, columns]
    bend = _ACROSS[::2]
    for side in (-1, 1):
        wing = side * (7.0 + 1.0 * person.nose_width - 1.4 * bend**2)
        crease = to_texels(wing, nose_y + 0.8 + 2.6 * bend) - corner
        _line(region, crease, _scaled(person.skin, 0.74, 0.62, 0.6), 1)
        hole = to_texels(side * (3.6 + 0.6 * person.nose_width), nose_y + 3.3) - corner
        _ellipse(region, hole, (2.6, 1.3), _scaled(person.skin, 0.42, 0.28, 0.28))
    _soften(region, 0.8)


def _mouth(texture: Picture, person: Person, conditions: Conditions, old: float) -> None:
    p = person
    mouth_y, smile = mouth_height(person), conditions.smile
    rows, columns, corner = _window((-26, 26), (mouth_y - 12, mouth_y + 20))
    region = texture[rows, columns]
    across = _ACROSS
    half = 13.6 + 1.3 * p.mouth_width + 2.6 * max(smile, 0) - 1.5 * conditions.mouth_open
    bend = 0.9 + 0.6 * p.mouth_curve + 3.4 * smile - 0.6 * old
    line = mouth_y + 0.4 * bend - bend * across**2 + 0.35 * p.asymmetry * across
    gap = conditions.mouth_open * 6.5 * _LIP
    thin = 1 - 0.3 * old - 0.18 * max(smile, 0)
    bow = (0.6 + 0.35 * p.cupid_bow) * np.exp(-((across / 0.16) ** 2))
    upper = np.maximum(max(3.6 + 0.75 * p.upper_lip, 1.2) * thin * _LIP - 1.2 * bow, 0)
    lower = max(4.9 + 0.85 * p.lower_lip, 1.8) * thin * _LIP
    x = half * across
    shut, parted = line - 0.25 * gap, line + gap
    heights = np.array([line - upper, shut, parted, parted + lower, parted + 0.45 * lower])
    top_p, shut_p, parted_p, bottom_p, shine_p = to_texels(x, heights) - corner
    red = _mix(p.lips, _scaled(p.lips, 0.9, 0.42, 0.52), min(conditions.makeup, 1.0))
    _fill(region, np.concatenate([shut_p, bottom_p[::-1]]), red)
    _fill(region, np.concatenate([top_p, shut_p[::-1]]), _scaled(red, 0.84, 0.78, 0.79))
    _line(region, shine_p[5:12], _mix(red, (255, 236, 230), 0.3), 2)
    _soften(region, 0.9)
    if conditions.mouth_open > 0.08:
        _fill(region, np.concatenate([shut_p, parted_p[::-1]]), (62, 22, 24))
        teeth = np.minimum(0.55 * (parted - shut), 3.4) + shut
        edge = to_texels(x, teeth) - corner
        white = (238 - 20 * old, 232 - 30 * old, 222 - 44 * old)
        _fill(region, np.concatenate([shut_p[3:14], edge[3:14][::-1]]), white)
    else:
        _line(region, shut_p, _scaled(red, 0.42, 0.34, 0.36), 1)


def _beard(texture: Picture, person: Person, conditions: Conditions, hair: Colour) -> None:
    share, grain = _beard_shape(person)
    rows, columns, _ = _BEARD_WINDOW
    strength = min(0.1 + 0.95 * conditions.beard, 0.92)
    tone = _scaled(hair, 0.75, 0.75, 0.75)
    _blend(texture[rows, columns], tone, share * np.minimum(strength * grain, 0.95))


@lru_cache(maxsize=4)
def _beard_shape(person: Person) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    mouth_y = mouth_height(person)
    rows, columns, corner = _BEARD_WINDOW
    share = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.uint8)
    along = np.linspace(-1, 1, 21)
    edge = mouth_y + 4 - 26 * np.abs(along) ** 3.2 - 3 * np.exp(-((along / 0.3) ** 2))
    low = to_texels(56 * along[::-1], np.full(21, 64.0)) - corner
    _fill(share, np.concatenate([to_texels(56 * along, edge) - corner, low]), 255)
    moustache, lip = mouth_y - 2.5 - 3.6 * (1 - along**2), mouth_y + 0.5 + 3 * along**2
    under = to_texels(15 * along[::-1], lip) - corner
    _fill(share, np.concatenate([to_texels(15 * along, moustache) - corner, under]), 255)
    _soften(share, 2.6)
    grain = hair_strands(person)[rows, columns].astype(np.float32) / 255
    return share.astype(np.float32) / 255, 0.7 + 0.5 * grain


@lru_cache(maxsize=4)
def hair_strands(person: Person) -> Picture:
    """Light and dark strands: long streaks for straight hair, curls for curly hair."""
    rng = np.random.Generator(np.random.PCG64(person.skin_seed + 1))
    straight = np.float32(46 * (1 - person.hair_texture)) * _noise(rng, "streaks")
    curly = np.float32(46 * person.hair_texture) * _noise(rng, "curls")
    return np.clip(straight + curly + np.float32(128), 0, 255).astype(np.uint8)


_LINES_WINDOW = _window((-44, 44), (-46, 54))
_BEARD_WINDOW = _window((-62, 62), (0, 66))


def _glasses(texture: Picture, person: Person, conditions: Conditions) -> None:
    rng = np.random.Generator(np.random.PCG64(conditions.nuisance_seed + 3))
    eye_x, eye_y = eye_position(person)
    width, height = rng.uniform(10, 12.3), rng.uniform(6.5, 10)
    if conditions.accessory == "sunglasses":
        height = max(height, 8.5)
    roundness = rng.uniform(2, 4.5)
    frame = tuple(
        np.array([[25, 22, 24], [110, 60, 34], [120, 120, 128], [40, 44, 90]])[rng.integers(4)]
    )
    frame = tuple(float(value) for value in frame)
    turn = np.linspace(0, 2 * np.pi, 33)
    ring_x = np.sign(np.cos(turn)) * np.abs(np.cos(turn)) ** (2 / roundness) * width
    ring_y = np.sign(np.sin(turn)) * np.abs(np.sin(turn)) ** (2 / roundness) * height
    thickness = int(rng.integers(1, 4))
    for side in (-1, 1):
        rim = to_texels(side * (eye_x + 0.5) + ring_x, eye_y + 1.2 + ring_y)
        if conditions.accessory == "sunglasses":
            _fill(
                texture, rim, _mix((14, 14, 16), frame, 0.3)
            )
        _line(texture, rim, frame, thickness)
        arm = to_texels(
            side * np.linspace(eye_x + width, 60, 6), np.linspace(eye_y - 1, eye_y - 3, 6)
        )
        _line(texture, arm, frame, thickness)
    bridge = np.linspace(-1, 1, 7)
    over = to_texels(bridge * (eye_x - width + 0.5), eye_y - 1 - 1.2 * (1 - bridge**2))
    _line(texture, over, frame, thickness)


def _mask(texture: Picture, person: Person, conditions: Conditions) -> None:
    rng = np.random.Generator(np.random.PCG64(conditions.nuisance_seed + 4))
    tone = float(rng.uniform(0.85, 1.05))
    cloth = _scaled(_CLOTHS[int(rng.integers(len(_CLOTHS)))], tone, tone, tone)
    nose_y = nose_height(person, 0.0)
    along = np.linspace(-1, 1, 21)
    top = nose_y + 2 - 12 * np.exp(-((along / 0.26) ** 2))
    low = to_texels(54 * along[::-1], 54 - 26 * np.abs(along) ** 2)
    _fill(texture, np.concatenate([to_texels(54 * along, top), low]), cloth)
    for share in (0.35, 0.6, 0.85):
        pleat = to_texels(40 * along, nose_y + 4 + 34 * share + 2 * along**2)
        _line(texture, pleat, _scaled(cloth, 0.84, 0.84, 0.84), 1)
