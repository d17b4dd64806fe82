"""Augmentation: training images changed at random, a pure function of (seed, epoch, image).

A preset is a line in `AUGMENTATIONS`; its fields are the options that a config may set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from sphereface2.data.sources.image_file import encode, to_array
from sphereface2.data.transforms import coarsen, fit_into, shrunk, uniform
from sphereface2.registry import build, look_up, resolve_options, shown

Image = NDArray[np.uint8]


def _ascending(values: tuple[float, float]) -> tuple[float, float]:
    if values[0] > values[1]:
        raise ValueError("must ascend")
    return values


Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Degrees = Annotated[float, Field(ge=0, le=180)]
Offset = Annotated[float, Field(ge=0, le=0.5)]
_Zoom = Annotated[float, Field(ge=0.25, le=4)]
Zooms = Annotated[tuple[_Zoom, _Zoom], AfterValidator(_ascending)]
Resampling = Literal["smooth", "any"]

# For low resolution. As AdaFace does it, by any method down and up, or as lenses and screens do.
_ANY = (
    cv2.INTER_NEAREST,
    cv2.INTER_LINEAR,
    cv2.INTER_AREA,
    cv2.INTER_CUBIC,
    cv2.INTER_LANCZOS4,
)
_LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue
_ASPECT = math.log(4 / 3)  # a rectangle's width over its height, at most, either way
_BEST_QUALITY = 95  # of JPEG


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Nothing, but what is asked for: an effect changes a share of the images, here 0.

    How much it changes one is drawn evenly, up to what is given.

    Args:
        epochs: how long it lasts; later epochs see the images as they are, as an evaluation does.
        reshape: share that is shown in other proportions, wider, taller, with a longer or shorter
            middle, as people of their own: five more for each person, whom the head learns as well.
        move: share that is scaled, turned and shifted, all at once and from the original pixels.
        scale: smallest and largest zoom; above 1 the face gets larger.
        rotation: degrees, either way.
        shift: of the image's side, either way, across and down.
        crop: share of which a rectangle is left, black around it.
        crop_area: of the smallest rectangle, as a share of the image.
        occlusion: share of which a rectangle is covered by one colour.
        occlusion_area: of the largest cover, as a share of the image.
        blur: share that is blurred.
        blur_radius: deviation of the widest blur, as a share of the side.
        low_resolution: share that is scaled down and up again.
        least_resolution: the smallest side in between, as a share of the side.
        resampling: smooth, or any of five methods (nearest to Lanczos) down and another up.
        colour: share whose brightness, contrast and saturation change.
        brightness, contrast, saturation: 0.2 is a factor from 0.8 to 1.2.
        jpeg: share that is compressed.
        jpeg_quality: the lowest; the highest is 95.
    """

    epochs: Annotated[int, Field(ge=1)] | None = None
    reshape: Share = 0.0
    move: Share = 0.0
    scale: Zooms = (0.85, 1.15)
    rotation: Degrees = 5.0
    shift: Offset = 0.05
    crop: Share = 0.0
    crop_area: Part = 0.2
    occlusion: Share = 0.0
    occlusion_area: Part = 0.15
    blur: Share = 0.0
    blur_radius: Annotated[float, Field(gt=0, le=0.1)] = 0.015
    low_resolution: Share = 0.0
    least_resolution: Part = 0.5
    resampling: Resampling = "smooth"
    colour: Share = 0.0
    brightness: Share = 0.2
    contrast: Share = 0.2
    saturation: Share = 0.2
    jpeg: Share = 0.0
    jpeg_quality: Annotated[int, Field(ge=1, le=_BEST_QUALITY)] = 30

    @property
    def is_idle(self) -> bool:
        """Whether every image stays as it is."""
        return not any(getattr(self, share) for share in _STRENGTHS)

    def people(self, count: int) -> int:
        """How many people the head learns if the images show `count`."""
        return count * (1 + len(_SHAPES)) if self.reshape else count

    def shape(self, draw: Draw) -> int:
        """In which proportions an image is shown: 0 its own, else those of another person.

        Person k of K in shape n is person n·K + k, so that those of the images come first.
        """
        return 1 + int(len(_SHAPES) * draw.shape) if draw.reshape < self.reshape else 0

    def draw(self, indices: NDArray[np.int64], *, seed: int, epoch: int) -> list[Draw]:
        """The random numbers of images in an epoch.

        Each serves one purpose, so that another share of one effect leaves all others as they are.
        """
        if self.epochs is not None and epoch >= self.epochs:
            return [_UNCHANGED] * len(indices)
        numbers = uniform(indices, len(Draw._fields), seed=seed, epoch=epoch)
        return [Draw._make(row) for row in numbers.tolist()]

    def fill(self, place: Image, image: Image, draw: Draw, *, mirror: bool = False) -> None:
        """Put an image, changed and mirrored if asked for, into a square place of a batch."""
        size = len(place)
        shape = self.shape(draw)
        if shape:
            columns, rows = _reshaping(shape, *image.shape[:2])
            image = np.asarray(cv2.remap(image, columns, rows, cv2.INTER_LINEAR), np.uint8)
        if draw.move < self.move:
            self._move(place, image, draw, mirror)
        else:
            fit_into(place, image, mirror=mirror)
        if draw.crop < self.crop:
            area = self.crop_area + (1 - self.crop_area) * draw.crop_area
            top, bottom, left, right = _rectangle(
                size, area, draw.crop_aspect, draw.crop_down, draw.crop_right
            )
            place[:top] = place[bottom:] = place[:, :left] = place[:, right:] = 0
        if draw.occlusion < self.occlusion:
            area = self.occlusion_area * draw.cover_area
            top, bottom, left, right = _rectangle(
                size, area, draw.cover_aspect, draw.cover_down, draw.cover_right
            )
            colour = (256 * draw.cover_red, 256 * draw.cover_green, 256 * draw.cover_blue)
            place[top:bottom, left:right] = np.array(colour, np.uint8)
        if draw.blur < self.blur:
            cv2.GaussianBlur(place, (0, 0), max(self.blur_radius * size * draw.radius, 0.1), place)
        if draw.low_resolution < self.low_resolution:
            self._coarsen(place, draw)
        if draw.colour < self.colour:
            self._recolour(place, draw)
        if draw.jpeg < self.jpeg:
            quality = round(self.jpeg_quality + (_BEST_QUALITY - self.jpeg_quality) * draw.quality)
            place[...] = np.asarray(to_array(encode(place, ".jpg", quality=quality)), np.uint8)

    def _move(self, place: Image, image: Image, draw: Draw, mirror: bool) -> None:
        """Scale, turn, shift, mirror and bring to the place's size, in one look at the pixels."""
        size = len(place)
        height, width = image.shape[:2]
        smallest, largest = self.scale
        zoom = smallest + (largest - smallest) * draw.scale
        # A warp looks at four pixels: of a much larger image it would skip most.
        shrink = int(min(height, width) / (size * zoom))
        if shrink >= 2:
            image = shrunk(image, shrink)
            height, width = image.shape[:2]
        # From a pixel of the place, seen from its middle, to one of the image, seen from its own:
        # plain numbers, as arrays of two would take longer than the warp of a small image.
        angle = math.radians(self.rotation * (2 * draw.rotation - 1))
        cosine, sine = math.cos(angle) / (size * zoom), math.sin(angle) / (size * zoom)
        sign = -1.0 if mirror else 1.0
        to_x = (width * cosine * sign, width * sine)
        to_y = (-height * sine * sign, height * cosine)
        middle = (size - 1) / 2
        left = (width - 1) / 2 + self.shift * (2 * draw.right - 1) * width - sum(to_x) * middle
        top = (height - 1) / 2 + self.shift * (2 * draw.down - 1) * height - sum(to_y) * middle
        cv2.warpAffine(
            image,
            np.array([(*to_x, left), (*to_y, top)]),
            (size, size),
            place,
            cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            cv2.BORDER_REFLECT_101,
        )

    def _coarsen(self, place: Image, draw: Draw) -> None:
        size = len(place)
        share = self.least_resolution + (1 - self.least_resolution) * draw.resolution
        down, up = cv2.INTER_AREA, cv2.INTER_LINEAR if draw.up < 0.5 else cv2.INTER_CUBIC
        if self.resampling == "any":
            down, up = _ANY[int(len(_ANY) * draw.way_down)], _ANY[int(len(_ANY) * draw.up)]
        small = max(1, int(share * size))
        coarsen(place, small, down=down, up=up)

    def _recolour(self, place: Image, draw: Draw) -> None:
        """Brightness, then contrast about the mean grey, then saturation about each pixel's grey.

        All three are linear in the three channels, so they are one matrix.
        """
        brightness = 1 + self.brightness * (2 * draw.brightness - 1)
        contrast = 1 + self.contrast * (2 * draw.contrast - 1)
        saturation = 1 + self.saturation * (2 * draw.saturation - 1)
        grey = float(np.dot(_LUMA, cv2.mean(place)[:3]))
        matrix = np.empty((3, 4))
        matrix[:, :3] = brightness * contrast * (1 - saturation) * _LUMA
        matrix[range(3), range(3)] += brightness * contrast * saturation
        matrix[:, 3] = brightness * (1 - contrast) * grey
        cv2.transform(place, matrix, place)


