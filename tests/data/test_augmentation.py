"""Augmentation: what each effect does to the pixels, and that it depends on nothing but numbers."""

import math
import re
import sys
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.data.augmentation import (
    AUGMENTATIONS,
    Augmentation,
    Draw,
    augmentation_options,
    build_augmentation,
)
from sphereface2.data.loader.loader import BatchPlan, Loader, WorkerKind
from sphereface2.data.transforms import resize, uniform
from tests.data.numbered_images import Pictures, picture

Image = NDArray[np.uint8]
EFFECTS = ("reshape", "move", "crop", "occlusion", "blur", "low_resolution", "colour", "jpeg")
PRESETS = [name for name in AUGMENTATIONS if name != "none"]
WORKERS: list[tuple[str, WorkerKind, int]] = [
    (name, "threads", workers) for name in PRESETS for workers in (0, 1, 3)
]
if sys.platform == "linux":
    WORKERS += [("strong", "processes", 2)]  # which take a second to start


def filled(
    image: Image, options: dict[str, Any], draw: Draw, *, size: int = 48, mirror: bool = False
) -> Image:
    place = np.zeros((size, size, 3), np.uint8)
    build_augmentation("none", **options).fill(place, image, draw, mirror=mirror)
    return place


def drawn(number: int = 0, **values: float) -> Draw:
    """Random numbers by which no effect applies but those that are given."""
    (draw,) = Augmentation().draw(np.array([number]), seed=0, epoch=0)
    return draw._replace(**{**dict.fromkeys(EFFECTS, 0.0), **values})


def bilinear(image: Image, x: float, y: float) -> NDArray[np.float64]:
    """The pixel at a place between others; outside the image continues as in a mirror."""

    def inside(place: int, size: int) -> int:
        while not 0 <= place < size:
            place = -place if place < 0 else 2 * (size - 1) - place
        return place

    left, top = math.floor(x), math.floor(y)
    total = np.zeros(3)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weight = (1 - abs(y - top - i)) * (1 - abs(x - left - j))
        row, column = inside(top + i, len(image)), inside(left + j, image.shape[1])
        total += weight * image[row, column]
    return total


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 48), (40, 56)])
def test_a_move_by_hand(height: int, width: int, mirror: bool) -> None:
    for number in range(3):
        image = picture(64, 5)[:height, :width]
        options = {"move": 1.0, "scale": (0.8, 1.25), "rotation": 20.0, "shift": 0.1}
        draw, size = drawn(number), 48
        found = filled(image, options, draw, size=size, mirror=mirror)
        zoom = 0.8 + 0.45 * draw.scale
        angle = math.radians(20 * (2 * draw.rotation - 1))
        for row in range(0, size, 5):
            for column in range(0, size, 5):
                # From the middle, in sides of the image: mirror, shrink by the zoom, turn, shift.
                x, y = (column + 0.5) / size - 0.5, (row + 0.5) / size - 0.5
                x, y = (-x if mirror else x) / zoom, y / zoom
                x, y = (
                    x * math.cos(angle) + y * math.sin(angle),
                    y * math.cos(angle) - x * math.sin(angle),
                )
                x, y = x + 0.1 * (2 * draw.right - 1), y + 0.1 * (2 * draw.down - 1)
                expected = bilinear(image, (x + 0.5) * width - 0.5, (y + 0.5) * height - 0.5)
                # OpenCV places pixels to a thirty-second part of one.
                assert np.abs(found[row, column] - expected).max() <= 1.5


def test_a_move_by_nothing_leaves_the_pixels() -> None:
    image = picture(48, 1)
    options = {"move": 1.0, "scale": (1.0, 1.0), "rotation": 0.0, "shift": 0.0}
    assert (filled(image, options, drawn()) == image).all()
    assert (filled(image, options, drawn(), mirror=True) == image[:, ::-1]).all()


def test_a_large_image_is_averaged_before_it_is_moved() -> None:
    stripes = np.zeros((384, 384, 3), np.uint8)
    stripes[:, ::2] = 200
    found = filled(stripes, {"move": 1.0, "rotation": 20.0}, drawn(2), size=48)
    assert found.min() > 80
    assert found.max() < 120


def test_colour_by_hand() -> None:
    for number in range(4):
        image, draw = picture(16, number), drawn(number)
        options = {"colour": 1.0, "brightness": 0.3, "contrast": 0.4, "saturation": 0.5}
        found = filled(image, options, draw._replace(move=1.0), size=16)
        factors = [1 + s * (2 * getattr(draw, k) - 1) for k, s in list(options.items())[1:]]
        luma = np.array([0.299, 0.587, 0.114])
        bright = image * factors[0]
        contrasted = (bright - (bright @ luma).mean()) * factors[1] + (bright @ luma).mean()
        grey = (contrasted @ luma)[..., None]
        expected = np.clip(grey + (contrasted - grey) * factors[2], 0, 255)
        assert np.abs(found - expected).max() <= 1


