"""Who a synthetic person is, and under which conditions a picture of that person is taken.

Both are numbers only. A `Person` is drawn from (seed, identity) and never changes; `Conditions`
are drawn from (seed, identity, sample). Nothing that belongs to the picture alone (background,
light, clothes, glasses, hat, camera) depends on who is shown.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Colour = tuple[float, float, float]
"""Red, green and blue, 0 to 255."""

_SKIN = np.array([[250, 216, 194], [232, 184, 150], [196, 138, 100], [142, 92, 64], [88, 56, 42]])
_HAIR = np.array(
    [[34, 28, 28], [66, 44, 32], [112, 74, 46], [158, 112, 62], [214, 176, 112], [160, 74, 34]]
)
_IRIS = np.array(
    [[70, 42, 24], [104, 66, 34], [128, 104, 54], [84, 116, 76], [74, 116, 156], [116, 132, 142]]
)


@dataclass(frozen=True)
class Person:
    """The factors that make one person; most are deviations from the average face, in σ."""

    femininity: float
    """0 to 1: shifts jaw, brows, lips, beard and the usual length of the hair together."""
    melanin: float
    """0 to 1: from the lightest to the darkest skin."""
    skin: Colour
    hair: Colour
    iris: Colour
    lips: Colour
    usual_age: float
    """The age, in years, around which this person's pictures were taken."""
    face_width: float
    forehead_width: float
    cheek: float
    jaw: float
    chin_width: float
    chin_length: float
    chin_forward: float
    brow_ridge: float
    depth: float
    ears: float
    eye_spacing: float
    eye_height: float
    eye_size: float
    eye_opening: float
    eye_tilt: float
    eye_depth: float
    eye_bags: float
    lid_crease: float
    brow_height: float
    brow_thickness: float
    brow_arch: float
    brow_tilt: float
    brow_length: float
    brow_gap: float
    nose_length: float
    nose_width: float
    nose_bridge: float
    nose_tip: float
    nose_hook: float
    mouth_height: float
    mouth_width: float
    upper_lip: float
    lower_lip: float
    mouth_curve: float
    cupid_bow: float
    asymmetry: float
    freckles: float
    redness: float
    hairline: float
    widows_peak: float
    hair_texture: float
    """0 straight to 1 curly."""
    hair_length: float
    """0 shaved, 0.3 short, 0.6 at the chin, 1 long: what this person usually wears."""
    fringe: float
    balding: float
    beard: float
    """0 none to 1 full: what this person usually wears."""
    skin_seed: int
    """Seeds the marks of the skin: moles, freckles, mottling, strands of hair."""

    def __hash__(self) -> int:
        # One number tells people apart; caches would spend their time on hashing all fifty.
        return self.skin_seed


@dataclass(frozen=True)
class Conditions:
    """Everything that differs between two pictures of one person."""

    yaw: float
    """Degrees; positive turns the face to the right side of the picture."""
    pitch: float
    roll: float
    age: float
    """Years."""
    light_azimuth: float
    light_elevation: float
    light_strength: float
    ambient: float
    tint: Colour
    """Colour of the light, around (1, 1, 1)."""
    smile: float
    mouth_open: float
    brow_raise: float
    eye_opening: float
    gaze_x: float
    gaze_y: float
    hair_length: float
    hair_fringe: float
    hair_parting: float
    hair_volume: float
    hair_dye: float
    beard: float
    makeup: float
    accessory: str
    """none, glasses, sunglasses, mask, hat or hand."""
    shift_x: float
    shift_y: float
    scale: float
    blur: float
    noise: float
    contrast: float
    jpeg_quality: int
    """0 to 100; below 25 the picture is not compressed."""
    nuisance_seed: int
    """Seeds what is drawn behind and in front of the face."""


@dataclass(frozen=True)
class Setting:
    """What a verification set asks of a picture: ranges that replace the everyday ones."""

    age: tuple[float, float] | None = None
    yaw: tuple[float, float] | None = None
    """Range of the absolute yaw; the side is drawn."""


EVERYDAY = Setting()

_ACCESSORIES = ("none", "glasses", "sunglasses", "mask", "hat", "hand")
_ACCESSORY_SHARES = (0.64, 0.78, 0.82, 0.86, 0.95)
"""Where the share of each accessory ends, from 0 to 1; the last one takes the rest."""
_PERSON_STREAM = 1
_SAMPLE_STREAM = 2


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def _colour(values: np.ndarray) -> Colour:
    red, green, blue = np.clip(values, 0, 255)
    return float(red), float(green), float(blue)


