"""An image on its way to the network: its size, its mirror image, the values that it enters as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch  # takes seconds to load, and models in ONNX run without it

    from sphereface2.config.schema import RunConfig


def resize(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The image at `size` × `size` pixels, averaged over areas; the same object if it has them."""
    if image.shape[:2] == (size, size):
        return image
    return np.asarray(cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA), np.uint8)


def resize_inputs(inputs: torch.Tensor, size: int, *, by_products: bool = False) -> torch.Tensor:
    """Parts (B, 3, S, S) of what a network is shown at `size` × `size`: bilinear, over areas.

    by_products: as two matrix products, for an export: runtimes of ONNX differ in what they make
        of antialiasing; they agree about products
    """
    import torch
    from torch.nn.functional import interpolate

    if not by_products:
        return interpolate(inputs, size=size, mode="bilinear", antialias=True)
    side = inputs.shape[-1]
    pixels = torch.eye(side).view(1, 1, side, side)
    shares = interpolate(pixels, size=(size, side), mode="bilinear", antialias=True)
    return shares @ inputs @ shares.mT


def shrunk(image: NDArray[np.uint8], times: int) -> NDArray[np.uint8]:
    """The image at a whole fraction of its size, averaged over areas."""
    size = (image.shape[1] // times, image.shape[0] // times)
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def fit_within(image: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """The image with its longer side at most `longest`, averaged over areas."""
    height, width = image.shape[:2]
    if max(height, width) <= longest:
        return image
    scale = longest / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def coarsen(place: NDArray[np.uint8], side: int, *, down: int, up: int) -> None:
    """Scale a square image down to `side` and up again in place, by OpenCV's methods."""
    coarse = cv2.resize(place, (side, side), interpolation=down)
    cv2.resize(coarse, place.shape[:2], place, interpolation=up)


def fit_into(place: NDArray[np.uint8], image: NDArray[np.uint8], *, mirror: bool = False) -> None:
    """Put an image into a square place of a batch, at its size and mirrored if asked for."""
    if image.shape != place.shape:
        image = resize(image, len(place))
    if mirror:
        mirror_into(place, image)
    else:
        place[...] = image


def mirror_into(place: NDArray[np.uint8], image: NDArray[np.uint8]) -> None:
    """Put an image, mirrored, into a place of its own size."""
    # Ten times as fast as image[:, ::-1], which copies pixel by pixel.
    cv2.flip(image, 1, dst=place)


def mirrored(indices: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.bool_]:
    """Which images are shown mirrored in an epoch: half of them, another half each epoch.

    A hash of (seed, epoch, index), so that it depends neither on the order in which images are
    read nor on how many threads read them, and a resumed run makes the same choice.
    """
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    return (_mix(indices.astype(np.uint64) ^ key) >> np.uint64(63)).astype(np.bool_)


def uniform(
    indices: NDArray[np.int64], count: int, *, seed: int, epoch: int
) -> NDArray[np.float64]:
    """So many random numbers in [0, 1) for each image: (images, count), a hash as in `mirrored`."""
    key = np.random.SeedSequence([seed, epoch, 1]).generate_state(1, np.uint64)
    states = _mix(indices.astype(np.uint64) ^ key)[:, None]
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (_mix(states + steps) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """An avalanche over 64 bits: multiply by large odd numbers, fold the upper half down."""
    for multiplier in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93):
        values = values * np.uint64(multiplier)
        values = values ^ (values >> np.uint64(32))
    return values * np.uint64(0xD6E8FEB86659FD93)


# -- what a network expects of an image ------------------------------------------------------------

PerChannel = float | tuple[float, float, float]
"""A number for all channels, or one for each, in the order in which the network sees them."""

_LARGEST = 1e9  # far beyond any value of a pixel; NaN is not below it either


@dataclass(frozen=True)
class Preprocessing:
    """What a model expects of an image: its size, its channel order and the range of its values.

    A value v of 0 to 255 enters the network as (v - mean) / scale: 127.5 and 127.5 give [-1, 1].
    """

    input_size: int
    channels: str = "RGB"
    mean: PerChannel = 127.5
    scale: PerChannel = 127.5

    def __post_init__(self) -> None:
        if self.input_size < 1:
            raise ValueError(f"preprocessing.input_size must be at least 1, got {self.input_size}")
        if self.channels not in ("RGB", "BGR"):
            raise ValueError(f"preprocessing.channels must be RGB or BGR, got {self.channels!r}")
        for name, value in (("mean", self.mean), ("scale", self.scale)):
            each = value if isinstance(value, tuple) else (value,)
            if len(each) not in (1, 3) or not all(abs(number) < _LARGEST for number in each):
                raise ValueError(f"preprocessing.{name} must be one number or three, got {value}")
            if name == "scale" and min(each) <= 0:
                raise ValueError(f"preprocessing.scale must be above 0, got {value}")

    def __str__(self) -> str:
        size = f"{self.input_size}×{self.input_size}"
        return f"{size} {self.channels}, (value - {_text(self.mean)}) / {_text(self.scale)}"

    def to_array(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8 RGB to (B, 3, S, S) in the model's range: the very numbers of `to_tensor`.

        One image (height, width, 3) or several (B, height, width, 3); images of another size are
        scaled to the model's.
        """
        batch = _checked(images)
        if batch.shape[1:3] != (self.input_size, self.input_size):
            batch = np.stack([resize(image, self.input_size) for image in batch])
        if self.channels == "BGR":
            batch = batch[..., ::-1]
        mean, scale = (_by_channel(each) for each in (self.mean, self.scale))
        inputs = np.ascontiguousarray(batch.transpose(0, 3, 1, 2), np.float32)
        values: NDArray[np.float32] = (inputs - mean) / scale
        return values

    def to_tensor(self, images: torch.Tensor | NDArray[np.uint8]) -> torch.Tensor:
        """As `to_array`, for an array or for a tensor, on whose device the result is."""
        import torch

        if isinstance(images, np.ndarray) and images.dtype == np.uint8:
            # torch takes neither negative strides (BGR turned around) nor read-only memory.
            images = torch.from_numpy(np.require(images, requirements=["C", "W"]))
        batch = _checked(images)
        if tuple(batch.shape[1:3]) != (self.input_size, self.input_size):
            scaled = [resize(image, self.input_size) for image in batch.cpu().numpy()]
            batch = torch.from_numpy(np.stack(scaled)).to(batch.device)
        if self.channels == "BGR":
            batch = batch.flip(3)
        mean, scale = (
            torch.from_numpy(_by_channel(each)).to(batch.device) for each in (self.mean, self.scale)
        )
        values: torch.Tensor = (batch.permute(0, 3, 1, 2).float() - mean) / scale
        return values


def preprocessing_of(config: RunConfig, input_size: int) -> Preprocessing:
    """What the network of a run is shown."""
    if config.preprocessing is None:
        return Preprocessing(input_size)
    return Preprocessing(input_size, **config.preprocessing.model_dump())


def _by_channel(value: PerChannel) -> NDArray[np.float32]:
    return np.asarray(value, np.float32).reshape(-1, 1, 1)


def _checked(images: Any) -> Any:
    """An array or tensor of one image or of several, as several."""
    shape, kind = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    if kind != "uint8" or len(shape) not in (3, 4) or shape[-1] != 3 or 0 in shape:
        raise ValueError(
            "images must be uint8 of the shape (height, width, 3) or (B, height, width, 3), "
            f"got {kind} of the shape {shape}"
        )
    return images if len(shape) == 4 else images[None]


def _text(value: PerChannel) -> str:
    each = value if isinstance(value, tuple) else (value,)
    text = ", ".join(f"{number:g}" for number in each)
    return f"({text})" if len(each) > 1 else text
