"""Results of many runs: features, ROC over seeds, overlap of scores, speed over ranks."""

import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sphereface2.evaluation.experiment_results import (
    LearnedFeatures,
    ParallelResult,
    ParallelRun,
    SeedRun,
    SweepResult,
    SweepRow,
    mean_roc,
    overlap,
    places_of_both,
    plain_rows,
    roc_band,
    shares,
    standings,
    tar_at,
)
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.verification import ScoreHistogram
from sphereface2.files import write_atomically
from tests.reporting.sweep_example import made_row, made_sweep


def row(*values: float) -> SweepRow:
    runs = tuple(SeedRun(seed, f"{seed}", {"a": value}) for seed, value in enumerate(values))
    failed = SeedRun(9, "9", error="it failed")
    return SweepRow("x", "cosface", (), "train", "", (failed, *runs))


def test_a_setting_has_the_mean_and_deviation_of_the_seeds_that_have_a_number() -> None:
    three = row(1.0, 2.0, 6.0)
    assert three.numbers("a") == [1.0, 2.0, 6.0]
    assert three.mean("a") == 3.0
    assert three.deviation("a") == pytest.approx(math.sqrt(7.0))
    assert three.standard_error("a") == pytest.approx(math.sqrt(7.0 / 3))
    assert (row(4.0).mean("a"), row(4.0).deviation("a")) == (4.0, None)
    assert row(4.0).standard_error("a") is None
    assert row(1.0, 3.0).deviation("a") == pytest.approx(math.sqrt(2.0))
    assert (row().mean("a"), row().deviation("a"), row(1.0).mean("b")) == (None, None, None)


def test_a_sweep_is_judged_by_the_column_named_or_else_the_last() -> None:
    def sweep(judged: str) -> SweepResult:
        rows = (row(1.0, 2.0), row(3.0))
        return SweepResult("n", "t", "quickstart", ("a", "b", "c"), rows, judged=judged)

    assert [sweep(name).judged_by for name in ("", "a", "z")] == ["c", "a", "c"]
    assert sweep("").seeds == (0, 1, 9)
    assert SweepResult.from_json(sweep("a").to_json()) == sweep("a")


@pytest.mark.parametrize("gap", [0.0, 0.3, 0.7, 1.1])
@pytest.mark.parametrize("spread", [0.2, 0.6, 1.5])
def test_level_is_within_two_standard_errors_of_the_difference(gap: float, spread: float) -> None:
    best = (80.0, 81.0, 80.6)
    other = tuple(80.4 - gap + offset for offset in (-spread, 0.0, spread))
    assert statistics.mean(other) < statistics.mean(best)
    result = made_sweep(
        made_row("other", {"combined": other}),
        made_row("best", {"combined": best}),
        columns=("combined",),
    )
    error = math.sqrt(statistics.variance(best) / 3 + statistics.variance(other) / 3)
    near = statistics.mean(best) - statistics.mean(other) < 2 * error
    assert standings(result, "combined") == ["level" if near else "below", "best"]


def test_level_ends_at_two_standard_errors() -> None:
    def standing(*numbers: float) -> str:
        rows = (made_row("a", {"combined": numbers}), made_row("b", {"combined": (80.0, 81.0)}))
        return standings(made_sweep(*rows, columns=("combined",)), "combined")[0]

    # The best has the standard error 0.5, and so has the other: 2 * sqrt(0.5) = 1.41.
    assert standing(78.6, 79.6) == "level"
    assert standing(78.5, 79.5) == "below"


def test_equal_means_are_both_the_best() -> None:
    row = made_row("a", {"combined": (80.0, 81.0)})
    result = made_sweep(row, replace(row, label="b"), columns=("combined",))
    assert standings(result, "combined") == ["best", "best"]


def test_places_are_ranks_among_the_rows_with_both_numbers() -> None:
    numbers = ((70.0, 90.0), (80.0, 95.0), (99.0, None), (80.0, 95.0), (None, 99.0), (75.0, 96.0))
    rows = [
        made_row(
            f"{place}",
            {"combined": (ours,)},
            published={} if paper is None else {"combined": paper},
        )
        for place, (ours, paper) in enumerate(numbers)
    ]
    found = places_of_both(made_sweep(*rows), "combined")
    assert found == [(4, 4), (1, 2), None, (1, 2), None, (3, 1)]


