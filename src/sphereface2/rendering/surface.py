"""The head as a surface: its radius around a vertical axis, its light, and rays cast at it.

Lengths are pixels of the 112×112 crop seen from the front; x points right, y down, z to the
camera; the origin lies on the axis of the head at the height of the nose bridge. The surface is
the radius ρ over (azimuth, y), stored as a square map. Its columns are sin(azimuth/2): this gives
the face more room than the back of the head and needs no arctangent to look up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.rendering.person import Conditions, Person

Map = NDArray[np.float32]

SIZE = 112
CELLS = 96
TOP, BOTTOM = -72.0, 72.0
FACE_RADIUS = 38.0
EYE_X, EYE_Y, NOSE_Y, MOUTH_Y, CHIN_Y = 17.6, -10.0, 10.0, 30.0, 46.0
CENTRE_X, CENTRE_Y = 56.0, 62.0
_FAR = np.float32(-34)
_SQUARE = np.ones((3, 3), np.uint8)
_TURNED = np.array([[0, -1], [1, 0]], dtype=np.float32)
"""Takes a direction (x, z) to (z, −x)."""


@dataclass(frozen=True, eq=False)
class Grid:
    """The coordinates of the cells of a surface map."""

    y: Map
    azimuth: Map
    ring: Map
    """(2, CELLS): sine and cosine of the azimuth."""
    squares: Map
    """(3, CELLS): sine², then cosine² before and behind the axis."""
    arc: Map
    """Distance from the middle of the face along the skin, as if the head were round."""
    turn: Map
    """d sin(azimuth/2) / d azimuth, in cells."""


@lru_cache(maxsize=1)
def grid() -> Grid:
    half = ((np.arange(CELLS) + 0.5) / CELLS * 2 - 1).astype(np.float32)
    y = ((np.arange(CELLS) + 0.5) / CELLS * (BOTTOM - TOP) + TOP).astype(np.float32)
    azimuth = (2 * np.arcsin(half)).astype(np.float32)
    sine, cosine = np.sin(azimuth), np.cos(azimuth)
    return Grid(
        y=y,
        azimuth=azimuth,
        ring=np.stack([sine, cosine]),
        squares=np.stack([sine**2, cosine**2 * (cosine > 0), cosine**2 * (cosine <= 0)]),
        arc=(azimuth * FACE_RADIUS).astype(np.float32),
        turn=(np.cos(azimuth / 2) / 2 * CELLS / 2).astype(np.float32),
    )


def ageing(conditions: Conditions) -> float:
    """How old the face looks, 0 at 25 to 1 at 75."""
    return min(max((conditions.age - 25) / 50, 0.0), 1.1)


@lru_cache(maxsize=4)
def _smoothing(spread: float) -> Map:
    """(CELLS, CELLS): rounds a curve over the rows by a Gaussian of `spread` cells."""
    distance = np.subtract.outer(np.arange(CELLS), np.arange(CELLS))
    weight = np.exp(-((distance / spread) ** 2) / 2)
    return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float32)


def _profile(points: Sequence[tuple[float, float]], spread: float) -> Map:
    heights, values = zip(*points, strict=True)
    curve = np.interp(grid().y, heights, values).astype(np.float32)
    return np.asarray(_smoothing(spread) @ curve)


@lru_cache(maxsize=1)
def _back() -> Map:
    """The back of the head, everybody's."""
    return _profile([(-66, 0), (-62, 20), (-50, 36), (-20, 48), (10, 42), (34, 24), (80, 22)], 3.0)


def bare_radius(person: Person, conditions: Conditions) -> Map:
    """The radius map of the head without hair."""
    p = person
    old = ageing(conditions)
    width = 37.5 + 1.5 * p.face_width
    forehead = width * (0.93 + 0.022 * p.forehead_width)
    cheek = width * (0.97 + 0.02 * p.cheek - 0.03 * old)
    jaw = width * (0.77 + 0.04 * p.jaw + 0.075 * old)
    chin = width * (0.47 + 0.05 * p.chin_width + 0.05 * old)
    chin_y = CHIN_Y + 1.8 * p.chin_length + 2.4 * conditions.mouth_open
    crown = [(-66.0, 0.0), (-63.0, 14.0)]
    side = _profile(
        [
            *crown,
            *((-56, 25), (-44, 0.94 * forehead), (-28, forehead), (-12, width), (8, cheek)),
            *((28, jaw), (chin_y - 5, chin), (chin_y + 2, 17), (80, 19)),
        ],
        2.2,
    )
    depth = 38.5 + 1.2 * p.depth
    front = _profile(
        [
            *crown,
            *((-55, 26), (-44, depth - 4), (-30, depth - 0.5), (-18, depth + 0.6)),
            *((-8, depth - 1.5), (10, depth), (30, depth - 0.5)),
            *((chin_y - 4, depth - 2 + 1.2 * p.chin_forward), (chin_y + 1, depth - 7)),
            *((chin_y + 5, 21), (80, 15)),
        ],
        1.6,
    )
    # Each row is half an ellipse before the axis and half of another one behind it:
    # 1/ρ² = sin²/side² + cos²/front² or back².
    halves = np.array([side, front, _back()])
    ellipses: Any = cv2.sqrt((1 / (halves * halves)).T @ grid().squares)
    radius = _bumps(person, conditions, old)
    radius += 1 / ellipses
    return radius


