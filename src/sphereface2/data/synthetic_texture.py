"""The face of one picture, drawn on the skin: eyes, brows, nose, mouth, beard, glasses, mask."""

from __future__ import annotations

import cv2
import numpy as np

from sphereface2.data.synthetic_canvas import (
    Picture,
    blend,
    fill,
    line,
    mix,
    scaled,
    soften,
    to_texels,
    window,
)
from sphereface2.data.synthetic_person import Colour, Conditions, Person
from sphereface2.data.synthetic_skin import (
    BEARD_WINDOW,
    LINES_WINDOW,
    beard_shape,
    eyeball_of,
    skin_of,
)
from sphereface2.data.synthetic_surface import ageing, eye_position, mouth_height, nose_height

_ACROSS = np.linspace(-1, 1, 17)
_ALONG = np.linspace(0, 1, 9)
_LID = (1 - np.abs((_ACROSS + 0.12) / 1.12) ** 2.2) * (1 - np.abs(_ACROSS) ** 6)
_LIP = (1 - np.abs(_ACROSS) ** 1.9) ** 0.8
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
    opening = 1 + conditions.eye_opening + 0.14 * p.eye_opening - 0.34 * old
    opening *= 1 - 0.18 * max(conditions.smile, 0)
    upper = (7.0 + 0.55 * p.eye_size) * max(opening, 0.12)
    lower = (3.9 + 0.25 * p.eye_size) * max(0.35 + 0.65 * opening, 0.1)
    tilt = 0.05 + 0.06 * p.eye_tilt - 0.07 * old
    along = _ACROSS * half_width
    slant = middle[1] - side * tilt * along
    # The lid is highest towards the nose, lowest towards the temple.
    top, bottom = np.empty((17, 2)), np.empty((17, 2))
    top[:, 0] = bottom[:, 0] = middle[0] + along
    top[:, 1] = slant - upper * _LID[::-side]
    bottom[:, 1] = slant + lower * _LID[::side]

    crease = top - (0, 3.0 + 0.9 * p.lid_crease + 1.2 * old)
    if conditions.makeup > 0.1:
        tone = mix(p.skin, scaled(p.skin, 0.5, 0.36, 0.46), min(0.8 * conditions.makeup, 0.9))
        fill(region, np.concatenate([crease - (0, 1), top[::-1]]), tone)
        soften(region, 1.3)
    line(region, crease, scaled(p.skin, 0.68, 0.58, 0.56), 1)
    lash = scaled(p.skin, 0.24, 0.18, 0.18)
    eyeball = eyeball_of(person)
    height, width = region.shape[:2]
    # The gaze moves the window over the eyeball, by whole texels.
    left = round(eyeball.shape[1] / 2 - middle[0] - 4.5 * conditions.gaze_x)
    up = round(eyeball.shape[0] / 2 - middle[1] - 3 * conditions.gaze_y + 1.2)
    ball = eyeball[up : up + height, left : left + width].copy()
    line(ball, top + np.array([0, 1.2]), (170, 154, 150), 2)
    inside = np.zeros(region.shape[:2], np.uint8)
    fill(inside, np.concatenate([top, bottom[::-1]]), 255)
    cv2.copyTo(ball, inside, region)
    thick = p.femininity + 0.3 * conditions.makeup > 0.5
    line(region, bottom[2:-1], scaled(p.skin, 0.62, 0.5, 0.48), 1)
    line(region, top, lash, 2 if thick else 1)
    if thick:
        corner = top[-1] if side > 0 else top[0]
        line(region, np.array([corner, corner + np.array([side * 3.0, -2.2])]), lash, 1)
    soften(region, 0.65)


def _brows(
    texture: Picture, person: Person, conditions: Conditions, hair: Colour, old: float
) -> None:
    p = person
    eye_x, eye_y = eye_position(person)
    along = _ALONG
    inner = eye_x - 10.0 + 1.0 * p.brow_gap
    length = 17.5 + 1.3 * p.brow_length
    thickness = max(3.0 + 0.75 * p.brow_thickness - 0.8 * old, 0.9)
    arch = (2.6 + 1.0 * p.brow_arch) * np.sin(np.pi * along**1.35)
    tilt = (1.0 * p.brow_tilt + 1.2 * min(conditions.brow_raise, 0)) * (1 - 2 * along)
    base = eye_y - 9.2 - 1.0 * p.brow_height - 2.2 * conditions.brow_raise + 1.2 * old
    height = base - arch - tilt + 1.5 * along**3
    taper = 0.5 * thickness * (0.72 + 0.45 * along - 1.05 * along**3)
    dark = 0.5 if sum(hair) > 330 else 0.75
    tone = mix(p.skin, scaled(hair, dark, dark, dark), 0.86)
    edges = np.array([height - taper, height + taper])
    for side in (-1, 1):
        x = side * (inner + length * along)
        upper, lower = to_texels(x, edges - 0.5 * p.asymmetry * side)
        fill(texture, np.concatenate([upper, lower[::-1]]), tone)
        low, high = np.minimum(upper[0], upper[-1]), np.maximum(lower[0], lower[-1])
        top = int(upper[:, 1].min()) - 4
        soften(texture[top : int(high[1]) + 4, int(low[0]) - 3 : int(high[0]) + 4], 1.0)


