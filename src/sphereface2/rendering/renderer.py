"""Renders one picture of a synthetic person: hair over the head, light, background, camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.rendering.person import Colour, Conditions, Person
from sphereface2.rendering.skin import TEXELS, Picture, hair_strands
from sphereface2.rendering.surface import (
    BOTTOM,
    CELLS,
    EYE_Y,
    FACE_RADIUS,
    SIZE,
    TOP,
    Map,
    ageing,
    bare_radius,
    cast,
    grid,
    illuminate,
    rotation,
)
from sphereface2.rendering.texture import face_texture

# Light goes further round in red than in blue: skin lets it through.
_WRAP = np.array([0.34, 0.22, 0.18], dtype=np.float32)[:, None, None]
_WRAP_SCALE = 1 / (1 + _WRAP)
_WRAP_START = _WRAP * _WRAP_SCALE
# Over the length of the hair: how far down it hangs, how much of the scalp it hides, how thick.
_HANG = ((0.0, -8.0), (0.3, 0.0), (0.5, 16.0), (0.7, 42.0), (1.0, 90.0))
_DENSITY = ((0.0, 0.4), (0.12, 0.85), (0.2, 1.0))
_THICKNESS = ((0.0, 0.4), (0.15, 2.4), (0.4, 5.2), (1.0, 6.0))


def render(person: Person, conditions: Conditions, *, size: int = SIZE) -> Picture:
    """A square RGB crop with the eyes and the mouth where alignment puts them.

    It is always drawn at 112×112 and scaled then, so that every size shows the same content.
    """
    rng = np.random.Generator(np.random.PCG64(conditions.nuisance_seed))
    hair = hair_colour(person, conditions)
    texture = face_texture(person, conditions, hair)
    share, radius = _hair(person, conditions, bare_radius(person, conditions))
    camera = rotation(conditions)
    light = illuminate(radius, camera, conditions)
    reached, column, row, cover = cast(radius, camera, conditions)

    # Four channels are looked up as fast as one, and faster than three.
    fine = TEXELS / CELLS
    on_texture = column * fine + (fine - 1) / 2, row * fine + (fine - 1) / 2
    layers = cv2.cvtColor(texture, cv2.COLOR_RGB2RGBA)
    layers[:, :, 3] = hair_strands(person)
    painted = _planes(_sample(layers, on_texture))
    cells = cv2.merge([*light, share])
    facing, sky, highlight, hairy = _planes(_sample(cells, (column, row)))

    # Colours are planes, (3, rows, columns), from here on: numpy is slow over a last axis of three.
    colour = painted[:3]
    covering = _covering(conditions, hair, painted[3], row, rng)
    _mix_in(colour, covering, hairy)
    lamp = (np.float32(0.65) * sky + np.float32(0.35)) * np.float32(conditions.light_strength)
    sky *= np.float32(conditions.ambient)
    shade = facing * _WRAP_SCALE
    shade += _WRAP_START
    shade = np.clip(shade, 0, 1, out=shade)
    shade *= lamp
    shade += sky
    shade *= _plane(conditions.tint)
    colour *= shade
    lamp *= highlight
    hairy *= np.float32(50)
    hairy += np.float32(36)
    lamp *= hairy
    colour += lamp
    picture = _background(rng)
    _mix_in(picture[:, :, reached], colour, cover)
    if conditions.accessory == "hand":
        _hand(picture, rng)
    drawn = _camera(picture, conditions, rng)
    if size == SIZE:
        return drawn
    way = cv2.INTER_AREA if size < SIZE else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(drawn, (size, size), interpolation=way), np.uint8)


def _sample(source: NDArray[Any], place: tuple[Map, Map]) -> NDArray[Any]:
    return np.asarray(cv2.remap(source, *place, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))


def _planes(picture: NDArray[Any]) -> Map:
    """(height, width, channels) as (channels, height, width)."""
    height, width, channels = picture.shape
    planes = np.asarray(cv2.transpose(picture.reshape(-1, channels)))
    return planes.reshape(channels, height, width).astype(np.float32, copy=False)


def _mix_in(picture: Map, other: Map, share: Map) -> None:
    """Move `picture` towards `other` by `share`, in place; `other` is used up."""
    other -= picture
    other *= share
    picture += other


def hair_colour(person: Person, conditions: Conditions) -> Colour:
    """The person's colour, dyed, then grey with age."""
    dye = conditions.hair_dye
    bleach = 200 * max(dye - 0.3, 0)
    grey = 0.85 * min(max((conditions.age - 46) / 26, 0), 1) ** 1.2

    def tone(base: float, bleached: float, aged: float) -> float:
        dyed = base * (1 + 0.3 * dye) + bleach * bleached
        return float(min(max(dyed + (aged - dyed) * grey, 8.0), 235.0))

    red, green, blue = person.hair
    return tone(red, 1.0, 186), tone(green, 0.72, 184), tone(blue, 0.45, 182)