def _bumps(person: Person, conditions: Conditions, old: float) -> Map:
    """Nose, sockets, brows, cheeks, lips, chin and ears as a sum of separable Gaussians."""
    p, cells = person, grid()
    eye_x, eye_y = eye_position(person)
    tip = 11.5 + 1.3 * p.nose_tip
    bridge = 4.6 + 1.1 * p.nose_bridge
    nose_y = nose_height(person, old)
    wing = 5.6 + 0.9 * p.nose_width
    mouth_y = mouth_height(person)
    smile = max(conditions.smile, 0)
    # (x, y, x spread, y spread, height)
    central = [
        (0.0, eye_y + 3, 3.0, 5.0, bridge),
        (0.0, (eye_y + nose_y) / 2 + 2, 3.1, 5.0, bridge * 0.85 + 0.9 * p.nose_hook),
        (0.0, nose_y - 4.5, 3.6, 4.2, tip * 0.50),
        (0.0, nose_y - 0.5, 4.2 + 0.4 * p.nose_width, 2.7, tip * 0.62),
        (0.0, mouth_y - 2.6, 9.5, 2.2, 1.7 + 0.3 * p.upper_lip),
        (0.0, mouth_y + 3.4, 8.5, 2.3, 1.9 + 0.35 * p.lower_lip),
        (0.0, mouth_y + 0.2, 10.0, 0.9, -0.9),
        (0.0, mouth_y + 8.6, 7.0, 2.4, -1.3),
        (0.0, mouth_y - 7.5, 1.8, 3.0, -0.6),
        (0.0, CHIN_Y - 3.5 + 1.5 * p.chin_length, 7.0, 4.0, 1.3 + 0.5 * p.chin_forward),
    ]
    on_both_sides = [
        (wing, nose_y + 0.5, 2.3, 2.4, 3.2 + 0.4 * p.nose_width),
        (eye_x, eye_y, 7.5, 5.0, -3.4 - 0.7 * p.eye_depth - 0.8 * old),
        (eye_x, eye_y, 4.5, 3.0, 1.6),
        (eye_x + 1, eye_y - 8.5, 8.0, 2.8, 1.0 + 0.55 * p.brow_ridge),
        (22.0, 8.0, 8.0, 7.0, 1.4 + 0.6 * p.cheek + 1.3 * smile - 0.9 * old),
        (26.0, 25.0, 7.0, 8.0, -0.8 + 0.3 * p.jaw - 0.8 * old),
        (13.5 + 2 * smile, nose_y + 8, 2.4, 7.0, -0.5 - 0.7 * smile - 0.7 * old),
        (1.55 * FACE_RADIUS, -3.0, 3.6, 7.6, 5.2 + 1.1 * p.ears + 1.4 * old),
        (1.5 * FACE_RADIUS, 6.0, 2.8, 4.0, 1.5 + 0.5 * p.ears),
    ]
    table = np.array(central + on_both_sides, np.float32).T[:, :, None]
    away = np.array([cells.arc, cells.y])[:, None] - table[:2]
    away /= table[2:4]
    away *= away
    away *= np.float32(-0.5)
    columns, rows = np.exp(away, out=away)
    columns *= table[4]
    columns[len(central) :] += columns[len(central) :, ::-1]
    return np.asarray(rows.T @ columns)


def eye_position(person: Person) -> tuple[float, float]:
    """Arc distance and height of the right eye's middle."""
    return EYE_X + 1.0 + 1.0 * person.eye_spacing, EYE_Y + 0.9 * person.eye_height


def nose_height(person: Person, old: float) -> float:
    return NOSE_Y + 1.3 * person.nose_length + 1.8 * old


def mouth_height(person: Person) -> float:
    return MOUTH_Y - 1.0 + 1.0 * person.mouth_height


