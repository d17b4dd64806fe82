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

from sphereface2.data.synthetic_person import Conditions, Person

Map = NDArray[np.float32]

SIZE = 112
CELLS = 96
TOP, BOTTOM = -72.0, 72.0
FACE_RADIUS = 38.0
EYE_X, EYE_Y, NOSE_Y, MOUTH_Y, CHIN_Y = 17.6, -10.0, 10.0, 30.0, 46.0
CENTRE_X, CENTRE_Y = 56.0, 62.0
_FAR = np.float32(-34)
_SQUARE = np.ones((3, 3), np.uint8)


@dataclass(frozen=True, eq=False)
class Grid:
    """The coordinates of the cells of a surface map."""

    y: Map
    azimuth: Map
    sine: Map
    cosine: Map
    arc: Map
    """Distance from the middle of the face along the skin, as if the head were round."""
    turn: Map
    """d sin(azimuth/2) / d azimuth, in cells."""


@lru_cache(maxsize=1)
def grid() -> Grid:
    half = ((np.arange(CELLS) + 0.5) / CELLS * 2 - 1).astype(np.float32)
    y = ((np.arange(CELLS) + 0.5) / CELLS * (BOTTOM - TOP) + TOP).astype(np.float32)
    azimuth = (2 * np.arcsin(half)).astype(np.float32)
    return Grid(
        y=y,
        azimuth=azimuth,
        sine=np.sin(azimuth),
        cosine=np.cos(azimuth),
        arc=(azimuth * FACE_RADIUS).astype(np.float32),
        turn=(np.cos(azimuth / 2) / 2 * CELLS / 2).astype(np.float32),
    )


def ageing(conditions: Conditions) -> float:
    """How old the face looks, 0 at 25 to 1 at 75."""
    return float(np.clip((conditions.age - 25) / 50, 0, 1.1))


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


def bare_radius(person: Person, conditions: Conditions) -> Map:
    """The radius map of the head without hair."""
    cells, p = grid(), person
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
    back = _profile([(-66, 0), (-62, 20), (-50, 36), (-20, 48), (10, 42), (34, 24), (80, 22)], 3.0)
    ahead = cells.cosine > 0
    across = (cells.sine[None, :] / side[:, None]) ** 2
    along = np.where(ahead[None, :], front[:, None], back[:, None])
    radius = 1 / np.sqrt(across + (cells.cosine[None, :] / along) ** 2)
    return np.asarray(radius + _bumps(person, conditions, old), dtype=np.float32)