def test_a_crop_leaves_a_rectangle_and_blackens_the_rest() -> None:
    for number in range(20):
        image = picture(48, 3)
        found = filled(image, {"crop": 1.0, "crop_area": 0.3}, drawn(number))
        left = (found != 0).any(axis=2)
        rows, columns = np.flatnonzero(left.any(1)), np.flatnonzero(left.any(0))
        inside = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
        assert left[inside].all()
        assert (found[inside] == image[inside]).all()
        assert 0.28 * 48**2 <= left.sum() == len(rows) * len(columns)
        assert len(rows) == 48 or len(columns) == 48 or 0.7 < len(rows) / len(columns) < 1.43


def test_a_cover_is_one_rectangle_of_one_colour() -> None:
    for number in range(20):
        image = picture(48, 3)
        found = filled(image, {"occlusion": 1.0, "occlusion_area": 0.2}, drawn(number))
        covered = (found != image).any(axis=2)
        rows, columns = np.flatnonzero(covered.any(1)), np.flatnonzero(covered.any(0))
        inside = found[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].reshape(-1, 3)
        assert len(np.unique(inside, axis=0)) == 1
        assert len(inside) <= 0.21 * 48**2


def test_low_resolution_keeps_what_few_pixels_can_hold() -> None:
    image, draw = picture(48, 3), drawn(resolution=0.5, up=0.0)
    found = filled(image, {"low_resolution": 1.0, "least_resolution": 0.2}, draw)
    small = cv2.resize(image, (28, 28), interpolation=cv2.INTER_AREA)  # 0.6 of the side
    assert (found == cv2.resize(small, (48, 48), interpolation=cv2.INTER_LINEAR)).all()
    options = {"low_resolution": 1.0, "least_resolution": 0.25, "resampling": "any"}
    blocks = filled(image, options, drawn(resolution=0.0, way_down=0.0, up=0.0))
    assert (blocks == np.kron(image[::4, ::4], np.ones((4, 4, 1), np.uint8))).all()


def test_blur_is_a_gaussian_as_wide_as_drawn() -> None:
    image = np.zeros((49, 49, 3), np.uint8)
    image[:, 24] = 255
    found = filled(image, {"blur": 1.0, "blur_radius": 0.05}, drawn(radius=0.8), size=49)
    spread = found[..., 0].astype(float).sum(0)
    places = np.arange(49) - 24
    assert (spread @ places**2) / spread.sum() == pytest.approx((0.05 * 49 * 0.8) ** 2, rel=0.1)


def test_jpeg_is_that_of_the_drawn_quality() -> None:
    image = picture(48, 3)
    found = filled(image, {"jpeg": 1.0, "jpeg_quality": 15}, drawn(quality=0.25))
    options = (cv2.IMWRITE_JPEG_QUALITY, 35)
    encoded = cv2.imencode(".jpg", np.ascontiguousarray(image[..., ::-1]), options)[1]
    assert (found == cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB)).all()


def test_numbers_are_even_and_independent() -> None:
    found = np.concatenate([uniform(np.arange(4000), 30, seed=1, epoch=e) for e in range(5)])
    assert found.min() >= 0
    assert found.max() < 1
    for column in found.T:
        counts = np.histogram(column, 10, (0, 1))[0]
        assert np.abs(counts - 2000).max() < 6 * math.sqrt(2000)
    correlations = np.corrcoef(found.T) - np.eye(30)
    assert np.abs(correlations).max() < 6 / math.sqrt(len(found))


def test_numbers_depend_on_seed_epoch_and_image_alone() -> None:
    some = uniform(np.array([7, 3, 900]), 4, seed=2, epoch=5)
    assert (some[::-1] == uniform(np.array([900, 3, 7]), 4, seed=2, epoch=5)).all()
    assert (some[:, :2] == uniform(np.array([7, 3, 900]), 2, seed=2, epoch=5)).all()
    for seed, epoch in ((3, 5), (2, 6), (5, 2)):
        assert (some != uniform(np.array([7, 3, 900]), 4, seed=seed, epoch=epoch)).all()