def rotation(conditions: Conditions) -> NDArray[np.float32]:
    """Rows are the camera's axes in the coordinates of the head."""
    yaw, pitch, roll = (
        math.radians(angle) for angle in (conditions.yaw, conditions.pitch, conditions.roll)
    )
    # The head turns, then nods, then tilts.
    right = (math.cos(yaw), 0.0, math.sin(yaw))
    down = (-math.sin(pitch) * right[2], math.cos(pitch), math.sin(pitch) * right[0])
    ahead = (-math.cos(pitch) * right[2], -math.sin(pitch), math.cos(pitch) * right[0])
    cosine, sine = math.cos(roll), math.sin(roll)
    tilted_right = [cosine * a - sine * b for a, b in zip(right, down, strict=True)]
    tilted_down = [sine * a + cosine * b for a, b in zip(right, down, strict=True)]
    return np.array([tilted_right, tilted_down, ahead], dtype=np.float32)


# The crop follows eyes, nose and mouth, as alignment by landmarks does.
_MARKS = np.array([[-EYE_X, EYE_Y, 31], [EYE_X, EYE_Y, 31], [0, NOSE_Y, 46], [0, MOUTH_Y, 38]])
_MIDDLE = np.array([0.25, 0.25, 0.1, 0.4]) @ _MARKS
_TO_ROW = CELLS / (BOTTOM - TOP)
_LOOK_UP = np.array([1, _TO_ROW, 1])
"""Turns lengths into the units of the look-up: x and z stay pixels, y becomes rows of the map."""
_FIRST_ROW = np.array([[0], [-TOP * _TO_ROW - 0.5], [0]], dtype=np.float32)
_PIXELS = {step: (np.arange(0, SIZE, step, dtype=np.float32) + step / 2 - 0.5) for step in (1, 2)}
_SQUARE_COLUMNS = (CELLS / 2) ** 2 / 2


