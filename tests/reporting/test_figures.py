"""Figures of scores, curves and training: from results alone, fit to stand in a page."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from sphereface2.evaluation.experiment_results import MethodRoc, ParallelResult, ParallelRun
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.pair_scores import COMBINED
from sphereface2.evaluation.uncertainty import wilson
from sphereface2.evaluation.verification import (
    RAW_PIXELS,
    UNTRAINED,
    ScoreHistogram,
    VerificationResult,
)
from sphereface2.reporting import style
from sphereface2.reporting.figures import verification as plots
from sphereface2.reporting.figures.sweep import (
    images_per_second,
    roc_over_seeds,
    score_distributions,
)
from sphereface2.reporting.figures.verification import (
    MAX_POINTS,
    AcceptCurve,
    curve_figure,
    training_curves,
)
from sphereface2.reporting.style import METHOD_COLOURS
from tests.reporting.example import example_evaluation, example_history

EVALUATION = example_evaluation()
ON_PLAIN = [row for row in EVALUATION.rows if row.set_name == "plain"]
CURVES = [AcceptCurve.of(row) for row in ON_PLAIN]


def histogram(result: VerificationResult, **options: Any) -> Figure:
    return plots.histogram_figure(
        result.set_name, result.histogram, threshold=result.threshold, **options
    )


def all_figures() -> list[Figure]:
    return [
        plots.roc_figure("plain", CURVES),
        plots.det_figure("plain", CURVES),
        histogram(ON_PLAIN[0]),
        *(curve_figure(curve) for curve in training_curves(example_history())),
    ]


def test_every_axis_is_labelled() -> None:
    assert [
        (figure.get_suptitle(), axes.get_xlabel(), axes.get_ylabel())
        for figure in all_figures()
        for axes in figure.axes
    ] == [
        ("plain", "false accept rate", "true accept rate (%)"),
        ("plain", "false accept rate", "false reject rate"),
        ("plain", "cosine", "pairs"),
        ("Loss", "step", "loss"),
        ("Learning rate", "step", "learning rate"),
        ("Verification accuracy", "step", "accuracy (%)"),
        ("Scores of the head", "step", "mean score"),
        ("Bias", "step", "bias"),
        ("Active negatives", "step", "share of negatives (%)"),
    ]


def test_roc_draws_every_model_over_a_logarithmic_far() -> None:
    (axes,) = plots.roc_figure("plain", CURVES).axes
    assert axes.get_xscale() == "log"
    assert axes.get_xlim() == pytest.approx((1 / 100, 1))
    assert [line.get_label() for line in axes.lines] == ["sphereface2-c", RAW_PIXELS, UNTRAINED]
    assert [line.get_color() for line in axes.lines] == [
        style.METHOD_COLOURS[name] for name in ("sphereface2-c", RAW_PIXELS, UNTRAINED)
    ]
    for line, result in zip(axes.lines, ON_PLAIN, strict=True):
        drawn = set(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))
        points = zip(result.roc.far, result.roc.tar, strict=True)
        assert {(far, 100 * tar) for far, tar in points if far > 1 / 100} <= drawn
        # At the left edge stands the TAR that one impostor pair allows.
        allowed = max(
            t for f, t in zip(result.roc.far, result.roc.tar, strict=True) if f <= 1 / 100
        )
        assert np.asarray(line.get_ydata())[0] == 100 * allowed
    with pytest.raises(ValueError, match="at least one curve"):
        plots.roc_figure("plain", [])


def test_det_draws_both_errors_over_logarithms() -> None:
    (axes,) = plots.det_figure("plain", CURVES).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylim() == pytest.approx((1 / 100, 1))
    for line, result in zip(axes.lines, ON_PLAIN, strict=True):
        drawn = set(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))
        points = zip(result.roc.far, result.roc.tar, strict=True)
        assert {(far, 1 - tar) for far, tar in points if far > 0.01 and tar < 0.99} <= drawn
    with pytest.raises(ValueError, match="at least one curve"):
        plots.det_figure("plain", [])


def test_bands_are_the_intervals_of_the_subject() -> None:
    band = ON_PLAIN[0].roc_band
    assert band is not None
    for figure in (plots.roc_figure("plain", CURVES), plots.det_figure("plain", CURVES)):
        (axes,) = figure.axes
        assert len(axes.collections) == 1  # baselines have none: they would hide it
    (path,) = plots.roc_figure("plain", CURVES).axes[0].collections[0].get_paths()
    corners = {(round(x, 9), round(y, 6)) for x, y in np.asarray(path.vertices)}
    for ends in (band.low, band.high):
        for far, tar in zip(band.far, ends, strict=True):
            assert (round(far, 9), round(100 * tar, 6)) in corners


def test_models_that_are_compared_get_colours_of_their_own() -> None:
    colours = style.distinct_colours(["cosface", "cosface-2", "run 7", "run 8"])
    assert colours["cosface"] == style.METHOD_COLOURS["cosface"]
    assert len(set(colours.values())) == 4
    (axes,) = plots.roc_figure("plain", [replace(CURVES[0], colour="#123456")]).axes
    assert axes.lines[0].get_color() == "#123456"


def test_histogram_marks_the_threshold() -> None:
    result = ON_PLAIN[0]
    (axes,) = histogram(result, limits=(-1, 1)).axes
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [result.threshold, result.threshold]
    assert axes.texts[0].get_text() == f"{result.threshold:.3f}"
    assert axes.get_xlim() == (-1, 1)


def test_marked_rates_stand_on_both_curves_with_their_intervals() -> None:
    rate = wilson(90, 100)
    curve = replace(CURVES[0], marks=[(0.1, rate)])
    for figure, base, scale in (
        (plots.roc_figure("x", [curve]), 0, 100),
        (plots.det_figure("x", [curve]), 1, -1),
    ):
        (bars,) = figure.axes[0].containers
        assert isinstance(bars, ErrorbarContainer)
        line, _, (spans,) = bars.lines
        assert line is not None
        assert np.asarray(line.get_xydata()).tolist() == [[0.1, pytest.approx(base + scale * 0.9)]]
        ends = sorted(base + scale * end for end in (rate.interval.low, rate.interval.high))
        assert np.asarray(spans.get_segments())[0, :, 1] == pytest.approx(ends)


def test_scores_are_drawn_as_pairs_shares_and_densities() -> None:
    scores = ScoreHistogram(edges=(-1.0, 0.0, 0.5), genuine=(1, 3), impostor=(30, 10))
    axes = Figure().add_subplot()
    assert plots.draw_scores(axes, scores) == ([30, 10], [1, 3])
    assert plots.draw_scores(axes, scores, per="share") == ([75, 25], [25, 75])
    assert plots.draw_scores(axes, scores, per="density") == ([0.75, 0.5], [0.25, 1.5])
    shares = plots.histogram_figure("x", scores, per="share", thresholds=(0.1, 0.3))
    assert shares.axes[0].get_ylabel() == "share of its kind (%)"
    marks = [float(np.asarray(line.get_xdata())[0]) for line in shares.axes[0].lines]
    assert marks == [0.1, 0.3]


def test_shares_are_drawn_in_percent() -> None:
    curves = {curve.title: curve for curve in training_curves(example_history())}
    (axes,) = curve_figure(curves["Verification accuracy"]).axes
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == pytest.approx([85, 90])


def test_a_method_keeps_its_colour_under_a_longer_label() -> None:
    assert style.method_colour("sphereface2-a, sfnet64") == style.METHOD_COLOURS["sphereface2-a"]
    assert style.method_colour("SphereFace") == style.METHOD_COLOURS["sphereface"]
    assert style.method_colour("my net") == "#0ea5e9"
    assert style.set_colour(COMBINED) == style.SET_COLOURS[COMBINED]
    every_head = set(style.METHOD_COLOURS) - {"sphereface2"}
    assert len({style.METHOD_COLOURS[name] for name in every_head}) == len(every_head)


def test_svg_is_well_formed_and_takes_the_colours_of_the_page() -> None:
    for number, figure in enumerate(all_figures()):
        svg = style.to_svg(figure, name=f"f{number}", description='a "quoted" <figure> & more')
        root = ET.fromstring(re.sub(r"xlink:href", "href", svg))
        assert root.tag == "svg"
        assert root.attrib["aria-label"] == 'a "quoted" <figure> & more'
        assert "width" not in root.attrib
        assert "viewBox" in root.attrib
        assert "http" not in svg
        assert "var(--ink)" in svg
        assert "var(--sans)" in svg
        assert "DejaVu" not in svg
        assert figure.get_suptitle() in {text.text for text in root.iter("text")}


def test_svg_is_the_same_each_time_and_its_references_differ_between_figures() -> None:
    def drawn(name: str) -> str:
        return style.to_svg(plots.roc_figure("plain", CURVES), name=name, description="")

    assert drawn("one") == drawn("one")
    one, two = (set(re.findall(r'\bid="([^"]+)"', drawn(name))) for name in ("one", "two"))
    assert one
    assert not one & two


def test_hostile_names_neither_break_the_figure_nor_start_mathematics() -> None:
    name = "</svg><script>a()</script>$\\frac{ $"
    evaluation = example_evaluation(model=name, sets=(name, "other"))
    rows = [row for row in evaluation.rows if row.set_name == name]
    for figure in (
        plots.roc_figure(name, [AcceptCurve.of(row) for row in rows]),
        histogram(rows[0]),
    ):
        style.show_legend(figure.axes[0])
        svg = style.to_svg(figure, name="x", description=name)
        assert "<script" not in svg
        root = ET.fromstring(re.sub(r"xlink:href", "href", svg))
        assert name in {text.text for text in root.iter("text")}


def test_a_long_name_is_cut_and_leaves_room_for_the_plot() -> None:
    evaluation = example_evaluation(model="m" * 300, sets=("s" * 300,))
    curves = [AcceptCurve.of(row) for row in evaluation.rows if row.set_name == "s" * 300]
    figure = plots.roc_figure("s" * 300, curves)
    style.show_legend(figure.axes[0])
    figure.draw_without_rendering()
    assert figure.get_suptitle() == "s" * 35 + "…"
    assert figure.axes[0].get_position().width > 0.7


def test_drawing_leaves_no_global_state() -> None:
    code = (
        "import sys\n"
        "from sphereface2.reporting import style\n"
        "from sphereface2.reporting.figures import verification\n"
        "import matplotlib\n"
        "before = matplotlib.rcParams.copy()\n"
        "from sphereface2.reporting.figures.verification import Curve, Series, curve_figure\n"
        "curve = Curve('t', 'a', (Series('s', (1.0, 2.0), (1.0, 2.0)),))\n"
        "style.to_svg(curve_figure(curve), name='n', description='d')\n"
        "assert matplotlib.rcParams.copy() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
    assert measured.get_label() == "cosface: 1.60× on 2; 4 exchanges, 2.00 MB per step and rank"
    (steps,) = (each for each in axes.collections if isinstance(each, PathCollection))
    assert np.asarray(steps.get_offsets())[:, 1] == pytest.approx([100, 50, 100 / 9, 100, 80, 25])
    assert ParallelResult.from_json(result.to_json()) == result


def test_every_logged_quantity_has_its_curve() -> None:
    curves = {curve.title: curve for curve in training_curves(example_history())}
    assert list(curves) == [
        "Loss",
        "Learning rate",
        "Verification accuracy",
        "Scores of the head",
        "Bias",
        "Active negatives",
    ]
    accuracy = curves["Verification accuracy"]
    assert [series.label for series in accuracy.series] == ["plain", "combined"]
    assert accuracy.series[0].steps == (100, 200)
    assert accuracy.series[0].values == pytest.approx((0.85, 0.9))
    assert accuracy.percent
    assert [series.label for series in curves["Scores of the head"].series] == [
        "same person",
        "other people",
    ]
    assert curves["Bias"].series[0].values[0] == pytest.approx(2.1)


def test_what_a_head_adds_of_its_own_is_shown_too() -> None:
    lines = [{"kind": "train", "step": 1, "loss": 1.0, "head": {"mean_norm": 20.0}}]
    assert [curve.title for curve in training_curves(lines)] == ["Loss", "Mean norm"]


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"kind": "train"},
        {"kind": "train", "step": 1},
        {"kind": "train", "step": None, "loss": 1.0},
        {"kind": "train", "step": 1, "loss": None, "head": None},
        {"kind": "train", "step": 1, "loss": math.nan, "head": {"bias": "none"}},
        {"kind": "evaluation", "step": 1, "metrics": None},
        {"kind": "evaluation", "step": 1, "metrics": {"plain": None}},
        {"kind": "something new", "step": 1, "loss": 1.0},
    ],
)
def test_gaps_in_the_log_are_left_out(line: dict[str, Any]) -> None:
    assert training_curves([line]) == ()
    assert training_curves([line, *example_history()]) == training_curves(example_history())


def test_a_step_that_was_logged_twice_counts_once() -> None:
    lines = [
        {"kind": "train", "step": step, "loss": loss} for step, loss in [(1, 9), (2, 8), (1, 5)]
    ]
    (loss,) = training_curves(lines)
    assert loss.series[0].steps == (1, 2)
    assert loss.series[0].values == (5, 8)


def test_a_long_log_is_shortened_to_means() -> None:
    lines = [{"kind": "train", "step": step, "loss": float(step)} for step in range(1, 1001)]
    (loss,) = training_curves(lines)
    assert len(loss.series[0].steps) == 250 <= MAX_POINTS
    assert loss.series[0].values[0] == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert loss.series[0].steps == loss.series[0].values