@pytest.mark.parametrize(("name", "kind", "workers"), WORKERS)
def test_all_workers_give_the_same_bits_from_any_step(
    name: str, kind: WorkerKind, workers: int
) -> None:
    source = Pictures([0, 1, 2] * 8, size=20)
    plan = BatchPlan(source.labels, batch_size=6, seed=4)

    def batches(start: int, kind: WorkerKind, workers: int, share: tuple[int, int]) -> list[Image]:
        loader = Loader(
            source,
            plan,
            size=16,
            augmentation=build_augmentation(name),
            workers=workers,
            worker_kind=kind,
            share=share,
        )
        return [batch.images.numpy().copy() for batch in loader.batches(start, 10)]

    expected = batches(0, "threads", 0, (0, 1))
    found = batches(3, kind, workers, (0, 1))
    assert all((a == b).all() for a, b in zip(found, expected[3:], strict=True))
    halves = [batches(0, kind, workers, (part, 2)) for part in (0, 1)]
    for first, second, whole in zip(*halves, expected, strict=True):
        assert (np.concatenate([first, second]) == whole).all()


def test_an_epoch_sees_another_version_of_an_image() -> None:
    source = Pictures([0, 1], size=16)
    loader = Loader(
        source,
        BatchPlan(source.labels, batch_size=2),
        size=16,
        flip=False,
        augmentation=build_augmentation("light"),
        workers=0,
    )
    seen = {image.tobytes() for batch in loader.batches(0, 5) for image in batch.images.numpy()}
    assert len(seen) == 10


@pytest.mark.parametrize("size", [16, 20])
@pytest.mark.parametrize("name", PRESETS)
def test_later_epochs_see_the_images_as_they_are(name: str, size: int) -> None:
    source = Pictures(list(range(12)), size=20)
    plan = BatchPlan(source.labels, batch_size=12, seed=3)

    def epochs(augmentation: Augmentation | None) -> list[Image]:
        loader = Loader(source, plan, size=size, augmentation=augmentation, workers=0)
        return [batch.images.numpy().copy() for batch in loader.batches(0, 4)]

    plain, always = epochs(None), epochs(build_augmentation(name))
    for epoch, found in enumerate(epochs(build_augmentation(name, epochs=2))):
        assert (found == (always if epoch < 2 else plain)[epoch]).all()
        assert (found != plain[epoch]).any() == (epoch < 2)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_preset_takes_images_of_any_shape_and_leaves_them(name: str) -> None:
    augmentation = build_augmentation(name)
    draws = augmentation.draw(np.arange(40), seed=0, epoch=0)
    chosen = [any(getattr(d, e) < getattr(augmentation, e) for e in EFFECTS) for d in draws]
    for height, width, size in ((9, 9, 16), (64, 64, 48), (70, 50, 32), (300, 300, 24)):
        image = picture(300, 2)[:height, :width].copy()
        before = image.copy()
        image.flags.writeable = False
        batch = np.zeros((40, size, size, 3), np.uint8)
        for place, draw in zip(batch, draws, strict=True):
            augmentation.fill(place, image, draw)
        assert (image == before).all()
        changed = (batch != resize(image, size)).any(axis=(1, 2, 3))
        assert changed.tolist() == chosen
        assert augmentation.is_idle == (name == "none") == (not changed.any())


def test_a_share_is_that_of_the_images_and_effects_do_not_disturb_each_other() -> None:
    image, indices = picture(16, 2), np.arange(2000)

    def batch(**options: Any) -> Image:
        augmentation = build_augmentation("none", **options)
        batch = np.zeros((2000, 16, 16, 3), np.uint8)
        for place, draw in zip(batch, augmentation.draw(indices, seed=0, epoch=0), strict=True):
            augmentation.fill(place, image, draw)
        return batch

    crops, both = batch(crop=0.3), batch(crop=0.3, occlusion=0.4)
    cropped = (crops != image).any(axis=(1, 2, 3))
    assert cropped.mean() == pytest.approx(0.3, abs=0.05)
    same = (crops == both).all(axis=(1, 2, 3))
    assert same.mean() == pytest.approx(0.6, abs=0.06)