def cast(
    radius: Map, camera: NDArray[np.float32], conditions: Conditions
) -> tuple[slice, Map, Map, Map]:
    """Cast one ray a pixel: at half the size from near the surface, then at full size.

    Returns which columns of the picture the head may reach, and for their rays the column and the
    row of the surface map that they meet, in cells, and the cover: 0 beside the head to 1 on it.
    """
    centre_x, centre_y, _ = (camera @ _MIDDLE).tolist()
    scale = conditions.scale
    offset_x = CENTRE_X + conditions.shift_x - scale * centre_x
    offset_y = CENTRE_Y + float(_MIDDLE[1]) + conditions.shift_y - scale * centre_y
    axes = (camera * _LOOK_UP).astype(np.float32)
    ahead = axes[2].tolist()
    # Keeps the root real in spite of rounding.
    above_square = np.float32(_SQUARE_COLUMNS * 1.00001)
    middle_column = np.float32(CELLS / 2 - 0.5)

    def starts(step: int) -> Map:
        """Where the rays of every `step`-th pixel cross the plane through the head's axis."""
        pixel = _PIXELS[step]
        reached = pixel[2 * left // step : 2 * right // step]
        across = np.multiply.outer(axes[0], (reached - offset_x) / scale)
        along = np.multiply.outer(axes[1], (pixel - offset_y) / scale) + _FIRST_ROW
        return np.asarray(along[:, :, None] + across[:, None, :])

    def locate(start: Map, depth: Map) -> tuple[Map, Map, Map]:
        x: Any = cv2.scaleAdd(depth, ahead[0], start[0])
        row: Any = cv2.scaleAdd(depth, ahead[1], start[1])
        z: Any = cv2.scaleAdd(depth, ahead[2], start[2])
        distance: Any = cv2.magnitude(x, z)
        # sin(azimuth/2) = ±√((1 − cos azimuth)/2)
        part: Any = cv2.divide(z, distance, scale=-_SQUARE_COLUMNS)
        part += above_square
        column = np.copysign(cv2.sqrt(part, dst=part), x, out=x)
        column += middle_column
        distance -= cv2.remap(
            radius, column, row, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        return distance, column, row

    depth, inside = _splat(radius, camera, scale, offset_x, offset_y)
    # Two pixels beside the outermost ones may still see the soft edge; no others do.
    reached = np.flatnonzero(depth.max(axis=0) > _FAR)
    left, right = max(int(reached[0]) - 2, 0), min(int(reached[-1]) + 3, SIZE // 2)
    depth, inside = depth[:, left:right].copy(), inside[:, left:right].copy()
    full_size = (2 * (right - left), SIZE)
    start = starts(2)
    closest, silhouette = np.full_like(depth, 1e3), depth
    for step in range(3):
        gap, _, _ = locate(start, depth)
        # A ray that misses keeps the depth where it came closest: that is its silhouette.
        closer = gap < closest
        silhouette = np.where(closer, depth, silhouette)
        closest = np.minimum(gap, closest)
        if step < 2:
            # A stride at least, else rays would stop where they graze a cheek, short of the hair.
            np.copyto(gap, np.float32(1.8), where=(gap > 0.6) & (gap < 1.8))
            depth = np.asarray(cv2.scaleAdd(gap, -0.85, depth), dtype=np.float32)
    start = starts(1)
    depth = cv2.resize(silhouette, full_size) + np.float32(0.8)
    gap, _, _ = locate(start, depth)
    depth = np.asarray(cv2.scaleAdd(gap, -0.9, depth), dtype=np.float32)
    gap, column, row = locate(start, depth)
    # Rays inside the outline hit, even one that hangs in the air beside the nose or the hair.
    gap = np.minimum(gap, cv2.resize(closest, full_size))
    gap *= np.float32(-0.8)
    gap += np.float32(1.12)
    cover = np.clip(np.maximum(gap, cv2.resize(inside, full_size)), 0, 1)
    return slice(2 * left, 2 * right), column, row, cover


def _splat(
    radius: Map, camera: NDArray[np.float32], scale: float, offset_x: float, offset_y: float
) -> tuple[Map, Map]:
    """At every second pixel: the depth where its ray starts to search, and if it will hit."""
    cells, side = grid(), SIZE // 2 + 2
    # Where cells land in the picture and how near they are: ρ times a factor of the azimuth, plus
    # one of the height. One pixel of margin all round takes what lies outside the picture.
    axes = camera * np.array([[scale / 2], [scale / 2], [1]], dtype=np.float32)
    by_azimuth = axes[:, ::2] @ cells.ring
    zero = np.array([[offset_x / 2 + 1.25], [offset_y / 2 + 1.25], [0]], dtype=np.float32)
    by_height = np.multiply.outer(axes[:, 1], cells.y) + zero
    landing = radius * by_azimuth[:, None, :]
    landing += by_height[:, :, None]
    column, row = np.clip(landing[:2], 0, side - 1).astype(np.int64)
    row *= side
    row += column
    nearest = np.full((side, side), _FAR, dtype=np.float32)
    np.maximum.at(nearest.reshape(-1), row.ravel(), landing[2].ravel())
    # Where the surface is steep its cells lie sparse, and the back of the head shows through.
    grown = cv2.dilate(nearest, _SQUARE)
    closed = cv2.erode(grown, _SQUARE)
    covered = closed > _FAR
    inside: Any = cv2.erode(covered.astype(np.float32), _SQUARE)
    first = np.where(covered, closed + np.float32(1.5), grown)
    return first[1:-1, 1:-1], inside[1:-1, 1:-1]


def illuminate(
    radius: Map, camera: NDArray[np.float32], conditions: Conditions
) -> tuple[Map, Map, Map]:
    """Light the surface by a lamp that stands still beside the camera, and by the sky.

    Returns for each cell the cosine between the surface and the lamp, the light from all around,
    and the highlight.
    """
    cells = grid()
    slope_y: Any = cv2.Sobel(radius, cv2.CV_32F, 0, 1, ksize=3, scale=CELLS / (BOTTOM - TOP) / 8)
    slope_x: Any = cv2.Sobel(radius, cv2.CV_32F, 1, 0, ksize=3, scale=1 / 8)
    slope_x *= cells.turn
    slope_x /= radius + np.float32(4)
    length = slope_x * slope_x
    length += slope_y * slope_y
    length += np.float32(1)
    length = cv2.sqrt(length, dst=length)
    slope_x /= length
    slope_y /= length

    azimuth = math.radians(conditions.light_azimuth)
    elevation = math.radians(conditions.light_elevation)
    level = math.cos(elevation)
    lamp = (math.sin(azimuth) * level, -math.sin(elevation), math.cos(azimuth) * level)
    # Half way between the lamp and the camera, which looks along z.
    stretch = math.hypot(lamp[0], lamp[1], lamp[2] + 1)
    half_way = (lamp[0] / stretch, lamp[1] / stretch, (lamp[2] + 1) / stretch)
    directions = np.array([lamp, half_way], dtype=np.float32) @ camera
    # The normal is (sin − cos·slope_x, −slope_y, cos + sin·slope_x), of length 1.
    level_part = directions[:, ::2] @ cells.ring
    turned_part = directions[:, ::2] @ _TURNED @ cells.ring
    cosines = slope_x * turned_part[:, None, :]
    cosines += level_part[:, None, :] / length
    cosines -= slope_y * directions[:, 1, None, None]
    facing, highlight = cosines

    # Hollows see less of the sky: sockets, the sides of the nose, below lip, chin and hair.
    hollow: Any = cv2.blur(radius, (13, 13))
    hollow -= radius
    openness: Any = cv2.exp(np.clip(hollow, -1.2, 9) * np.float32(-0.13))
    highlight = np.clip(highlight, 0, 1)
    for _ in range(4):
        highlight *= highlight
    highlight *= openness
    slope_y *= np.float32(0.22)
    slope_y += np.float32(1)
    slope_y *= openness
    return facing, slope_y, highlight
