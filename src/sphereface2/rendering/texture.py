"""The face of one picture, drawn on the skin: eyes, brows, nose, mouth, beard, glasses, mask."""

from __future__ import annotations

import cv2
import numpy as np

from sphereface2.rendering.person import Colour, Conditions, Person
from sphereface2.rendering.skin import (
    BEARD_WINDOW,
    FIXED,
    LINES_WINDOW,
    Curve,
    Picture,
    band,
    beard_shape,
    blend,
    eyeball_of,
    fill,
    line,
    mix,
    scaled,
    skin_of,
    soften,
    to_texel,
    to_texels,
    window,
)
from sphereface2.rendering.surface import ageing, eye_position, mouth_height, nose_height

_ACROSS = np.linspace(-1, 1, 17)
_ALONG = np.linspace(0, 1, 9)
_LID = (1 - np.abs((_ACROSS + 0.12) / 1.12) ** 2.2) * (1 - np.abs(_ACROSS) ** 6)
_LIP = (1 - np.abs(_ACROSS) ** 1.9) ** 0.8
_MOUTH_BEND = 0.4 - _ACROSS**2
_BOW = np.exp(-((_ACROSS / 0.16) ** 2))
_BROW_ARCH = np.sin(np.pi * _ALONG**1.35)
_BROW_TILT = 1 - 2 * _ALONG
_BROW_END = 1.5 * _ALONG**3
_BROW_EDGES = np.array([[-1], [1]]) * (0.72 + 0.45 * _ALONG - 1.05 * _ALONG**3)
_SIDES = np.array([-1, 1])[:, None, None]
# The lid is highest towards the nose on either side, and the lower edge towards the temple.
_LIDS = np.array([_LID, _LID[::-1]])
_TURN = np.linspace(0, 2 * np.pi, 33)
_RIM = np.cos(_TURN), np.sin(_TURN)
_ARM = np.linspace(0, 1, 6)
_BRIDGE = np.linspace(-1, 1, 7)
_FRAMES: tuple[Colour, ...] = ((25, 22, 24), (110, 60, 34), (120, 120, 128), (40, 44, 90))
_CLOTHS: tuple[Colour, ...] = ((150, 190, 214), (232, 232, 232), (46, 48, 54), (186, 206, 190))


def face_texture(person: Person, conditions: Conditions, hair: Colour) -> Picture:
    """The texture of one picture; `hair` colours brows and beard."""
    skin = skin_of(person)
    texture = skin.base.copy()
    old = ageing(conditions)
    rows, columns, _ = LINES_WINDOW
    region = texture[rows, columns]
    age, smile = 1.35 * max(old - 0.12, 0.0), max(conditions.smile, 0.0)
    lines = cv2.addWeighted(skin.age_lines, age, skin.smile_lines, smile, 0)
    cv2.subtract(region, lines, dst=region)
    if conditions.beard > 0.06:
        _beard(texture, person, conditions, hair)
    _mouth(texture, person, conditions, old)
    _brows(texture, person, conditions, hair, old)
    _eyes(texture, person, conditions, old)
    if conditions.accessory in ("glasses", "sunglasses"):
        _glasses(texture, person, conditions)
    elif conditions.accessory == "mask":
        _mask(texture, person, conditions)
    return texture


def _eyes(texture: Picture, person: Person, conditions: Conditions, old: float) -> None:
    p = person
    half_width = 11.6 + 0.85 * p.eye_size
    opening = 1 + conditions.eye_opening + 0.14 * p.eye_opening - 0.34 * old
    opening *= 1 - 0.18 * max(conditions.smile, 0)
    upper = (7.0 + 0.55 * p.eye_size) * max(opening, 0.12)
    lower = (3.9 + 0.25 * p.eye_size) * max(0.35 + 0.65 * opening, 0.1)
    fold = 3.0 + 0.9 * p.lid_crease + 1.2 * old
    tilt = 0.05 + 0.06 * p.eye_tilt - 0.07 * old
    # Two sides; fold, lid, shadow of the lid and lower edge; 17 points around the eye's middle.
    curves = np.empty((2, 4, 17, 2))
    curves[..., 0] = along = _ACROSS * half_width
    lids = upper * _LIDS
    edges = np.array([-fold - lids, -lids, 1.2 - lids, lower * _LIDS[::-1]]).swapaxes(0, 1)
    curves[..., 1] = edges - tilt * along * _SIDES
    for side, shape in zip((-1, 1), curves, strict=True):
        _eye(texture, person, conditions, side, shape)