def test_adaface_is_as_its_authors_train() -> None:
    preset = build_augmentation("adaface")
    assert (preset.crop, preset.low_resolution, preset.colour) == (0.2, 0.2, 0.2)
    assert (preset.crop_area, preset.least_resolution, preset.resampling) == (0.2, 0.2, "any")
    assert (preset.brightness, preset.contrast, preset.saturation) == (0.5, 0.5, 0.5)
    assert preset.move == preset.blur == preset.jpeg == preset.occlusion == 0


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("storng", {}, "unknown augmentation 'storng'; did you mean 'strong'?"),
        ("light", {"rotatoin": 3}, "has no option 'rotatoin'; did you mean 'rotation'?"),
        ("light", {"preset": "strong"}, "did you mean 'augmentation.name'?"),
        ("light", {"rotation": 181}, "augmentation.rotation: must be at most 180.0, got 181"),
        ("light", {"rotation": -1}, "augmentation.rotation: must be at least 0.0, got -1"),
        ("light", {"scale": [1.2, 0.9]}, "scale: must ascend, got [1.2, 0.9]"),
        ("light", {"scale": [0, 1]}, "augmentation.scale: must be at least 0.25, got 0"),
        ("light", {"scale": 1.2}, "augmentation.scale: must be a list, got 1.2"),
        ("light", {"move": math.nan}, "augmentation.move: must be a finite number, got nan"),
        ("light", {"jpeg": True}, "augmentation.jpeg: must be a number, got true"),
        ("strong", {"jpeg_quality": 0}, "augmentation.jpeg_quality: must be at least 1, got 0"),
        ("strong", {"resampling": "all"}, "augmentation.resampling: must be 'smooth' or 'any'"),
        ("none", {"rotation": 9}, "augmentation.rotation=9.0 would change nothing, for augmentat"),
        ("light", {"epochs": 0}, "augmentation.epochs: must be at least 1, got 0"),
        ("none", {"epochs": 3}, "augmentation.epochs=3 would change nothing, since no image is"),
        ("light", {"jpeg_quality": 9}, "for augmentation.jpeg is 0; set that as well"),
    ],
)
def test_a_wrong_option_gets_one_sentence(
    name: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        augmentation_options(name, options)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_options_written_out_are_read_again(name: str) -> None:
    options = augmentation_options(name, {})
    assert augmentation_options(name, options) == options
    assert build_augmentation(name, **options) == build_augmentation(name)


def test_other_proportions_by_hand() -> None:
    """Each of the five shapes: from which column and row a pixel comes, straight from the words."""
    ramp = np.zeros((64, 64, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(64)[None], np.arange(64)[:, None]

    def wave(place: float) -> float:
        return 0.09 * math.sin(2 * math.pi * place)

    expected: list[Callable[[float, float], tuple[float, float]]] = [
        lambda x, y: (0.5 + 0.82 * (x - 0.5), y),
        lambda x, y: (x, 0.5 + 0.82 * (y - 0.5)),
        lambda x, y: (x, y + wave(y)),
        lambda x, y: (x, y - wave(y)),
        lambda x, y: (x + wave(x), y),
    ]
    augmentation = build_augmentation("none", reshape=0.5)
    for shape, comes_from in enumerate(expected):
        draw = drawn(reshape=0.1, shape=(shape + 0.5) / len(expected))
        assert augmentation.shape(draw) == 1 + shape
        seen = filled(ramp, {"reshape": 0.5}, draw, size=64)
        for row, column in ((0, 0), (10, 40), (33, 21), (63, 63)):
            x, y = comes_from(column / 63, row / 63)
            assert seen[row, column, :2] == pytest.approx([63 * x, 63 * y], abs=0.51)
    assert augmentation.shape(drawn(reshape=0.5)) == 0
    assert np.array_equal(filled(ramp, {"reshape": 0.5}, drawn(reshape=0.5), size=64), ramp)


def test_images_in_other_proportions_are_of_other_people() -> None:
    """Label k of K becomes n·K + k in shape n, that of nobody stays, and later epochs have none."""
    source = Pictures([0, 1, 2, -1] * 60, size=24)
    labels = source.labels
    augmentation = build_augmentation("none", reshape=0.5, epochs=2)
    plan = BatchPlan(source.labels, batch_size=len(labels), seed=4)
    loader = Loader(source, plan, size=24, workers=0, augmentation=augmentation)
    counts = np.zeros((3, 6), int)
    for epoch, batch in enumerate(loader.batches(0, 3)):
        given, (indices,) = batch.labels.numpy(), plan.epoch(epoch)
        known = labels[indices] >= 0
        assert (given[~known] == -1).all()
        assert (given[known] % 3 == labels[indices][known]).all()
        shapes = [augmentation.shape(d) for d in augmentation.draw(indices, seed=4, epoch=epoch)]
        assert (given[known] // 3 == np.array(shapes)[known]).all()
        counts[epoch] = np.bincount(given[known] // 3, minlength=6)
    assert augmentation.people(3) == 18
    assert build_augmentation("light").people(3) == 3
    # 180 known images: half keep their shape, a tenth gets each of the five others.
    assert 70 < counts[0, 0] < 110
    assert (counts[:2, 1:] > 5).all()
    assert counts[2].tolist() == [180, 0, 0, 0, 0, 0]