@lru_cache(maxsize=4)
def _locks(person: Person) -> tuple[Map, Map]:
    """How ragged the edge of a person's hair is, by column, and the bumps of its curls."""
    rng = np.random.Generator(np.random.PCG64(person.skin_seed + 2))
    jag = rng.normal(0, 1, CELLS).astype(np.float32)
    curls = cv2.resize(hair_strands(person), (CELLS, CELLS)) * np.float32(1 / 128) - 1
    return jag, np.asarray(curls, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _Scalp:
    """What is the same for everybody's hair: curves over the azimuth, then over the height."""

    side: Map
    temples: Map
    peak: Map
    swept: Map
    """Where a swept fringe can hang."""
    full: Map
    """Where a full fringe hangs."""
    short: Map
    """How thick short hair is."""
    low: Map
    """0 above the ears to 1 below them."""
    dome: Map


@lru_cache(maxsize=1)
def _scalp() -> _Scalp:
    side, height = np.abs(grid().azimuth), grid().y[:, None]
    return _Scalp(
        side=side,
        temples=np.exp(-(((side - 0.55) / 0.25) ** 2)),
        peak=np.exp(-((side / 0.18) ** 2)),
        swept=np.exp(-((side / 0.75) ** 4)),
        full=np.exp(-((side / 0.95) ** 6)),
        short=np.clip(0.25 - height / 28, 0.25, 1),
        low=np.clip((height + 20) / 20, 0, 1),
        dome=np.sqrt(np.clip((height - TOP - 2) / 9, 0, 1)),
    )


def _along(points: Sequence[tuple[float, float]], x: float) -> float:
    """The height at `x` of a curve through `points`, from x = 0; for one number, unlike numpy's."""
    for (left, low), (right, high) in pairwise(points):
        if x < right:
            return low + (high - low) * (x - left) / (right - left)
    return points[-1][1]


def _hair(person: Person, conditions: Conditions, radius: Map) -> tuple[Map, Map]:
    """How much of each cell is hair (or hat), and the radius with it."""
    cells, scalp, old = grid(), _scalp(), ageing(conditions)
    side = scalp.side
    length = conditions.hair_length
    recede = person.balding * (0.25 + 1.1 * old)
    line = EYE_Y - 31 - 1.8 * person.hairline - 14 * recede
    hairline = line - (2.5 + 6.0 * recede) * scalp.temples
    hairline += (1.0 + 1.6 * person.widows_peak) * scalp.peak
    # A full fringe covers the forehead; a swept one hangs on one side of the parting.
    fringe = max(conditions.hair_fringe - 0.45, 0) * (length > 0.2) * (recede < 0.5)
    if fringe >= 0.3:
        hairline += (13 + 14 * (fringe - 0.3)) * scalp.full
    elif length > 0.2:
        parting = cells.azimuth * (1 / 0.8) - 0.6 / 0.8 * conditions.hair_parting
        away = np.minimum(np.abs(parting), np.float32(1)) * scalp.swept
        hairline += (10 + 30 * fringe) * away - 3.5
    jag, curls = _locks(person)
    hairline += (0.4 + 4.0 * fringe + 0.9 * person.hair_texture) * jag
    # Behind the temples the hair hangs down: to the ear when short, past the chin when long.
    hang = _along(_HANG, length)
    start = 1.2 if length < 0.5 else 1.0
    below = hang + 16 * (side - 1.5) + jag
    behind = (side - start) * FACE_RADIUS
    hat = conditions.accessory == "hat"
    if hat:
        hairline = np.maximum(hairline, EYE_Y - 22 + 2.0 * np.cos(cells.azimuth))  # the brim
    # How far a cell lies inside the hair, in pixels: below the hairline, or behind the cheek.
    height = cells.y[:, None]
    inside = np.minimum(below - height, behind)
    inside = np.maximum(inside, hairline - height)
    density, thick = _along(_DENSITY, length), _along(_THICKNESS, length)
    thick *= conditions.hair_volume * (1 + 0.9 * person.hair_texture)
    if hat:
        thick, density = max(thick, 4.5), 1.0
    share = np.clip(inside * (1 / 3.4) + 0.5, 0, 1)
    # Hair grows out of the skin gradually, else the rays would tear at a wall beside the cheek.
    outward = np.clip((side - start) / 0.5, 0, 1)
    # Long hair keeps its width below the ears, where the neck is thin.
    grown = np.maximum(scalp.low * (36 * outward), radius)
    grown -= radius
    inside *= 1 / 11
    inside += np.float32(0.2)
    thickness = thick * scalp.short if length < 0.5 else np.float32(thick)
    grown += thickness * np.clip(inside, 0, 1)
    if person.hair_texture > 0.35 and not hat:
        grown += curls * np.float32(2.2 * person.hair_texture * min(thick / 4, 1.3))
    grown *= share
    grown = np.asarray(cv2.blur(grown, (3, 3)), dtype=np.float32)
    grown += radius
    # The top of the head is a dome, whatever grows on it.
    grown += 3
    grown *= scalp.dome
    grown -= 3
    return share * np.float32(density), grown


def _covering(
    conditions: Conditions, hair: Colour, strands: Map, row: Map, rng: np.random.Generator
) -> Map:
    """What covers the scalp: strands of hair, or the knit of a hat above them."""
    covering = (strands * np.float32(0.7 / 255) + np.float32(0.6)) * _plane(hair)
    if conditions.accessory == "hat":
        knit = np.float32(0.9) + np.float32(0.1) * np.sin(row * np.float32(3.1))
        brim = np.float32((EYE_Y - 21 - TOP) / (BOTTOM - TOP) * CELLS + 1)
        covering += (knit * _plane(_muted(rng)) - covering) * np.clip(brim - row, 0, 1)
    return covering


def _plane(colour: Colour) -> Map:
    return np.array(colour, dtype=np.float32)[:, None, None]


def _muted(rng: np.random.Generator) -> Colour:
    """A colour of a wall or of clothes: any lightness, mostly not garish."""
    level = 30 + 195 * rng.random()
    red, green, blue = (min(max(level + 22 * z, 5.0), 250.0) for z in rng.standard_normal(3))
    return red, green, blue


@lru_cache(maxsize=1)
def _spread() -> Map:
    """(112, 5): how five values spread smoothly over a side of the picture."""
    return np.asarray(
        cv2.resize(np.eye(5, dtype=np.float32), (5, SIZE), interpolation=cv2.INTER_CUBIC)
    )


@lru_cache(maxsize=256)
def _shoulders(x: int, y: int) -> Map:
    """Which share of each pixel is clothes, in the lowest rows: no shoulder reaches higher."""
    rows = 18
    cover = np.zeros((rows, SIZE), np.uint8)
    middle = (x, y - SIZE + rows)
    cv2.ellipse(cover, middle, (74, 30), 0, 180, 360, 255, -1, cv2.LINE_AA)
    return cover * np.float32(1 / 255)


def _background(rng: np.random.Generator) -> Map:
    """A soft room or street, and shoulders; nothing of it depends on the person."""
    patches = rng.standard_normal((4, 5, 5), np.float32)
    light = np.float32(4 + 26 * rng.random()) * patches[3] + np.float32(9) * patches[:3]
    light += _plane(_muted(rng))
    wide = light.reshape(15, 5) @ _spread().T
    scene = _spread() @ wide.reshape(3, 5, SIZE)
    shoulders = _shoulders(int(50 + 13 * rng.random()), int(127 + 10 * rng.random()))
    low = scene[:, -len(shoulders) :]
    low += (_plane(_muted(rng)) - low) * shoulders
    return np.asarray(scene)


def _hand(picture: Map, rng: np.random.Generator) -> None:
    """A hand, or some object, in front of a part of the face."""
    angle = rng.uniform(0, 2 * np.pi)
    out = np.array([np.cos(angle), np.sin(angle)])
    layer = np.zeros((SIZE, SIZE), np.uint8)
    if rng.random() < 0.6:
        tone = rng.uniform(0.4, 1.08)
        colour = (226 * tone, 172 * tone, 142 * tone)
        for finger in range(4):
            beside = np.array([-out[1], out[0]]) * (finger - 1.5) * 9 + rng.normal(0, 1, 2)
            tip = np.array([56, 66]) + beside + out * rng.uniform(20, 24)
            (x, y), (far_x, far_y) = tip.astype(int).tolist(), (tip + out * 46).astype(int).tolist()
            cv2.line(layer, (x, y), (far_x, far_y), 255, 8, cv2.LINE_AA)
            cv2.circle(layer, (x, y), 4, 255, -1, cv2.LINE_AA)
    else:
        colour = _muted(rng)
        corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * rng.uniform(11, 23, 2)
        turn = rng.uniform(0, np.pi)
        turned = corners @ [[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]
        centre = np.array([56, 66]) + out * (40, 38)
        cv2.fillConvexPoly(layer, (turned + centre).astype(np.int32), 255, cv2.LINE_AA)
    share = layer.astype(np.float32) / 255
    relief = np.float32(0.62) + np.float32(0.45) * cv2.GaussianBlur(share, (0, 0), 2.2)
    picture += (_plane(colour) * relief - picture) * share


@lru_cache(maxsize=1)
def _grain() -> Map:
    """Noise of the sensor; a picture takes a window of it."""
    return np.random.Generator(np.random.PCG64(7)).standard_normal((3, 256, 256), np.float32)


def _camera(picture: Map, conditions: Conditions, rng: np.random.Generator) -> Picture:
    """Contrast, blur, noise and compression."""
    planes: Any = list(picture)
    if conditions.blur > 0.4:
        planes = [cv2.GaussianBlur(plane, (0, 0), conditions.blur) for plane in planes]
    left, top = int(rng.integers(0, 256 - SIZE)), int(rng.integers(0, 256 - SIZE))
    grain = _grain()[:, top : top + SIZE, left : left + SIZE]
    contrast, noise = conditions.contrast, conditions.noise
    # OpenCV rounds to whole numbers; the half makes it cut, as a sensor counts.
    level = 122 - 118 * contrast - 0.5
    exposed = [
        cv2.addWeighted(plane, contrast, specks, noise, level, dtype=cv2.CV_8U)
        for plane, specks in zip(planes, grain, strict=True)
    ]
    sharp = np.asarray(cv2.merge(exposed), dtype=np.uint8)
    if conditions.jpeg_quality >= 25:
        setting = [cv2.IMWRITE_JPEG_QUALITY, conditions.jpeg_quality]
        _, encoded = cv2.imencode(".jpg", sharp, setting)
        sharp = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR), dtype=np.uint8)
    return sharp