def _eye(texture: Picture, person: Person, conditions: Conditions, side: int, shape: Curve) -> None:
    p = person
    eye_x, eye_y = eye_position(person)
    x, y = to_texel(side * eye_x, eye_y + 0.35 * p.asymmetry * side)
    low_x, low_y = int(x) - 26, int(y) - 20
    region = texture[low_y : low_y + 41, low_x : low_x + 53]
    x, y = x - low_x, y - low_y
    fold, lid, shadow, bottom = ((shape + np.array([x, y])) * FIXED).astype(np.int32)
    if conditions.makeup > 0.1:
        tone = mix(p.skin, scaled(p.skin, 0.5, 0.36, 0.46), min(0.8 * conditions.makeup, 0.9))
        fill(region, band(fold - np.array([0, FIXED], np.int32), lid), tone)
        soften(region, 1.3)
    line(region, fold, scaled(p.skin, 0.68, 0.58, 0.56), 1)
    eyeball = eyeball_of(person)
    height, width = region.shape[:2]
    # The gaze moves the window over the eyeball, by whole texels.
    left = round(eyeball.shape[1] / 2 - x - 4.5 * conditions.gaze_x)
    up = round(eyeball.shape[0] / 2 - y - 3 * conditions.gaze_y + 1.2)
    ball = eyeball[up : up + height, left : left + width].copy()
    line(ball, shadow, (170, 154, 150), 2)
    inside = np.zeros((height, width), np.uint8)
    fill(inside, band(lid, bottom), 255)
    cv2.copyTo(ball, inside, region)
    lash = scaled(p.skin, 0.24, 0.18, 0.18)
    thick = p.femininity + 0.3 * conditions.makeup > 0.5
    line(region, bottom[2:-1], scaled(p.skin, 0.62, 0.5, 0.48), 1)
    line(region, lid, lash, 2 if thick else 1)
    if thick:
        corner = lid[-1] if side > 0 else lid[0]
        wing = corner + np.array([side * 3 * FIXED, -2.2 * FIXED])
        line(region, np.array([corner, wing], np.int32), lash, 1)
    soften(region, 0.65)


