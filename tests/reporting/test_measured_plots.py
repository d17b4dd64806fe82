"""Figures of scores, ROCs and speed show the numbers of their results, computed naively here."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from sphereface2.evaluation.experiment_results import MethodRoc, ParallelResult, ParallelRun
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.results import ScoreHistogram
from sphereface2.reporting.figures.sweep import images_per_second
from sphereface2.reporting.figures.verification import roc_over_seeds, score_distributions
from sphereface2.reporting.style import METHOD_COLOURS

# Made up.
FIRST = RocPoints(far=(0.0, 0.01, 1.0), tar=(0.5, 0.8, 1.0), threshold=(0.9, 0.5, -1.0))
SECOND = RocPoints(far=(0.0, 0.1, 1.0), tar=(0.3, 0.9, 1.0), threshold=(0.9, 0.5, -1.0))


def test_score_distributions_say_the_overlap_of_every_panel() -> None:
    histogram = ScoreHistogram(
        edges=(-1.0, -0.5, 0.0, 0.5, 1.0), genuine=(0, 1, 1, 2), impostor=(50, 30, 20, 0)
    )
    figure = score_distributions([(f"t = {t}", histogram) for t in range(1, 6)])
    assert len(figure.axes) == 5
    for number, axes in enumerate(figure.axes, start=1):
        assert axes.get_title(loc="left") == f"t = {number}"
        assert axes.get_title(loc="right") == "overlap 45.0 %"
        assert axes.get_xlim() == (-1, 1)
    with pytest.raises(ValueError, match="at least one histogram"):
        score_distributions([])


def test_roc_curves_are_means_over_seeds() -> None:
    methods = [MethodRoc("cosface", (FIRST,), 100), MethodRoc("arcface", (FIRST, SECOND), 100)]
    (axes,) = roc_over_seeds(methods, title="ROC").axes
    assert [line.get_color() for line in axes.lines] == [
        METHOD_COLOURS["cosface"],
        METHOD_COLOURS["arcface"],
    ]
    assert axes.get_xlim() == pytest.approx((1 / 100, 1))
    assert list(np.asarray(axes.lines[0].get_ydata())) == pytest.approx([80, 100])
    assert list(np.asarray(axes.lines[1].get_ydata())) == pytest.approx([55, 85, 100])
    assert axes.get_ylim()[0] == pytest.approx(55 - 4)
    assert len(axes.collections) == 1  # the band of the method with two seeds


def test_roc_curves_of_models_that_are_perfect_or_poor_are_seen() -> None:
    perfect = RocPoints(far=(0.0, 0.0), tar=(0.5, 1.0), threshold=(0.9, 0.8))
    poor = RocPoints(far=(0.4, 1.0), tar=(0.1, 1.0), threshold=(0.2, 0.1))
    methods = [MethodRoc("sphereface2", (perfect, perfect), 50), MethodRoc("softmax", (poor,), 50)]
    (axes,) = roc_over_seeds(methods, title="ROC").axes
    drawn = [np.column_stack([line.get_xdata(), line.get_ydata()]).tolist() for line in axes.lines]
    assert drawn[0] == [[0.02, 100], [1, 100]]
    assert drawn[1] == [[0.02, 0], [0.4, 10], [1, 100]]


def test_images_per_second_shows_medians_and_the_ideal() -> None:
    result = ParallelResult(
        identities=1000, dim=8, batch=100, device="cpu", threads=1,
        runs=(
            ParallelRun("cosface", 1, (1.0, 2.0, 9.0)),
            ParallelRun("cosface", 2, (1.0, 1.25, 4.0), exchanges=4, bytes_sent=2e6),
        ),
    )  # fmt: skip
    (axes,) = images_per_second(result).axes
    ideal, measured, _ = axes.lines
    assert list(np.asarray(ideal.get_ydata())) == [50, 100]
    assert list(np.asarray(measured.get_ydata())) == [50, 80]
    assert measured.get_label() == "cosface: 1.60× on 2; 4 exchanges, 2.00 MB a step and rank"
    (steps,) = (each for each in axes.collections if isinstance(each, PathCollection))
    assert np.asarray(steps.get_offsets())[:, 1] == pytest.approx([100, 50, 100 / 9, 100, 80, 25])
    assert ParallelResult.from_json(result.to_json()) == result