class Draw(NamedTuple):
    """The random numbers of one image, each from 0 to 1: whether an effect applies, and how."""

    move: float
    scale: float
    rotation: float
    right: float
    down: float
    crop: float
    crop_area: float
    crop_aspect: float
    crop_down: float
    crop_right: float
    occlusion: float
    cover_area: float
    cover_aspect: float
    cover_down: float
    cover_right: float
    cover_red: float
    cover_green: float
    cover_blue: float
    blur: float
    radius: float
    low_resolution: float
    resolution: float
    way_down: float
    up: float
    colour: float
    brightness: float
    contrast: float
    saturation: float
    jpeg: float
    quality: float
    reshape: float
    shape: float


_UNCHANGED = Draw._make([1.0] * len(Draw._fields))  # no share of the images reaches above 1


def _narrowed(place: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 + 0.82 * (place - 0.5)


def _bent(place: NDArray[np.float64], by: float = 0.09) -> NDArray[np.float64]:
    return place + by * np.sin(2 * np.pi * place)


def _same(place: NDArray[np.float64]) -> NDArray[np.float64]:
    return place


# Other proportions: from where across and from where down a pixel is taken, each from 0 to 1.
_SHAPES = (
    (_narrowed, _same),
    (_same, _narrowed),
    (_same, _bent),
    (_same, partial(_bent, by=-0.09)),
    (_bent, _same),
)


@lru_cache(maxsize=64)
def _reshaping(
    shape: int, height: int, width: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The column and the row that each pixel of an image in these proportions is taken from."""
    across, down = _SHAPES[shape - 1]
    columns = across(np.linspace(0, 1, width)) * (width - 1)
    rows = down(np.linspace(0, 1, height)) * (height - 1)
    grid = np.meshgrid(columns.astype(np.float32), rows.astype(np.float32))
    return grid[0], grid[1]


def _rectangle(
    size: int, area: float, aspect: float, down: float, right: float
) -> tuple[int, int, int, int]:
    """Top, bottom, left and right of a rectangle with a share of a square's area, anywhere in it.

    aspect, down and right are from 0 to 1.
    """
    ratio = math.exp(_ASPECT * (2 * aspect - 1) / 2)
    height = max(1, min(size, round(size * math.sqrt(area) / ratio)))
    width = max(1, min(size, round(size * math.sqrt(area) * ratio)))
    top, left = int(down * (size - height + 1)), int(right * (size - width + 1))
    return top, top + height, left, left + width


@dataclass(frozen=True, kw_only=True)
class Light(Augmentation):
    """Small moves for every image, some colour and low resolution: for few images per person."""

    move: Share = 1.0
    low_resolution: Share = 0.12
    colour: Share = 0.3


@dataclass(frozen=True, kw_only=True)
class Strong(Augmentation):
    """Everything: larger moves, blur, JPEG, covers, strong colour and low resolution."""

    move: Share = 1.0
    scale: Zooms = (0.8, 1.25)
    rotation: Degrees = 10.0
    shift: Offset = 0.08
    occlusion: Share = 0.2
    blur: Share = 0.15
    low_resolution: Share = 0.25
    least_resolution: Part = 0.25
    colour: Share = 0.5
    brightness: Share = 0.4
    contrast: Share = 0.4
    saturation: Share = 0.4
    jpeg: Share = 0.2


@dataclass(frozen=True, kw_only=True)
class AdaFaceAugmentation(Augmentation):
    """As AdaFace trains: crop, low resolution and colour, each for a fifth of the images."""

    crop: Share = 0.2
    low_resolution: Share = 0.2
    least_resolution: Part = 0.2
    resampling: Resampling = "any"
    colour: Share = 0.2
    brightness: Share = 0.5
    contrast: Share = 0.5
    saturation: Share = 0.5


# The share of images that an effect changes, and what says how much.
_STRENGTHS = {
    "reshape": (),
    "move": ("scale", "rotation", "shift"),
    "crop": ("crop_area",),
    "occlusion": ("occlusion_area",),
    "blur": ("blur_radius",),
    "low_resolution": ("least_resolution", "resampling"),
    "colour": ("brightness", "contrast", "saturation"),
    "jpeg": ("jpeg_quality",),
}

AUGMENTATIONS: dict[str, type[Augmentation]] = {
    "none": Augmentation,
    "light": Light,
    "strong": Strong,
    "adaface": AdaFaceAugmentation,
}


def build_augmentation(name: str, **options: Any) -> Augmentation:
    """The augmentation called `name`, with options over its own."""
    return build("augmentation", AUGMENTATIONS, name, **options)


def augmentation_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of the augmentation called `name`: `options` over its own, checked."""
    factory = look_up("augmentation", AUGMENTATIONS, name)
    resolved = resolve_options("augmentation", name, factory, options)
    if resolved["epochs"] is not None and not any(resolved[share] for share in _STRENGTHS):
        raise ValueError(
            f"augmentation.epochs={resolved['epochs']} would change nothing, since no image is "
            "changed in any epoch; name an augmentation, such as augmentation.name=light"
        )
    for share, strengths in _STRENGTHS.items():
        for key in strengths:
            if not resolved[share] and resolved[key] != getattr(factory, key):
                raise ValueError(
                    f"augmentation.{key}={shown(resolved[key])} would change nothing, for "
                    f"augmentation.{share} is 0; set that as well, as a share of the images"
                )
    return resolved