def test_speed_is_that_of_the_median_step_against_the_fewest_ranks() -> None:
    one = ParallelRun("arcface", 1, (0.5, 4.0, 1.0))
    four = ParallelRun("arcface", 4, (0.25, 0.2, 9.0))
    other = ParallelRun("cosface", 2, (1.0,))
    assert (other.exchanges, other.bytes_sent) == (0.0, 0.0)
    result = ParallelResult(1000, 64, 100, "cpu", 1, (four, other, one))
    assert result.methods == ("arcface", "cosface")
    assert result.ranks == (1, 2, 4)
    assert result.of("arcface") == (one, four)
    assert result.images_per_second(one) == 100.0
    assert result.every_rate(one) == [200.0, 25.0, 100.0]
    assert (result.speed_up(four), result.speed_up(one), result.speed_up(other)) == (4.0, 1.0, 1.0)


def test_boundaries_and_gaps_of_learned_features() -> None:
    angles = np.radians([0, 60, 90, 200])
    features = plain_rows(7 * np.stack([np.cos(angles), np.sin(angles)], axis=1))
    classifiers = ((1.0, 0.0), (0.0, 1.0))
    learned = LearnedFeatures(features, (0, 0, 1, 1), classifiers, -6.0, 30.0, 0.3)
    assert (learned.dim, learned.people) == (2, 2)
    # Without adjustment: -b/r = 0.2, and the margin on either side of it.
    assert learned.boundaries == pytest.approx((0.5, 0.2, -0.1))
    assert learned.induced_margin == pytest.approx(0.6)
    first, second = learned.gaps()
    assert first == pytest.approx(0.5, abs=1e-5)
    expected = math.sin(math.radians(200)) - math.sin(math.radians(60))
    assert second == pytest.approx(expected, abs=1e-5)
    assert second < 0
    # g(z) = 2((z + 1) / 2)^2 - 1 maps the boundary back onto the score.
    sharp = LearnedFeatures(features, (0, 0, 1, 1), classifiers, -6.0, 30.0, 0.3, sharpness=2.0)
    adjusted = [2 * ((cosine + 1) / 2) ** 2 - 1 for cosine in sharp.boundaries]
    assert adjusted == pytest.approx([0.5, 0.2, -0.1])
    # A score that no cosine reaches ends at the pole.
    low = LearnedFeatures(features, (0, 0, 1, 1), classifiers, 60.0, 30.0, 0.3)
    assert low.boundaries[2] == -1.0


def test_unit_rows_are_rounded_to_six_digits() -> None:
    assert plain_rows(np.array([[3.0, 4.0], [1.0, 2.0]])) == (
        (0.6, 0.8),
        (0.447214, 0.894427),
    )


def test_a_result_is_a_readable_file_in_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "a.json"
    write_atomically(path, "one")
    write_atomically(path, b"two")
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in path.parent.iterdir()] == ["a.json"]


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


EDGES = (-1.0, -0.5, 0.0, 0.5, 1.0)


def test_the_overlap_is_what_both_distributions_share() -> None:
    histogram = ScoreHistogram(edges=EDGES, genuine=(0, 1, 1, 2), impostor=(50, 30, 20, 0))
    shared = min(0, 0.5) + min(0.25, 0.3) + min(0.25, 0.2) + min(0.5, 0)
    assert overlap(histogram) == pytest.approx(shared)


def test_the_same_distribution_overlaps_wholly_and_an_empty_one_not_at_all() -> None:
    assert overlap(ScoreHistogram(EDGES, (1, 2, 3, 4), (10, 20, 30, 40))) == pytest.approx(1)
    assert overlap(ScoreHistogram(EDGES, (0, 0, 0, 0), (10, 20, 30, 40))) == 0
    assert shares((0, 0)) == [0, 0]
