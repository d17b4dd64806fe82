"""Figures: labelled, from results alone, and fit to stand in a page."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from sphereface2.evaluation.results import COMBINED, RAW_PIXELS, UNTRAINED
from sphereface2.reporting.figures import verification as plots
from sphereface2.reporting.history import training_curves
from tests.reporting.example import example_evaluation, example_history

EVALUATION = example_evaluation()
ON_PLAIN = [row for row in EVALUATION.rows if row.set_name == "plain"]


def all_figures() -> list[Figure]:
    return [
        plots.roc_figure(ON_PLAIN),
        plots.det_figure(ON_PLAIN),
        plots.histogram_figure(ON_PLAIN[0]),
        *(plots.curve_figure(curve) for curve in training_curves(example_history())),
    ]


def test_every_axis_is_labelled() -> None:
    for figure in all_figures():
        assert figure.get_suptitle()
        for axes in figure.axes:
            assert axes.get_xlabel()
            assert axes.get_ylabel()


def test_roc_draws_every_model_over_a_logarithmic_far() -> None:
    (axes,) = plots.roc_figure(ON_PLAIN).axes
    assert axes.get_xscale() == "log"
    assert axes.get_xlim() == pytest.approx((1 / 100, 1))
    assert [line.get_label() for line in axes.lines] == ["sphereface2-c", RAW_PIXELS, UNTRAINED]
    assert [line.get_color() for line in axes.lines] == [
        plots.METHOD_COLOURS[name] for name in ("sphereface2-c", RAW_PIXELS, UNTRAINED)
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
    with pytest.raises(ValueError, match="at least one result"):
        plots.roc_figure([])


def test_det_draws_both_errors_over_logarithms() -> None:
    (axes,) = plots.det_figure(ON_PLAIN).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylim() == pytest.approx((1 / 100, 1))
    for line, result in zip(axes.lines, ON_PLAIN, strict=True):
        drawn = set(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))
        points = zip(result.roc.far, result.roc.tar, strict=True)
        assert {(far, 1 - tar) for far, tar in points if far > 0.01 and tar < 0.99} <= drawn
    with pytest.raises(ValueError, match="at least one result"):
        plots.det_figure([])


def test_bands_are_the_intervals_of_the_subject() -> None:
    band = ON_PLAIN[0].roc_band
    assert band is not None
    for figure in (plots.roc_figure(ON_PLAIN), plots.det_figure(ON_PLAIN)):
        (axes,) = figure.axes
        assert len(axes.collections) == 1  # baselines have none: they would hide it
    (path,) = plots.roc_figure(ON_PLAIN).axes[0].collections[0].get_paths()
    corners = {(round(x, 9), round(y, 6)) for x, y in np.asarray(path.vertices)}
    for ends in (band.low, band.high):
        for far, tar in zip(band.far, ends, strict=True):
            assert (round(far, 9), round(100 * tar, 6)) in corners


def test_models_that_are_compared_get_colours_of_their_own() -> None:
    colours = plots.distinct_colours(["cosface", "cosface-2", "run 7", "run 8"])
    assert colours["cosface"] == plots.METHOD_COLOURS["cosface"]
    assert len(set(colours.values())) == 4
    (axes,) = plots.roc_figure(ON_PLAIN[:1], colours={"sphereface2-c": "#123456"}).axes
    assert axes.lines[0].get_color() == "#123456"


def test_histogram_marks_the_threshold() -> None:
    result = ON_PLAIN[0]
    (axes,) = plots.histogram_figure(result, limits=(-1, 1)).axes
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [result.threshold, result.threshold]
    assert axes.texts[0].get_text() == f"{result.threshold:.3f}"
    assert axes.get_xlim() == (-1, 1)


def test_shares_are_drawn_in_percent() -> None:
    curves = {curve.title: curve for curve in training_curves(example_history())}
    (axes,) = plots.curve_figure(curves["Verification accuracy"]).axes
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == pytest.approx([85, 90])


def test_a_method_keeps_its_colour_under_a_longer_label() -> None:
    assert plots.method_colour("sphereface2-a, sfnet64") == plots.METHOD_COLOURS["sphereface2-a"]
    assert plots.method_colour("SphereFace") == plots.METHOD_COLOURS["sphereface"]
    assert plots.method_colour("my net") == plots.method_colour("my net")
    assert plots.set_colour(COMBINED) == plots.SET_COLOURS[COMBINED]
    every_head = set(plots.METHOD_COLOURS) - {"sphereface2"}
    assert len({plots.METHOD_COLOURS[name] for name in every_head}) == len(every_head)


def test_svg_is_well_formed_and_takes_the_colours_of_the_page() -> None:
    for number, figure in enumerate(all_figures()):
        svg = plots.to_svg(figure, name=f"f{number}", description='a "quoted" <figure> & more')
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
        return plots.to_svg(plots.roc_figure(ON_PLAIN), name=name, description="")

    assert drawn("one") == drawn("one")
    one, two = (set(re.findall(r'\bid="([^"]+)"', drawn(name))) for name in ("one", "two"))
    assert one
    assert not one & two


def test_hostile_names_neither_break_the_figure_nor_start_mathematics() -> None:
    name = "</svg><script>a()</script>$\\frac{ $"
    evaluation = example_evaluation(model=name, sets=(name, "other"))
    rows = [row for row in evaluation.rows if row.set_name == name]
    for figure in (plots.roc_figure(rows), plots.histogram_figure(rows[0])):
        svg = plots.to_svg(figure, name="x", description=name)
        assert "<script" not in svg
        root = ET.fromstring(re.sub(r"xlink:href", "href", svg))
        assert name in {text.text for text in root.iter("text")}


def test_a_long_name_is_cut_and_leaves_room_for_the_plot() -> None:
    evaluation = example_evaluation(model="m" * 300, sets=("s" * 300,))
    figure = plots.roc_figure([row for row in evaluation.rows if row.set_name == "s" * 300])
    figure.draw_without_rendering()
    assert figure.get_suptitle() == "s" * 35 + "…"
    assert figure.axes[0].get_position().width > 0.7


def test_drawing_leaves_no_global_state() -> None:
    code = (
        "import sys\n"
        "from sphereface2.reporting.figures import verification as plots\n"
        "import matplotlib\n"
        "before = matplotlib.rcParams.copy()\n"
        "from sphereface2.reporting.history import Curve, Series\n"
        "curve = Curve('t', 'a', (Series('s', (1.0, 2.0), (1.0, 2.0)),))\n"
        "plots.to_svg(plots.curve_figure(curve), name='n', description='d')\n"
        "assert matplotlib.rcParams.copy() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
