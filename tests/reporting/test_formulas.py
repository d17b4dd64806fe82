"""The paper's figures of formulas: their lines against the formulas, written out again."""

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from sphereface2.reporting.figures import formulas as paper_plots
from sphereface2.reporting.figures.formulas import margin_picture, softmax_margin
from sphereface2.reporting.style import shades


def naive_softmax(cosine: float, scale: float) -> float:
    logits = [scale * cosine, *[scale * 0.2] * 3]
    return -math.log(math.exp(logits[0]) / sum(math.exp(logit) for logit in logits))


def naive_binary(cosine: float, radius: float) -> float:
    return math.log(1 + math.exp(-radius * cosine)) / radius


def naive_adjustment(cosine: float, t: float) -> float:
    return float(2 * ((cosine + 1) / 2) ** t - 1)


def curves(axes: Axes) -> dict[str, Line2D]:
    """The named lines; what marks a place has no name."""
    return {str(line.get_label()): line for line in axes.lines if line.get_label()[0] != "_"}  # type: ignore[index]  # a label is a string here


def check_curves(axes: Axes, symbol: str, values: list[float], formula: object) -> None:
    assert callable(formula)
    drawn = curves(axes)
    assert list(drawn) == [f"{symbol} = {value:g}" for value in values]
    for value, line in zip(values, drawn.values(), strict=True):
        x = np.asarray(line.get_xdata(), dtype=float)
        assert (x[0], x[-1]) == (-1, 1)
        expected = [formula(cosine, value) for cosine in x]
        assert np.asarray(line.get_ydata()) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_loss_curves_are_the_formulas_of_the_paper() -> None:
    softmax, binary = paper_plots.loss_against_cosine(scales=[1, 30], radii=[1, 10]).axes
    check_curves(softmax, "s", [1, 30], naive_softmax)
    check_curves(binary, "r", [1, 10], naive_binary)
    for axes in (softmax, binary):
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        assert axes.get_title(loc="left")


def test_adjustment_is_drawn_for_each_t_and_the_usual_range_is_marked() -> None:
    (axes,) = paper_plots.similarity_adjustment(sharpness=[1, 2.5, 3]).axes
    check_curves(axes, "t", [1, 2.5, 3], naive_adjustment)
    points = [line.get_xydata()[0] for line in axes.lines if len(line.get_xydata()) == 1]  # type: ignore[arg-type, index]  # both are arrays
    assert np.asarray(points) == pytest.approx(
        np.array([(-0.2, naive_adjustment(-0.2, t)) for t in (1, 2.5, 3)])
    )
    assert "[−0.2, 1]" in axes.texts[0].get_text()


@pytest.mark.parametrize(("first", "second"), [(80, 135), (135, 265), (265, 440)])
def test_softmax_margin_ends_where_one_class_beats_the_other_by_the_margin(
    first: float, second: float
) -> None:
    def lead(angle: float) -> float:
        return math.cos(math.radians(angle - first)) - math.cos(math.radians(angle - second))

    start, stop = softmax_margin(first, second, margin=0.3)
    assert first < start < stop < second
    assert (lead(start), lead(stop)) == pytest.approx((0.3, -0.3))


def test_margin_of_softmax_is_wider_between_near_classifiers_and_never_passes_them() -> None:
    near, far = softmax_margin(0, 50, margin=0.3), softmax_margin(0, 130, margin=0.3)
    assert near[1] - near[0] > 1.5 * (far[1] - far[0])
    # A margin that cannot be had anywhere on the circle takes all there is.
    assert softmax_margin(0, 10, margin=0.9) == pytest.approx((5 - 90, 5 + 90))


def test_margin_picture_shows_both_margins_around_the_threshold() -> None:
    _, right = margin_picture(threshold=0.4, margins=(0.3, 0.2)).axes
    heights = {
        round(float(y[0]), 6)
        for y in (np.asarray(line.get_ydata(), dtype=float) for line in right.lines)
        if len(y) == 2 and y[0] == y[1]
    }
    assert heights == {0.7, 0.4, 0.2, 0.0}
    text = " ".join(text.get_text() for text in right.texts)
    assert all(part in text for part in ("(1)", "(2)", "(3)", "m_p", "m_n", "-b/r"))


def test_shades_go_from_light_to_dark() -> None:
    found = shades("#3b82f6", 4)
    brightness = [sum(int(shade[i : i + 2], 16) for i in (1, 3, 5)) for shade in found]
    assert brightness == sorted(brightness, reverse=True)
    assert len(set(found)) == 4
    assert len(shades("#3b82f6", 1)) == 1
