"""ROCs over seeds against naive loops, also where a model is perfect or poor."""

import math

import pytest

from sphereface2.evaluation.experiment_results import mean_roc, roc_band, tar_at
from sphereface2.evaluation.metrics import RocPoints

FIRST = RocPoints(far=(0.0, 0.01, 1.0), tar=(0.5, 0.8, 1.0), threshold=(0.9, 0.5, -1.0))
SECOND = RocPoints(far=(0.0, 0.1, 1.0), tar=(0.3, 0.9, 1.0), threshold=(0.9, 0.5, -1.0))
CUT_OFF = RocPoints(far=(0.02, 0.02, 0.3), tar=(0.1, 0.2, 0.6), threshold=(0.9, 0.8, 0.7))
PERFECT = RocPoints(far=(0.0, 0.0), tar=(0.5, 1.0), threshold=(0.9, 0.8))


def naive_tar(roc: RocPoints, far: float) -> float:
    points = zip(roc.far, roc.tar, strict=True)
    return max((tar for reached, tar in points if reached <= far), default=0.0)


@pytest.mark.parametrize(
    ("seeds", "places"),
    [
        ([FIRST], (0.0, 0.01, 1.0)),
        ([FIRST, SECOND], (0.0, 0.01, 0.1, 1.0)),
        ([CUT_OFF], (0.0, 0.02, 0.3)),
        ([PERFECT], (0.0, 1.0)),
        ([PERFECT, PERFECT], (0.0, 1.0)),
        ([PERFECT, CUT_OFF], (0.0, 0.02, 0.3)),
    ],
)
def test_the_mean_stands_at_every_far_from_zero_on(
    seeds: list[RocPoints], places: tuple[float, ...]
) -> None:
    roc = mean_roc(seeds)
    assert roc.far == places
    for far, tar in zip(roc.far, roc.tar, strict=True):
        assert tar == pytest.approx(sum(naive_tar(seed, far) for seed in seeds) / len(seeds))
        assert all(tar_at(seed, far) == naive_tar(seed, far) for seed in seeds)


def test_the_band_is_one_deviation_wide_from_one_impostor_on() -> None:
    band = roc_band([FIRST, SECOND], impostors=49)
    assert band is not None
    assert band.far == (0.1, 1.0)
    for far, low, high in zip(band.far, band.low, band.high, strict=True):
        tars = [naive_tar(seed, far) for seed in (FIRST, SECOND)]
        mean = sum(tars) / 2
        wide = math.sqrt(sum((tar - mean) ** 2 for tar in tars))  # over n - 1 = 1
        assert (low, high) == pytest.approx((mean - wide, min(1.0, mean + wide)))
    # 1 / 49 times 49 is a little less than 1: one impostor counts nevertheless.
    one = RocPoints(far=(1 / 49, 1.0), tar=(0.5, 1.0), threshold=(0.5, -1.0))
    found = roc_band([one, one], impostors=49)
    assert found is not None
    assert found.far == (1 / 49, 1.0)
    assert roc_band([FIRST], impostors=49) is None
