"""The paper's figures that need no data: loss over the cosine, adjustment g, angular margins."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Circle, Polygon, Wedge

from sphereface2.heads.cosine import adjust
from sphereface2.heads.proxy import ProxyHead
from sphereface2.heads.softmax import NormFace
from sphereface2.heads.sphereface2 import SphereFace2
from sphereface2.reporting.style import (
    INK,
    MUTED,
    PERSON_COLOURS,
    method_colour,
    prepare_axes,
    shades,
)

Curve = npt.NDArray[np.float64]
WIDTH = 7.2  # inches: two cards of a page side by side
_OTHERS = 0.2  # the cosine of every class but the target, as the paper fixes it
_FOUND = (-0.2, 1.0)  # where the paper finds most cosines of pairs


def loss_against_cosine(
    *, scales: Sequence[float] = (1, 3, 10, 30), radii: Sequence[float] = (1, 3, 10, 30)
) -> Figure:
    """What a sample costs over its target's cosine: softmax for several s, L_e for several r."""
    figure = Figure(figsize=(WIDTH, 2.9), layout=ConstrainedLayoutEngine(wspace=0.06))
    softmax, binary = figure.subplots(1, 2)
    cosines = np.linspace(-1, 1, 81)
    _prepare(softmax, f"(a) softmax, three other classes at cos θ = {_OTHERS:g}", "loss")
    for scale, colour in zip(scales, shades(method_colour("normface"), len(scales)), strict=True):
        losses = _losses(NormFace(2, 4, scale=scale), cosines)
        _draw(softmax, cosines, losses, f"s = {scale:g}", colour)
    _prepare(binary, "(b) SphereFace2, the positive term (λ = 1)", "loss")
    for radius, colour in zip(radii, shades(method_colour("sphereface2"), len(radii)), strict=True):
        head = SphereFace2(
            2, 2, balance=1.0, radius=radius, margin=0.0, sharpness=1.0, loss_weight=1, bias="none"
        )
        _draw(binary, cosines, _losses(head, cosines), f"r = {radius:g}", colour)
    for axes in (softmax, binary):
        axes.set_ylim(bottom=0)
        axes.set_xlabel("cos θ of the target class", fontsize=8.5, color=MUTED)
        _legend(axes, loc="upper right")
    return figure


def similarity_adjustment(*, sharpness: Sequence[float] = (1, 2, 3, 4, 5)) -> Figure:
    """g(z) for several t, and what it makes of the range where cosines are found."""
    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    axes: Axes = figure.add_subplot()
    _prepare(axes, "g(z) = 2 ((z + 1) / 2)ᵗ − 1", "g(cos θ)")
    axes.set_xlabel("cos θ", fontsize=8.5, color=MUTED)
    cosines = np.linspace(-1, 1, 201)
    colours = shades(method_colour("sphereface2"), len(sharpness))
    axes.axvspan(*_FOUND, color=method_colour("sphereface2"), alpha=0.07, linewidth=0)
    low, high = _FOUND
    for t, colour in zip(sharpness, colours, strict=True):
        _draw(axes, cosines, _adjusted(cosines, t), f"t = {t:g}", colour)
        reached = float(_adjusted(np.array([low]), t)[0])
        axes.plot(low, reached, "o", markersize=5, color=colour, markeredgecolor="white")
    axes.set_ylim(-1.03, 1.03)
    axes.set_yticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
    axes.text(
        low + 0.04,
        0.97,
        f"[{low:g}, {high:g}]: where cosines lie".replace("-", "−"),
        va="top",
        fontsize=8,
        color=MUTED,
    )
    _legend(axes, loc="upper left")
    return figure


def _losses(head: ProxyHead, cosines: Curve) -> Curve:
    """What the head itself charges for one sample whose cosine to its class takes these values."""
    sample, target = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    losses = []
    with torch.no_grad():
        # The sample stands still; the classifiers are put around it at the angles that are asked.
        head.weight[:] = _direction(_OTHERS)
        for cosine in cosines:
            head.weight[0] = _direction(float(cosine))
            losses.append(float(head(sample, target)))
    return np.asarray(losses)


def _direction(cosine: float) -> torch.Tensor:
    return torch.tensor([cosine, math.sqrt(max(0.0, 1 - cosine**2))])


def _adjusted(cosines: Curve, sharpness: float) -> Curve:
    return np.asarray(adjust(torch.from_numpy(cosines), sharpness).numpy())


def _prepare(axes: Axes, title: str, y_label: str) -> None:
    prepare_axes(axes, "", y_label)
    axes.set_title(title, loc="left", fontsize=8.5, fontweight="bold", color=INK)
    axes.set_xlim(-1, 1)
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])