def _brows(
    texture: Picture, person: Person, conditions: Conditions, hair: Colour, old: float
) -> None:
    p = person
    eye_x, eye_y = eye_position(person)
    inner = eye_x - 10.0 + 1.0 * p.brow_gap
    length = 17.5 + 1.3 * p.brow_length
    thickness = max(3.0 + 0.75 * p.brow_thickness - 0.8 * old, 0.9)
    tilt = 1.0 * p.brow_tilt + 1.2 * min(conditions.brow_raise, 0)
    base = eye_y - 9.2 - 1.0 * p.brow_height - 2.2 * conditions.brow_raise + 1.2 * old
    # Two sides, two edges, nine points.
    height = base - (2.6 + 1.0 * p.brow_arch) * _BROW_ARCH - tilt * _BROW_TILT + _BROW_END
    edges = height + 0.5 * thickness * _BROW_EDGES - 0.5 * p.asymmetry * _SIDES
    places = to_texels(_SIDES * (inner + length * _ALONG), edges)
    dark = 0.5 if sum(hair) > 330 else 0.75
    tone = mix(p.skin, scaled(hair, dark, dark, dark), 0.86)
    for upper, lower in places:
        fill(texture, band(upper, lower), tone)
        xs, ys = (upper // FIXED).T.tolist()
        bottom = max(lower[0, 1], lower[-1, 1]) // FIXED
        soften(texture[min(ys) - 4 : bottom + 4, min(xs) - 3 : max(xs) + 4], 1.0)


def _mouth(texture: Picture, person: Person, conditions: Conditions, old: float) -> None:
    p = person
    mouth_y, smile = mouth_height(person), conditions.smile
    rows, columns, corner = window((-26, 26), (mouth_y - 12, mouth_y + 20))
    region = texture[rows, columns]
    half = 13.6 + 1.3 * p.mouth_width + 2.6 * max(smile, 0) - 1.5 * conditions.mouth_open
    bend = 0.9 + 0.6 * p.mouth_curve + 3.4 * smile - 0.6 * old
    level = mouth_y + bend * _MOUTH_BEND + 0.35 * p.asymmetry * _ACROSS
    gap = conditions.mouth_open * 6.5 * _LIP
    thin = 1 - 0.42 * old - 0.18 * max(smile, 0)
    bow = (0.72 + 0.42 * p.cupid_bow) * _BOW
    upper = np.maximum(max(3.6 + 0.75 * p.upper_lip, 1.2) * thin * _LIP - bow, 0)
    lower = max(4.9 + 0.85 * p.lower_lip, 1.8) * thin * _LIP
    x = half * _ACROSS
    shut, parted = level - 0.25 * gap, level + gap
    teeth = np.minimum(0.6875 * gap, 3.4) + shut
    shine = parted + 0.45 * lower
    heights = np.array([level - upper, shut, parted, parted + lower, shine, teeth])
    top_p, shut_p, parted_p, bottom_p, shine_p, teeth_p = to_texels(x, heights) - corner
    red = mix(p.lips, scaled(p.lips, 0.9, 0.42, 0.52), min(conditions.makeup, 1.0))
    fill(region, band(shut_p, bottom_p), red)
    fill(region, band(top_p, shut_p), scaled(red, 0.84, 0.78, 0.79))
    line(region, shine_p[5:12], mix(red, (255, 236, 230), 0.3), 2)
    soften(region, 0.9)
    if conditions.mouth_open > 0.08:
        fill(region, band(shut_p, parted_p), (62, 22, 24))
        white = (238 - 20 * old, 232 - 30 * old, 222 - 44 * old)
        fill(region, band(shut_p[3:14], teeth_p[3:14]), white)
    else:
        line(region, shut_p, scaled(red, 0.42, 0.34, 0.36), 1)


def _beard(texture: Picture, person: Person, conditions: Conditions, hair: Colour) -> None:
    share, grain = beard_shape(person)
    rows, columns, _ = BEARD_WINDOW
    strength = min(0.1 + 0.95 * conditions.beard, 0.92)
    tone = scaled(hair, 0.75, 0.75, 0.75)
    blend(texture[rows, columns], tone, share * np.clip(strength * grain, 0, 0.95))


def _glasses(texture: Picture, person: Person, conditions: Conditions) -> None:
    rng = np.random.Generator(np.random.PCG64(conditions.nuisance_seed + 3))
    eye_x, eye_y = eye_position(person)
    width, height = rng.uniform(10, 12.3), rng.uniform(6.5, 10)
    if conditions.accessory == "sunglasses":
        height = max(height, 8.5)
    roundness = rng.uniform(2, 4.5)
    frame = _FRAMES[int(rng.integers(len(_FRAMES)))]
    ring_x = np.copysign(np.abs(_RIM[0]) ** (2 / roundness), _RIM[0]) * width
    ring_y = np.copysign(np.abs(_RIM[1]) ** (2 / roundness), _RIM[1]) * height
    thickness = int(rng.integers(1, 4))
    for side in (-1, 1):
        rim = to_texels(side * (eye_x + 0.5) + ring_x, eye_y + 1.2 + ring_y)
        if conditions.accessory == "sunglasses":
            fill(texture, rim, mix((14, 14, 16), frame, 0.3))
        line(texture, rim, frame, thickness)
        hinge = eye_x + width
        arm = to_texels(side * (hinge + (60 - hinge) * _ARM), eye_y - 1 - 2 * _ARM)
        line(texture, arm, frame, thickness)
    over = to_texels(_BRIDGE * (eye_x - width + 0.5), eye_y - 1 - 1.2 * (1 - _BRIDGE**2))
    line(texture, over, frame, thickness)


def _mask(texture: Picture, person: Person, conditions: Conditions) -> None:
    rng = np.random.Generator(np.random.PCG64(conditions.nuisance_seed + 4))
    tone = float(rng.uniform(0.85, 1.05))
    cloth = scaled(_CLOTHS[int(rng.integers(len(_CLOTHS)))], tone, tone, tone)
    nose_y = nose_height(person, 0.0)
    along = np.linspace(-1, 1, 21)
    top = nose_y + 2 - 12 * np.exp(-((along / 0.26) ** 2))
    low = 54 - 26 * np.abs(along) ** 2
    fill(texture, band(*to_texels(54 * along, np.array([top, low]))), cloth)
    for share in (0.35, 0.6, 0.85):
        pleat = to_texels(40 * along, nose_y + 4 + 34 * share + 2 * along**2)
        line(texture, pleat, scaled(cloth, 0.84, 0.84, 0.84), 1)
