"""Resizing, and the choice of the images that are shown mirrored."""

import numpy as np
import pytest

from sphereface2.data.transforms import fit_into, mirrored, resize


def test_resize_averages_over_areas() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    image[:2, :2] = [[[0], [40]], [[80], [120]]]
    small = resize(image, 2)
    assert small.dtype == np.uint8
    assert small[0, 0].tolist() == [60, 60, 60]
    assert small[1, 1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("factor", [3, 5])
def test_every_pixel_counts_when_an_image_shrinks_by_much(factor: int) -> None:
    # At a factor of 2 a bilinear resize averages too; from 3 on it looks at 4 pixels of each area.
    image = np.random.default_rng(0).integers(0, 256, (4 * factor, 4 * factor, 3), np.uint8)
    areas = image.reshape(4, factor, 4, factor, 3).mean(axis=(1, 3))
    assert abs(resize(image, 4) - areas).max() <= 0.5 + 1e-6


def test_resize_leaves_an_image_of_the_right_size_alone() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    assert resize(image, 4) is image
    assert resize(np.zeros((4, 6, 3), np.uint8), 4).shape == (4, 4, 3)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("size", [4, 7])
def test_an_image_is_fitted_into_its_place_of_a_batch(mirror: bool, size: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (size, size, 3), np.uint8)
    image.flags.writeable = False
    batch = np.zeros((3, 4, 4, 3), np.uint8)
    fit_into(batch[1], image, mirror=mirror)
    expected = resize(image, 4)
    assert (batch[1] == (expected[:, ::-1] if mirror else expected)).all()
    assert not batch[[0, 2]].any()
    # A view that is not a block of memory, as a source may give.
    fit_into(batch[1], image[::-1, ::-1], mirror=mirror)
    turned = resize(np.ascontiguousarray(image[::-1, ::-1]), 4)
    assert (batch[1] == (turned[:, ::-1] if mirror else turned)).all()


def test_mirroring_depends_on_seed_epoch_and_index_only() -> None:
    indices = np.arange(1000)
    flips = mirrored(indices, seed=3, epoch=5)
    order = np.random.default_rng(0).permutation(1000)
    assert (mirrored(order, seed=3, epoch=5) == flips[order]).all()
    assert (mirrored(indices[7:8], seed=3, epoch=5) == flips[7:8]).all()


def test_mirroring_is_fair_and_independent_between_epochs_seeds_and_neighbours() -> None:
    indices = np.arange(20_000)
    flips = mirrored(indices, seed=0, epoch=0)
    others = [
        mirrored(indices, seed=0, epoch=1),
        mirrored(indices, seed=1, epoch=0),
        mirrored(indices + 1, seed=0, epoch=0),
        mirrored(indices + 2, seed=0, epoch=0),
        mirrored(indices + 64, seed=0, epoch=0),
    ]
    # Four deviations of a fair coin at 20,000 throws are 1.4 %.
    assert abs(flips.mean() - 0.5) < 0.015
    for other in others:
        assert abs((flips == other).mean() - 0.5) < 0.015
