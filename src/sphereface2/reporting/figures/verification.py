"""Figures of results: ROC, DET, score histograms, training curves. They draw and compute nothing.

Every figure is built with matplotlib's object interface, so no global state is touched. `to_svg`
turns one into markup for a page: its text stays text and its ink takes the page's colours, so one
figure serves light and dark pages.
"""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.results import (
    COMBINED,
    RAW_PIXELS,
    UNTRAINED,
    RocBand,
    VerificationResult,
)
from sphereface2.reporting.history import Curve

# One colour a method, in every figure of the project; all are legible on white and on near-black.
METHOD_COLOURS = {
    "sphereface2-c": "#3b82f6",
    "sphereface2-a": "#06b6d4",
    "sphereface2-m": "#8b5cf6",
    "sphereface2": "#3b82f6",
    "softmax": "#a3836a",
    "normface": "#b45309",
    "sphereface": "#10b981",
    "cosface": "#f59e0b",
    "arcface": "#ef4444",
    "curricularface": "#ec4899",
    "circle": "#84cc16",
    "magface": "#d946ef",
    "adaface": "#14b8a6",
    "contrastive": "#65a30d",
    "triplet": "#0ea5e9",
    "simple": "#f97316",
    "deepid2": "#a855f7",
    "ring": "#e11d48",
    RAW_PIXELS: "#828a96",
    UNTRAINED: "#b3bac4",
}
SET_COLOURS = {
    "plain": "#3b82f6",
    "age-30": "#10b981",
    "cross-age": "#f59e0b",
    "cross-pose": "#ec4899",
    COMBINED: "#8b5cf6",
}
# A colour a person in pictures of features; neighbours in the list are well apart.
PERSON_COLOURS = ("#3b82f6", "#f59e0b", "#8b5cf6", "#10b981", "#ec4899", "#64748b")
GENUINE_COLOUR = "#14b8a6"
IMPOSTOR_COLOUR = "#f97316"
_OTHERS = ("#6366f1", "#0ea5e9", "#84cc16", "#ef4444", "#d946ef", "#a16207")
_BASELINES = (RAW_PIXELS, UNTRAINED)

# Colours of the page: hex for a figure on its own, CSS variables once it is inside a page.
INK, MUTED, GRID = "#1e2530", "#5c6673", "#e3e6ea"
_PAGE_COLOURS = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)"}

_SIZE = (3.6, 2.75)  # inches: a card a third of a page wide, with text of about its page's size


class DrawnRoc(Protocol):
    """What a ROC is drawn from, such as a verification result."""

    @property
    def model(self) -> str: ...
    @property
    def set_name(self) -> str: ...
    @property
    def impostor(self) -> int: ...
    @property
    def roc(self) -> RocPoints: ...
    @property
    def roc_band(self) -> RocBand | None: ...


def method_colour(model: str) -> str:
    """The colour of a model by the longest method name that its label starts with."""
    known = [name for name in METHOD_COLOURS if model.lower().startswith(name)]
    return METHOD_COLOURS[max(known, key=len)] if known else _other(model)


def set_colour(name: str) -> str:
    return SET_COLOURS.get(name) or _other(name)


def distinct_colours(models: Sequence[str]) -> dict[str, str]:
    """A colour for each of several models: its method's own, as long as no other has it."""
    colours: dict[str, str] = {}
    for model in models:
        spare = [c for c in (method_colour(model), *_OTHERS) if c not in colours.values()]
        colours[model] = spare[0] if spare else method_colour(model)
    return colours