def _draw(axes: Axes, x: Curve, y: Curve, label: str, colour: str) -> None:
    axes.plot(x, y, color=colour, linewidth=2.0, label=label, solid_capstyle="round")


def _legend(axes: Axes, *, loc: Literal["upper left", "upper right"]) -> None:
    axes.legend(fontsize=8, frameon=False, labelcolor=MUTED, loc=loc, handlelength=1.6)


# -- angular margins: between two classifiers, and around one threshold ----------------------------

_MARGIN = 0.3
_EDGE = "#b9c0ca"
_DASHES = (0, (4, 2.5))
_ARROW = {"arrowstyle": "-|>", "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 12}
_SPAN = _ARROW | {"arrowstyle": "<|-|>", "linewidth": 0.9, "mutation_scale": 7, "color": INK}


def margin_picture(
    *,
    threshold: float = 0.46,
    margins: tuple[float, float] = (0.23, 0.23),
) -> Figure:
    """Where the margin of a softmax loss lies, and where that of SphereFace2.

    On the left three classifiers with CosFace's margin; on the right one binary classifier with the
    cosine `threshold` -b/r and its two `margins`, m_p and m_n.
    """
    figure = Figure(figsize=(WIDTH, 3.5))
    left: Axes = figure.add_axes((0.0, 0.0, 0.43, 0.88))
    right: Axes = figure.add_axes((0.45, 0.0, 0.55, 0.88))
    _softmax_side(left)
    _binary_side(right, threshold, *margins)
    _title(
        figure,
        0.015,
        f"(a) softmax losses (CosFace, m = {_MARGIN:g})",
        "the margin depends on the neighbour",
    )
    _title(
        figure,
        0.47,
        "(b) SphereFace2",
        "the margin lies around one threshold, the same for every class",
    )
    return figure


def softmax_margin(first: float, second: float, *, margin: float) -> tuple[float, float]:
    """The angles (degrees) between two classifiers where the region of either one ends.

    CosFace: cos(φ-a) - m = cos(φ-b) and its mirror image, so φ = (a+b)/2 ∓ asin(m / 2sin((b-a)/2)).
    """
    half = math.radians(second - first) / 2
    reach = math.degrees(math.asin(min(1.0, margin / (2 * math.sin(half)))))
    return (first + second) / 2 - reach, (first + second) / 2 + reach


def _softmax_side(axes: Axes) -> None:
    _circle(axes, x=(-1.4, 1.4))
    directions = (80, 135, 265)  # degrees
    following = [*directions[1:], directions[0] + 360]
    spans = [
        softmax_margin(first, second, margin=_MARGIN)
        for first, second in zip(directions, following, strict=True)
    ]
    for (start, stop), first, second in zip(spans, directions, following, strict=True):
        axes.add_patch(Wedge((0, 0), 1, start, stop, facecolor="#eef0f3", edgecolor="none"))
        for end in (start, stop):
            axes.plot(*np.outer((0, 1), _at(end)).T, color=_EDGE, linewidth=0.9)
        middle = (first + second) / 2
        axes.plot(*np.outer((0, 1), _at(middle)).T, color=INK, linewidth=1.1, linestyle=_DASHES)
        _arc(axes, start, stop, colour=MUTED)
        x, y = 1.27 * _at(middle)
        axes.text(x, y, f"{stop - start:.0f}°", fontsize=8.5, color=INK, ha="center", va="center")
    # A class owns the arc from the end of the margin before it to the start of the one after.
    for person, direction in enumerate(directions):
        before, after = spans[person - 1][1] - (360 if person == 0 else 0), spans[person][0]
        colour = PERSON_COLOURS[person]
        _own_arc(axes, before, after, colour)
        reach = min(14.0, 0.8 * (direction - before), 0.8 * (after - direction))
        _samples(axes, direction, reach, colour)
        _classifier(axes, direction, f"$W_{person + 1}$", colour)
    x, y = 0.58 * _at(directions[-1] + 51)
    note = "dashed: halfway\nto the neighbour"
    axes.text(x, y, note, fontsize=8, color=MUTED, ha="center", va="center")


def _binary_side(axes: Axes, threshold: float, positive: float, negative: float) -> None:
    _circle(axes, x=(-1.1, 2.48))
    own, other = PERSON_COLOURS[0], "#8b95a3"
    levels = (threshold + positive, threshold, threshold - negative)
    ends = [math.degrees(math.acos(level)) for level in levels]
    for low, high, shade in ((levels[1], levels[0], 0.22), (levels[2], levels[1], 0.10)):
        axes.add_patch(Polygon(_band(low, high), facecolor=own, alpha=shade, edgecolor="none"))
    texts = (
        "(1)  $r(\\cos\\theta - m_p) + b = 0$",
        "(2)  $r\\,\\cos\\theta + b = 0$",
        "(3)  $r(\\cos\\theta + m_n) + b = 0$",
    )
    for level, text, dashed in zip(levels, texts, (False, True, False), strict=True):
        half = math.sqrt(1 - level**2)
        axes.plot(
            [-half, half],
            [level, level],
            color=INK if dashed else own,
            linewidth=1.2 if dashed else 1.5,
            linestyle=_DASHES if dashed else "-",
        )
        axes.text(1.07, level, text, fontsize=9, color=INK, va="center")
    axes.plot([-1, 1], [0, 0], color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.text(1.07, -0.03, "$\\cos\\theta = 0$", fontsize=9, color=MUTED, va="center")
    # From the top, where θ = 0, to either side.
    _own_arc(axes, 90 - ends[0], 90 + ends[0], own)
    _own_arc(axes, 90 + ends[2], 450 - ends[2], other)
    _samples(axes, 90, 0.75 * ends[0], own)
    for person, direction in enumerate((205, 255, 300, 345), start=1):
        _samples(axes, direction, 7, PERSON_COLOURS[person])
    _classifier(axes, 90, "$W_i$", own)
    for x, low, high, text in (
        (0.3, levels[1], levels[0], "$m_p$"),
        (0.3, levels[2], levels[1], "$m_n$"),
        (-0.45, 0.0, levels[1], "$-b/r$"),
    ):
        axes.annotate("", xy=(x, high), xytext=(x, low), arrowprops=_SPAN)
        side, align = (0.05, "left") if x > 0 else (-0.05, "right")
        # The middle of -b/r is crossed by a boundary; below it there is room.
        height = (low + high) / 2 if x > 0 else levels[2] / 2
        axes.text(x + side, height, text, fontsize=9, color=INK, ha=align, va="center")
    axes.text(0.5, 1.02, "person $i$", fontsize=8.5, color=own)
    axes.text(0, -1.2, "everybody else", fontsize=8.5, color=MUTED, ha="center", va="center")


# -- the parts of a picture ------------------------------------------------------------------------


def _circle(axes: Axes, *, x: tuple[float, float]) -> None:
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(*x)
    axes.set_ylim(-1.34, 1.34)
    axes.add_patch(Circle((0, 0), 1, facecolor="white", edgecolor=_EDGE, linewidth=1))


def _title(figure: Figure, x: float, title: str, remark: str) -> None:
    figure.text(x, 0.95, title, fontsize=9.5, fontweight="bold", color=INK, va="center")
    figure.text(x, 0.89, remark, fontsize=8.5, color=MUTED, va="center")


def _at(degrees: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The point of the circle at an angle, or a row for each of several."""
    turn = np.radians(degrees)
    return np.stack([np.cos(turn), np.sin(turn)], axis=-1)


def _classifier(axes: Axes, direction: float, name: str, colour: str) -> None:
    axes.annotate(
        "", xy=tuple(0.93 * _at(direction)), xytext=(0, 0), arrowprops=_ARROW | {"color": colour}
    )
    x, y = 1.17 * _at(direction)
    axes.text(x, y, name, fontsize=11, color=colour, ha="center", va="center")


def _own_arc(axes: Axes, start: float, stop: float, colour: str) -> None:
    points = _at(np.linspace(start, stop, 120))
    axes.plot(*points.T, color=colour, linewidth=3.2, solid_capstyle="butt")


def _arc(axes: Axes, start: float, stop: float, *, colour: str) -> None:
    """How wide a margin is, beside the circle, with a tick at either end."""
    points = 1.09 * _at(np.linspace(start, stop, 40))
    axes.plot(*points.T, color=colour, linewidth=1.0)
    for end in (start, stop):
        tick = np.outer((1.06, 1.12), _at(end))
        axes.plot(*tick.T, color=colour, linewidth=1.0)


def _samples(axes: Axes, direction: float, reach: float, colour: str) -> None:
    """Some samples of one class on the circle, denser in the middle."""
    steps = np.array([-1, -0.66, -0.4, -0.18, 0, 0.18, 0.4, 0.66, 1])
    x, y = _at(direction + reach * steps).T
    axes.scatter(x, y, s=20, color=colour, edgecolor="white", linewidth=0.6, zorder=4)


def _band(low: float, high: float) -> npt.NDArray[np.float64]:
    """The part of the unit disc between two heights."""
    turn = np.linspace(math.degrees(math.asin(low)), math.degrees(math.asin(high)), 40)
    return _at(np.concatenate([turn, 180 - turn[::-1]]))


DRAWINGS: Mapping[str, tuple[str, Callable[[], Figure]]] = {
    "loss": ("Loss over the cosine with the own class", loss_against_cosine),
    "margin": ("Angular margins", margin_picture),
    "adjustment": ("The similarity adjustment g", similarity_adjustment),
}
"""By name: what stands below the figure, and what draws it."""