def _mouth(texture: Picture, person: Person, conditions: Conditions, old: float) -> None:
    p = person
    mouth_y, smile = mouth_height(person), conditions.smile
    rows, columns, corner = window((-26, 26), (mouth_y - 12, mouth_y + 20))
    region = texture[rows, columns]
    across = _ACROSS
    half = 13.6 + 1.3 * p.mouth_width + 2.6 * max(smile, 0) - 1.5 * conditions.mouth_open
    bend = 0.9 + 0.6 * p.mouth_curve + 3.4 * smile - 0.6 * old
    level = mouth_y + 0.4 * bend - bend * across**2 + 0.35 * p.asymmetry * across
    gap = conditions.mouth_open * 6.5 * _LIP
    thin = 1 - 0.42 * old - 0.18 * max(smile, 0)
    bow = (0.6 + 0.35 * p.cupid_bow) * np.exp(-((across / 0.16) ** 2))
    upper = np.maximum(max(3.6 + 0.75 * p.upper_lip, 1.2) * thin * _LIP - 1.2 * bow, 0)
    lower = max(4.9 + 0.85 * p.lower_lip, 1.8) * thin * _LIP
    x = half * across
    shut, parted = level - 0.25 * gap, level + gap
    heights = np.array([level - upper, shut, parted, parted + lower, parted + 0.45 * lower])
    top_p, shut_p, parted_p, bottom_p, shine_p = to_texels(x, heights) - corner
    red = mix(p.lips, scaled(p.lips, 0.9, 0.42, 0.52), min(conditions.makeup, 1.0))
    fill(region, np.concatenate([shut_p, bottom_p[::-1]]), red)
    fill(region, np.concatenate([top_p, shut_p[::-1]]), scaled(red, 0.84, 0.78, 0.79))
    line(region, shine_p[5:12], mix(red, (255, 236, 230), 0.3), 2)
    soften(region, 0.9)
    if conditions.mouth_open > 0.08:
        fill(region, np.concatenate([shut_p, parted_p[::-1]]), (62, 22, 24))
        teeth = np.minimum(0.55 * (parted - shut), 3.4) + shut
        edge = to_texels(x, teeth) - corner
        white = (238 - 20 * old, 232 - 30 * old, 222 - 44 * old)
        fill(region, np.concatenate([shut_p[3:14], edge[3:14][::-1]]), white)
    else:
        line(region, shut_p, scaled(red, 0.42, 0.34, 0.36), 1)


def _beard(texture: Picture, person: Person, conditions: Conditions, hair: Colour) -> None:
    share, grain = beard_shape(person)
    rows, columns, _ = BEARD_WINDOW
    strength = min(0.1 + 0.95 * conditions.beard, 0.92)
    tone = scaled(hair, 0.75, 0.75, 0.75)
    blend(texture[rows, columns], tone, share * np.minimum(strength * grain, 0.95))


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
            fill(texture, rim, mix((14, 14, 16), frame, 0.3))
        line(texture, rim, frame, thickness)
        arm = to_texels(
            side * np.linspace(eye_x + width, 60, 6), np.linspace(eye_y - 1, eye_y - 3, 6)
        )
        line(texture, arm, frame, thickness)
    bridge = np.linspace(-1, 1, 7)
    over = to_texels(bridge * (eye_x - width + 0.5), eye_y - 1 - 1.2 * (1 - bridge**2))
    line(texture, over, frame, thickness)


def _mask(texture: Picture, person: Person, conditions: Conditions) -> None:
    rng = np.random.Generator(np.random.PCG64(conditions.nuisance_seed + 4))
    tone = float(rng.uniform(0.85, 1.05))
    cloth = scaled(_CLOTHS[int(rng.integers(len(_CLOTHS)))], tone, tone, tone)
    nose_y = nose_height(person, 0.0)
    along = np.linspace(-1, 1, 21)
    top = nose_y + 2 - 12 * np.exp(-((along / 0.26) ** 2))
    low = to_texels(54 * along[::-1], 54 - 26 * np.abs(along) ** 2)
    fill(texture, np.concatenate([to_texels(54 * along, top), low]), cloth)
    for share in (0.35, 0.6, 0.85):
        pleat = to_texels(40 * along, nose_y + 4 + 34 * share + 2 * along**2)
        line(texture, pleat, scaled(cloth, 0.84, 0.84, 0.84), 1)
