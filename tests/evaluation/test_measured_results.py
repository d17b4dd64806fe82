"""Results of sweeps, ranks and learned features: the numbers that tables and figures read."""

import math
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
    plain_rows,
)
from sphereface2.files import write_atomically


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
    assert (first.lowest_positive, first.highest_negative) == pytest.approx((0.5, 0.0), abs=1e-5)
    assert first.width == pytest.approx(0.5, abs=1e-5)
    expected = (math.sin(math.radians(200)), math.sin(math.radians(60)))
    assert (second.lowest_positive, second.highest_negative) == pytest.approx(expected, abs=1e-5)
    assert second.width < 0
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