def _along(palette: np.ndarray, position: float) -> np.ndarray:
    """The colour at `position` (0 to 1) along a palette."""
    steps = np.linspace(0, 1, len(palette))
    return np.array([np.interp(position, steps, palette[:, channel]) for channel in range(3)])


def draw_person(seed: int, identity: int) -> Person:
    """The person with this number; the same for ever."""
    rng = _generator(seed, identity, _PERSON_STREAM)

    def sigma(scale: float = 1.0, mean: float = 0.0) -> float:
        return mean + scale * min(max(rng.standard_normal(), -2.2), 2.2)

    femininity = float(np.clip((rng.random() < 0.5) + rng.normal(0, 0.22), 0, 1))
    lean = 2 * femininity - 1
    melanin = float(rng.beta(0.9, 1.3))
    skin = _along(_SKIN, melanin) + rng.normal(0, 1, 3) * (7, 5, 6)
    dark_hair = rng.random() < 0.25 + 0.9 * melanin
    shade = rng.integers(0, 2) if dark_hair else rng.integers(1, len(_HAIR))
    hair = _HAIR[shade] * rng.uniform(0.8, 1.2) + rng.normal(0, 6) * np.array([1.2, 0.9, 0.8])
    dark_eyes = rng.random() < 0.2 + 1.1 * melanin
    eye = rng.integers(0, 2) if dark_eyes else rng.integers(1, len(_IRIS))
    iris = _IRIS[eye] * rng.uniform(0.8, 1.2) + rng.normal(0, 8, 3)
    rosy = rng.uniform(0.25, 0.75)
    lips = skin * (0.86 - 0.1 * rosy, 0.66 - 0.12 * rosy, 0.66 - 0.06 * rosy)
    long_hair = rng.random() < 0.08 + 0.8 * femininity
    return Person(
        femininity=femininity,
        melanin=melanin,
        skin=_colour(skin),
        hair=_colour(hair),
        iris=_colour(iris),
        lips=_colour(lips),
        usual_age=float(rng.uniform(24, 56)),
        face_width=sigma(mean=-0.3 * lean),
        forehead_width=sigma(),
        cheek=sigma(mean=0.2 * lean),
        jaw=sigma(mean=-0.8 * lean),
        chin_width=sigma(mean=-0.7 * lean),
        chin_length=sigma(mean=-0.3 * lean),
        chin_forward=sigma(mean=-0.3 * lean),
        brow_ridge=sigma(mean=-0.8 * lean),
        depth=sigma(),
        ears=sigma(),
        eye_spacing=sigma(),
        eye_height=sigma(),
        eye_size=sigma(mean=0.5 * lean),
        eye_opening=sigma(mean=0.3 * lean),
        eye_tilt=sigma(mean=0.2 * lean),
        eye_depth=sigma(mean=-0.3 * lean),
        eye_bags=sigma(),
        lid_crease=sigma(),
        brow_height=sigma(mean=0.4 * lean),
        brow_thickness=sigma(mean=-0.6 * lean),
        brow_arch=sigma(mean=0.4 * lean),
        brow_tilt=sigma(),
        brow_length=sigma(),
        brow_gap=sigma(),
        nose_length=sigma(),
        nose_width=sigma(mean=-0.4 * lean + 0.7 * (melanin - 0.4)),
        nose_bridge=sigma(mean=-0.2 * lean),
        nose_tip=sigma(mean=-0.2 * lean),
        nose_hook=sigma(),
        mouth_height=sigma(),
        mouth_width=sigma(),
        upper_lip=sigma(mean=0.35 * lean + 0.6 * (melanin - 0.4)),
        lower_lip=sigma(mean=0.35 * lean + 0.6 * (melanin - 0.4)),
        mouth_curve=sigma(),
        cupid_bow=sigma(),
        asymmetry=sigma(),
        freckles=float(max(0.0, rng.normal(-0.4, 0.7)) * (1 - melanin)),
        redness=float(rng.uniform(0, 1)),
        hairline=sigma(),
        widows_peak=sigma(),
        hair_texture=float(np.clip(rng.beta(0.8, 1.2) + 0.25 * (melanin - 0.3), 0, 1)),
        hair_length=float(rng.uniform(0.55, 1.0) if long_hair else rng.uniform(0.08, 0.45)),
        fringe=float(rng.beta(0.8, 1.4)),
        balding=float(max(0.0, rng.normal(0.2, 0.5)) * (1 - femininity)),
        beard=float(np.clip(rng.normal(0.35, 0.5), 0, 1) * (femininity < 0.45)),
        skin_seed=int(rng.integers(0, 2**31)),
    )