def _bumps(person: Person, conditions: Conditions, old: float) -> Map:
    """Nose, sockets, brows, cheeks, lips, chin and ears as a sum of separable Gaussians."""
    p, cells = person, grid()
    eye_x, eye_y = eye_position(person)
    tip = 11.5 + 1.3 * p.nose_tip
    bridge = 4.6 + 1.1 * p.nose_bridge
    nose_y = nose_height(person, old)
    wing = 5.6 + 0.9 * p.nose_width
    mouth_y = mouth_height(person)
    smile = conditions.smile
    # (x, y, x spread, y spread, height); x ≠ 0 stands for both sides
    spots = [
        (0.0, eye_y + 3, 3.0, 5.0, bridge),
        (0.0, (eye_y + nose_y) / 2 + 2, 3.1, 5.0, bridge * 0.85 + 0.9 * p.nose_hook),
        (0.0, nose_y - 4.5, 3.6, 4.2, tip * 0.50),
        (0.0, nose_y - 0.5, 4.2 + 0.4 * p.nose_width, 2.7, tip * 0.62),
        (wing, nose_y + 0.5, 2.3, 2.4, 3.2 + 0.4 * p.nose_width),
        (eye_x, eye_y, 7.5, 5.0, -3.4 - 0.7 * p.eye_depth - 0.8 * old),
        (eye_x, eye_y, 4.5, 3.0, 1.6),
        (eye_x + 1, eye_y - 8.5, 8.0, 2.8, 1.0 + 0.55 * p.brow_ridge),
        (22.0, 8.0, 8.0, 7.0, 1.4 + 0.6 * p.cheek + 1.3 * max(smile, 0) - 0.9 * old),
        (26.0, 25.0, 7.0, 8.0, -0.8 + 0.3 * p.jaw - 0.8 * old),
        (0.0, mouth_y - 2.6, 9.5, 2.2, 1.7 + 0.3 * p.upper_lip),
        (0.0, mouth_y + 3.4, 8.5, 2.3, 1.9 + 0.35 * p.lower_lip),
        (0.0, mouth_y + 0.2, 10.0, 0.9, -0.9),
        (0.0, mouth_y + 8.6, 7.0, 2.4, -1.3),
        (0.0, mouth_y - 7.5, 1.8, 3.0, -0.6),
        (0.0, CHIN_Y - 3.5 + 1.5 * p.chin_length, 7.0, 4.0, 1.3 + 0.5 * p.chin_forward),
        (13.5 + 2 * max(smile, 0), nose_y + 8, 2.4, 7.0, -0.5 - 0.7 * max(smile, 0) - 0.7 * old),
        (1.55 * FACE_RADIUS, -3.0, 3.6, 7.6, 5.2 + 1.1 * p.ears + 1.4 * old),
        (1.5 * FACE_RADIUS, 6.0, 2.8, 4.0, 1.5 + 0.5 * p.ears),
    ]
    table = np.array(spots + [(-x, y, sx, sy, h) for x, y, sx, sy, h in spots if x], np.float32)
    x, y, spread_x, spread_y, height = table.T[:, :, None]
    columns = height * np.exp(-(((cells.arc - x) / spread_x) ** 2) / 2)
    rows = np.exp(-(((cells.y - y) / spread_y) ** 2) / 2)
    return np.asarray(rows.T @ columns, dtype=np.float32)


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
    turn = np.array(
        [[math.cos(yaw), 0, math.sin(yaw)], [0, 1, 0], [-math.sin(yaw), 0, math.cos(yaw)]]
    )
    nod = np.array(
        [[1, 0, 0], [0, math.cos(pitch), math.sin(pitch)], [0, -math.sin(pitch), math.cos(pitch)]]
    )
    tilt = np.array(
        [[math.cos(roll), -math.sin(roll), 0], [math.sin(roll), math.cos(roll), 0], [0, 0, 1]]
    )
    return np.asarray(tilt @ nod @ turn, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Hits:
    """Where the rays of an image meet the surface."""

    column: Map
    """Continuous column of the surface map, in cells."""
    row: Map
    cover: Map
    """0 beside the head to 1 on it."""


def cast(radius: Map, camera: NDArray[np.float32], conditions: Conditions) -> Hits:
    """Cast one ray a pixel: at half the size from near the surface, then at full size."""
    # The crop follows eyes, nose and mouth, as alignment by landmarks does.
    marks = np.array([[-EYE_X, EYE_Y, 31], [EYE_X, EYE_Y, 31], [0, NOSE_Y, 46], [0, MOUTH_Y, 38]])
    weights = np.array([0.25, 0.25, 0.1, 0.4])
    middle = weights @ marks
    centre = camera @ middle
    scale = conditions.scale
    offset_x = float(CENTRE_X + conditions.shift_x - scale * centre[0])
    offset_y = float(CENTRE_Y + middle[1] + conditions.shift_y - scale * centre[1])

    to_row = CELLS / (BOTTOM - TOP)
    # Camera axes in the units of the look-up: x and z in pixels, y in rows of the map.
    right, down, ahead = (camera * np.array([1, to_row, 1])).tolist()
    first_row = -TOP * to_row - 0.5
    square = (CELLS / 2) ** 2 / 2
    above_square = np.float32(square * 1.00001)  # keeps the root real in spite of rounding
    middle_column = np.float32(CELLS / 2 - 0.5)

    def starts(step: int) -> list[Map]:
        """Where the rays of every `step`-th pixel cross the plane through the head's axis."""
        pixel = (np.arange(SIZE // step, dtype=np.float32) + 0.5) * step - 0.5
        across, along = (pixel - offset_x) / scale, (pixel - offset_y) / scale
        zero = (0.0, first_row, 0.0)
        return [np.add.outer(along * down[k] + zero[k], across * right[k]) for k in range(3)]

    def locate(start: list[Map], depth: Map) -> tuple[Map, Map, Map]:
        x: Any = cv2.scaleAdd(depth, ahead[0], start[0])
        row: Any = cv2.scaleAdd(depth, ahead[1], start[1])
        z: Any = cv2.scaleAdd(depth, ahead[2], start[2])
        distance: Any = cv2.magnitude(x, z)
        # sin(azimuth/2) = ±√((1 − cos azimuth)/2)
        part: Any = cv2.divide(z, distance, scale=-square)
        part += above_square
        column = np.copysign(cv2.sqrt(part), x)
        column += middle_column
        distance -= cv2.remap(
            radius, column, row, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        return distance, column, row

    start = starts(2)
    depth, inside = _splat(radius, camera, scale, offset_x, offset_y)
    closest = np.full_like(depth, 1e3)
    silhouette = depth
    for _ in range(3):
        gap, _, _ = locate(start, depth)
        # A ray that misses keeps the depth where it came closest: that is its silhouette.
        silhouette = np.where(gap < closest, depth, silhouette)
        closest = np.minimum(gap, closest)
        # A stride at least, else rays would stop where they graze a cheek, short of the hair.
        move = np.where(gap > 0.6, np.maximum(gap, np.float32(1.8)), gap)
        depth = np.asarray(cv2.scaleAdd(move, -0.85, depth), dtype=np.float32)
    depth = silhouette
    start = starts(1)
    depth = cv2.resize(depth, (SIZE, SIZE)) + np.float32(0.8)
    gap, _, _ = locate(start, depth)
    depth -= np.float32(0.9) * gap
    gap, column, row = locate(start, depth)
    # Rays inside the outline hit, even one that hangs in the air beside the nose or the hair.
    gap = np.minimum(gap, cv2.resize(closest, (SIZE, SIZE)))
    near = np.clip(np.float32(1.12) - np.float32(0.8) * gap, 0, 1)
    cover = np.maximum(near, cv2.resize(inside, (SIZE, SIZE)))
    return Hits(column=column, row=row, cover=np.asarray(cover, dtype=np.float32))


def _splat(
    radius: Map, camera: NDArray[np.float32], scale: float, offset_x: float, offset_y: float
) -> tuple[Map, Map]:
    """At every second pixel: the depth where its ray starts to search, and if it will hit."""
    cells, side = grid(), SIZE // 2 + 2
    x, y, z = radius * cells.sine, cells.y[:, None], radius * cells.cosine
    right, down, ahead = (camera * np.array([[scale / 2], [scale / 2], [1]])).tolist()
    # One cell of margin all round takes what lies outside the picture.
    column = x * right[0] + z * right[2] + (y * right[1] + (offset_x / 2 + 1.25))
    row = x * down[0] + z * down[2] + (y * down[1] + (offset_y / 2 + 1.25))
    depth = x * ahead[0] + z * ahead[2] + y * ahead[1]
    column, row = np.clip(column, 0, side - 1), np.clip(row, 0, side - 1)
    place = row.astype(np.int64) * side + column.astype(np.int64)
    nearest = np.full((side, side), _FAR, dtype=np.float32)
    np.maximum.at(nearest.reshape(-1), place.ravel(), depth.ravel())
    # Where the surface is steep its cells lie sparse, and the back of the head shows through.
    grown = cv2.dilate(nearest, _SQUARE)
    closed = cv2.erode(grown, _SQUARE)
    covered = closed > _FAR
    inside = cv2.erode(covered.astype(np.float32), _SQUARE)
    first = np.where(covered, closed + np.float32(1.5), grown)
    return np.ascontiguousarray(first[1:-1, 1:-1]), np.ascontiguousarray(inside[1:-1, 1:-1])


@dataclass(frozen=True, eq=False)
class Light:
    """What the light does to each cell of the surface."""

    facing: Map
    """Cosine between the surface and the lamp."""
    sky: Map
    """Light from all around."""
    highlight: Map


def illuminate(radius: Map, camera: NDArray[np.float32], conditions: Conditions) -> Light:
    """Light the surface by a lamp that stands still beside the camera, and by the sky."""
    cells = grid()
    slope_y: Any = cv2.Sobel(radius, cv2.CV_32F, 0, 1, ksize=3, scale=CELLS / (BOTTOM - TOP) / 8)
    slope_x: Any = cv2.Sobel(radius, cv2.CV_32F, 1, 0, ksize=3, scale=1 / 8)
    slope_x *= cells.turn
    slope_x /= radius + np.float32(4)
    length = cv2.sqrt(slope_x * slope_x + slope_y * slope_y + np.float32(1))
    slope_y /= length
    normal_x = (cells.sine - cells.cosine * slope_x) / length
    normal_z = (cells.cosine + cells.sine * slope_x) / length

    azimuth, elevation = np.deg2rad([conditions.light_azimuth, conditions.light_elevation])
    level = np.cos(elevation)
    lamp = np.array([np.sin(azimuth) * level, -np.sin(elevation), np.cos(azimuth) * level])
    half_way = lamp + np.array([0, 0, 1])
    half_way /= np.linalg.norm(half_way)

    def towards(direction: NDArray[np.float64]) -> Map:
        x, y, z = (direction @ camera).astype(np.float32)
        return np.asarray(normal_x * x - slope_y * y + normal_z * z)

    # Hollows see less of the sky: sockets, the sides of the nose, below lip, chin and hair.
    hollow: Any = cv2.blur(radius, (13, 13))
    hollow -= radius
    openness = cv2.exp(np.clip(hollow, -1.2, 9) * np.float32(-0.13))
    highlight = np.clip(towards(half_way), 0, 1)
    for _ in range(4):
        highlight *= highlight
    highlight *= openness
    return Light(
        facing=towards(lamp),
        sky=(np.float32(0.22) * slope_y + np.float32(1)) * openness,
        highlight=highlight,
    )