def roc_figure(
    results: Sequence[DrawnRoc],
    *,
    legend: bool = True,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """The ROC curves of several models on one set, over a logarithmic FAR axis.

    A step shows the TAR at the FAR reached, a band its interval. The axis starts at one impostor
    pair: the pairs say nothing about rarer errors.
    """
    if not results:
        raise ValueError("a ROC figure needs at least one result")
    figure, axes = axes_of(results[0].set_name, "false accept rate", "true accept rate (%)")
    leftmost = 1 / max(result.impostor for result in results)
    for result in results:
        # From the best point at the left edge on: what lies before has no place on this axis.
        start = sum(far <= leftmost for far in result.roc.far) - 1
        axes.plot(
            [max(far, leftmost) for far in result.roc.far[start:]],
            [100 * tar for tar in result.roc.tar[start:]],
            drawstyle="steps-post",
            **_line_style(result, colours),
        )
        if result.roc_band is not None and result.model not in _BASELINES:
            band = result.roc_band
            low, high = ([100 * tar for tar in ends] for ends in (band.low, band.high))
            _band(axes, band.far, low, high, _colour(result, colours))
    axes.set_ylim(0, 101.5)
    _far_axis(axes, leftmost)
    if legend:
        show_legend(axes)
    return figure


def det_figure(
    results: Sequence[VerificationResult],
    *,
    legend: bool = True,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """The two error rates of several models on one set, both over logarithmic axes.

    The axes start at one impostor and one genuine pair.
    """
    if not results:
        raise ValueError("a DET figure needs at least one result")
    figure, axes = axes_of(results[0].set_name, "false accept rate", "false reject rate")
    leftmost = 1 / max(result.impostor for result in results)
    lowest = 1 / max(result.genuine for result in results)
    for result in results:
        start = sum(far <= leftmost for far in result.roc.far) - 1
        axes.plot(
            [max(far, leftmost) for far in result.roc.far[start:]],
            [max(1 - tar, lowest / 2) for tar in result.roc.tar[start:]],
            drawstyle="steps-post",
            **_line_style(result, colours),
        )
        if result.roc_band is not None and result.model not in _BASELINES:
            band = result.roc_band
            low, high = (
                [max(1 - tar, lowest / 2) for tar in ends] for ends in (band.high, band.low)
            )
            _band(axes, band.far, low, high, _colour(result, colours))
    axes.set_yscale("log")
    axes.set_ylim(lowest, 1)
    _far_axis(axes, leftmost)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    if legend:
        show_legend(axes)
    return figure


def histogram_figure(
    result: VerificationResult, *, limits: tuple[float, float] | None = None, legend: bool = True
) -> Figure:
    """How the scores of genuine and impostor pairs lie, with the mean fold threshold marked."""
    histogram = result.histogram
    figure, axes = axes_of(result.set_name, "cosine", "pairs")
    for counts, colour, label in (
        (histogram.impostor, IMPOSTOR_COLOUR, "different people"),
        (histogram.genuine, GENUINE_COLOUR, "same person"),
    ):
        axes.stairs(counts, histogram.edges, color=colour, alpha=0.3, fill=True)
        axes.stairs(counts, histogram.edges, color=colour, linewidth=1.4, label=label)
    axes.axvline(
        result.threshold, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), label="threshold"
    )
    low, high = limits or (histogram.edges[0], histogram.edges[-1])
    axes.set_xlim(low, high)
    axes.set_ylim(0, 1.18 * max(*histogram.genuine, *histogram.impostor, 1))
    left_half = result.threshold < (low + high) / 2
    axes.annotate(
        f"{result.threshold:.3f}",
        (result.threshold, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4 if left_half else -4, -3),
        textcoords="offset points",
        ha="left" if left_half else "right",
        va="top",
        fontsize=8,
        color=INK,
    )
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    if legend:
        show_legend(axes)
    return figure


def curve_figure(curve: Curve, *, legend: bool = True) -> Figure:
    """One training curve over the steps of the run."""
    figure, axes = axes_of(curve.title, "step", curve.axis)
    for series in curve.series:
        values = [100 * value for value in series.values] if curve.percent else series.values
        axes.plot(
            series.steps,
            values,
            label=_short(series.label),
            color=series_colour(series.label),
            linewidth=1.7,
            # Few points, as evaluations are, should be seen as such; a single one has no line.
            marker="o" if len(series.steps) <= 25 else None,
            markersize=3.2,
        )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.margins(x=0.02, y=0.08)
    if legend and len(curve.series) > 1:
        show_legend(axes)
    return figure


def series_colour(label: str) -> str:
    """The colour of a training series: sets have their own, other quantities are blue."""
    fixed = {"same person": GENUINE_COLOUR, "other people": IMPOSTOR_COLOUR}
    quantities = ("loss", "learning rate", "bias", "active negatives")
    if label in quantities:
        return METHOD_COLOURS["sphereface2"]
    return fixed.get(label) or set_colour(label)


def to_svg(figure: Figure, *, name: str, description: str) -> str:
    """Markup of the figure to stand inside an HTML page.

    `name` must be unique in the page: it keeps the inner references of its figures apart.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    markup = buffer.getvalue()
    markup = markup[markup.index("<svg") :]
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup, flags=re.DOTALL)
    markup = re.sub(r'<g id="[^"]*"', "<g", markup)
    markup = re.sub(r"<!--.*?-->", "", markup, flags=re.DOTALL)
    # A figure fills its place in the page; its view box keeps the shape.
    opening = re.sub(
        r'\s(?:width|height|version|xmlns(?::\w+)?)="[^"]*"', "", markup[: markup.index(">")]
    )
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    markup = f'{opening} role="img" aria-label="{label}"' + markup[markup.index(">") :]
    # The family alone, or the last part of the shorthand, as the version of matplotlib has it.
    markup = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", markup)
    markup = re.sub(r"(font: [^;'\"]*px) '[^;\"]*", r"\1 var(--sans)", markup)
    for colour, variable in _PAGE_COLOURS.items():
        markup = markup.replace(colour, variable)
    return markup


def axes_of(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """A figure of one plot in the look of all of them."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes: Axes = figure.add_subplot()
    # Names come from users: a dollar sign must not start mathematics.
    figure.suptitle(
        _short(title),
        x=0.015,
        ha="left",
        fontsize=9.5,
        fontweight="bold",
        color=INK,
        parse_math=False,
    )
    prepare_axes(axes, x_label, y_label)
    return figure, axes


def prepare_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """The look of every plot: quiet grid, labels, no frame."""
    axes.set_xlabel(x_label, fontsize=8.5, color=MUTED, parse_math=False)
    axes.set_ylabel(_short(y_label), fontsize=8.5, color=MUTED, parse_math=False)
    axes.tick_params(labelsize=8, colors=MUTED, length=0, which="both")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)