def draw_conditions(
    person: Person, seed: int, identity: int, sample: int, setting: Setting = EVERYDAY
) -> Conditions:
    """The conditions of one picture; `setting` replaces its ranges without touching the rest."""
    rng = _generator(seed, identity, sample, _SAMPLE_STREAM)
    # Two calls draw everything: one call a number would take longer than drawing the hair.
    normals: Iterator[float] = iter(rng.standard_normal(24).tolist())
    uniforms: Iterator[float] = iter(rng.random(24).tolist())

    def normal(mean: float, spread: float, low: float, high: float) -> float:
        return min(max(mean + spread * next(normals), low), high)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * next(uniforms)

    near, far_age = normal(person.usual_age, 8, 18, 80), uniform(18, 78)
    age = near if next(uniforms) < 0.9 else far_age
    if setting.age is not None:
        low_age, high_age = setting.age
        age = low_age + (high_age - low_age) * (far_age - 18) / 60
    near_yaw, far_yaw = normal(0, 18, -68, 68), uniform(-66, 66)
    yaw = near_yaw if next(uniforms) < 0.84 else far_yaw
    if setting.yaw is not None:
        low_yaw, high_yaw = setting.yaw
        yaw = math.copysign(low_yaw + (high_yaw - low_yaw) * abs(far_yaw) / 66, far_yaw)
    warmth, green = normal(0, 0.055, -0.13, 0.13), normal(0, 0.018, -0.05, 0.05)
    restyled, dyed = next(uniforms) < 0.25, next(uniforms) < 0.1
    length, new_length = normal(person.hair_length, 0.08, 0, 1), uniform(0.1, 1)
    fringe, new_fringe = normal(person.fringe, 0.1, 0, 1), uniform(0, 1)
    shade, new_shade = normal(0, 0.12, -0.4, 0.4), uniform(-0.9, 0.9)
    return Conditions(
        yaw=yaw,
        pitch=normal(0, 8, -20, 20),
        roll=normal(0, 3.5, -9, 9),
        age=age,
        light_azimuth=uniform(-75, 75),
        light_elevation=uniform(-5, 60),
        light_strength=uniform(0.32, 0.78),
        ambient=uniform(0.34, 0.58),
        tint=(1 + warmth, 1 + green, 1 - warmth),
        smile=normal(0.32, 0.4, -0.5, 1),
        mouth_open=normal(-0.15, 0.4, 0, 1),
        brow_raise=normal(0, 0.45, -1, 1),
        eye_opening=normal(0, 0.16, -0.5, 0.3),
        gaze_x=normal(0, 0.3, -0.7, 0.7),
        gaze_y=normal(0, 0.15, -0.4, 0.4),
        hair_length=new_length if restyled else length,
        hair_fringe=new_fringe if restyled else fringe,
        hair_parting=normal(0, 0.5, -1, 1),
        hair_volume=uniform(0.5, 1.4),
        hair_dye=new_shade if dyed else shade,
        beard=normal(person.beard, 0.25, 0, 1) if person.beard > 0.02 else 0.0,
        makeup=normal(-0.1, 0.5, 0, 1.2) * person.femininity,
        accessory=_ACCESSORIES[bisect(_ACCESSORY_SHARES, next(uniforms))],
        shift_x=normal(0, 1.3, -3, 3),
        shift_y=normal(0, 1.3, -3, 3),
        scale=normal(1, 0.03, 0.93, 1.07),
        blur=max(uniform(-2.6, 1.3), 0.0),
        noise=abs(normal(0, 3.2, -9, 9)),
        contrast=uniform(0.78, 1.12),
        jpeg_quality=int(max(uniform(-300, 90), 0)),
        nuisance_seed=int(rng.integers(0, 2**31)),
    )