def _far_axis(axes: Axes, leftmost: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(leftmost, 1)
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda far, _: f"{far:g}"))


def _colour(result: DrawnRoc, colours: Mapping[str, str] | None) -> str:
    return (colours or {}).get(result.model) or method_colour(result.model)


def _line_style(result: DrawnRoc, colours: Mapping[str, str] | None) -> dict[str, Any]:
    baseline = result.model in _BASELINES
    return {
        "label": _short(result.model),
        "color": _colour(result, colours),
        "linewidth": 1.3 if baseline else 2.0,
        "linestyle": (0, (4, 2)) if result.model == UNTRAINED else "-",
        "zorder": 2 if baseline else 3,
    }


def _band(
    axes: Axes, far: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str
) -> None:
    axes.fill_between(far, low, high, color=colour, alpha=0.18, linewidth=0, zorder=1.5)


def _short(name: str) -> str:
    """A name that fits into a figure, however long it is; it must not squeeze the plot."""
    words = " ".join(name.split())
    return words if len(words) <= 36 else words[:35] + "…"


def show_legend(axes: Axes, *, loc: Literal["best", "upper left"] = "best") -> None:
    """A legend that takes no room from the plot."""
    legend = axes.legend(fontsize=7.5, frameon=False, labelcolor=MUTED, loc=loc)
    legend.set_in_layout(False)  # a long label must not squeeze the plot
    for text in legend.get_texts():
        text.set_parse_math(False)


def _other(name: str) -> str:
    """A colour for a name without one of its own; the same name always gets the same."""
    return _OTHERS[sum(name.encode()) % len(_OTHERS)]
