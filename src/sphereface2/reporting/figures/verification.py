"""ROC, DET and score histograms, wherever they are shown. They draw results and compute nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sphereface2.evaluation.experiment_results import (
    MethodRoc,
    mean_roc,
    overlap,
    roc_band,
    shares,
    tar_at,
)
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.uncertainty import Rate
from sphereface2.evaluation.verification import (
    RAW_PIXELS,
    UNTRAINED,
    RocBand,
    ScoreHistogram,
    VerificationResult,
)
from sphereface2.reporting.style import (
    DASHED,
    GENUINE_COLOUR,
    GREY,
    IMPOSTOR_COLOUR,
    INK,
    ROUND,
    WIDTH,
    axes_of,
    distinct_colours,
    filled_stairs,
    legend_below,
    method_colour,
    note_at,
    plain_log_ticks,
    prepare_axes,
    short_name,
    show_legend,
    wide_figure,
)

_BASELINES = (RAW_PIXELS, UNTRAINED)
_COLUMNS = 4  # panels beside each other


@dataclass(frozen=True)
class AcceptCurve:
    """One curve of a ROC or DET.

    impostors, genuine: the trials behind it; one of them is where an axis starts
    band: the interval of the TAR over the FAR
    marks: rates that are shown with their intervals, each at its FAR
    """

    label: str
    points: RocPoints
    impostors: int
    genuine: int = 1
    band: RocBand | None = None
    marks: Sequence[tuple[float, Rate]] = ()

    @classmethod
    def of(cls, result: VerificationResult) -> "AcceptCurve":
        counts = result.impostor, result.genuine
        return cls(result.model, result.roc, *counts, band=result.roc_band)


def roc_figure(
    title: str,
    curves: Sequence[AcceptCurve],
    *,
    legend: bool = True,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """The TAR of several models over a logarithmic FAR axis.

    A step shows the TAR at the FAR reached, a band its interval. The axis starts at one impostor:
    the trials say nothing about rarer errors.
    """
    figure, axes = axes_of(title, "false accept rate", "true accept rate (%)")
    _draw_curves(axes, curves, lambda tar: 100 * tar, colours or {})
    axes.set_ylim(0, 101.5)
    if legend:
        show_legend(axes)
    return figure


def det_figure(
    title: str,
    curves: Sequence[AcceptCurve],
    *,
    legend: bool = True,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """The two error rates of several models against each other, both on logarithmic axes.

    The axes start at one impostor and one genuine trial.
    """
    figure, axes = axes_of(title, "false accept rate", "false reject rate")
    lowest = 1 / max((curve.genuine for curve in curves), default=1)
    _draw_curves(axes, curves, lambda tar: max(1 - tar, lowest / 2), colours or {})
    axes.set_yscale("log")
    axes.set_ylim(lowest, 1)
    plain_log_ticks(axes.yaxis)
    if legend:
        show_legend(axes)
    return figure


def roc_over_seeds(methods: Sequence[MethodRoc], *, title: str) -> Figure:
    """The ROC of several methods, each the mean over the ROCs of its seeds, deviation as a band."""
    curves = [
        AcceptCurve(
            method.label,
            mean_roc(method.rocs),
            method.impostors,
            band=roc_band(method.rocs, impostors=method.impostors),
        )
        for method in methods
        if method.rocs
    ]
    colours = distinct_colours([curve.label for curve in curves])
    figure = roc_figure(title, curves, colours=colours)
    figure.set_size_inches(WIDTH, 3.4)
    figure.texts[0].set_text(title)
    # Close to the top is where methods differ.
    leftmost = _leftmost(curves)
    lowest = min(tar_at(curve.points, leftmost) for curve in curves)
    figure.axes[0].set_ylim(max(0.0, 100 * lowest - 4), 101)
    return figure


def _leftmost(curves: Sequence[AcceptCurve]) -> float:
    return 1 / max(curve.impostors for curve in curves)


def _draw_curves(
    axes: Axes,
    curves: Sequence[AcceptCurve],
    height: Callable[[float], float],
    colours: Mapping[str, str],
) -> None:
    """All curves, with `height` as the place of a TAR on the upright axis."""
    if not curves:
        raise ValueError("a ROC or DET needs at least one curve")
    leftmost = _leftmost(curves)
    for curve in curves:
        colour = colours.get(curve.label) or method_colour(curve.label)
        is_baseline = curve.label in _BASELINES
        far, tar = curve.points.far, curve.points.tar
        # From the best point at the left edge on: what lies before has no place on this axis.
        start = max(0, sum(each <= leftmost for each in far) - 1)
        axes.plot(
            [max(each, leftmost) for each in far[start:]],
            [height(each) for each in tar[start:]],
            drawstyle="steps-post",
            label=short_name(curve.label),
            color=colour,
            linewidth=1.3 if is_baseline else 2.0,
            linestyle=DASHED if curve.label == UNTRAINED else "-",
            zorder=2 if is_baseline else 3,
        )
        if curve.band is not None and not is_baseline:
            low, high = ([height(t) for t in ends] for ends in (curve.band.low, curve.band.high))
            axes.fill_between(
                curve.band.far, low, high, color=colour, alpha=0.18, linewidth=0, zorder=1.5
            )
        if curve.marks:
            mark_rates(axes, curve.marks, colour, height=height)
    _far_axis(axes, leftmost, [curve.points for curve in curves])


def mark_rates(
    axes: Axes,
    marks: Sequence[tuple[float, Rate]],
    colour: str,
    *,
    height: Callable[[float], float] = lambda rate: 100 * rate,
) -> None:
    """Rates as dots with their intervals as bars, each at its place on the level axis."""
    values = [height(rate.value) for _, rate in marks]
    ends = [sorted((height(rate.interval.low), height(rate.interval.high))) for _, rate in marks]
    axes.errorbar(
        [place for place, _ in marks],
        values,
        yerr=(
            [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)],
            [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)],
        ),
        fmt="o",
        color=colour,
        markersize=3.6,
        linewidth=1.2,
        capsize=2.5,
        zorder=4,
    )


def _far_axis(axes: Axes, leftmost: float, curves: Sequence[RocPoints]) -> None:
    rightmost = 1.0
    # A curve of which only the strict end is kept (MegaFace) fills the plot all the same.
    if all(curve.tar and curve.tar[-1] < 1 for curve in curves):
        last = max(leftmost, *(far for curve in curves for far in curve.far))
        rightmost = max(10.0 ** math.ceil(math.log10(last)), 10 * leftmost)
    axes.set_xscale("log")
    axes.set_xlim(leftmost, rightmost)
    plain_log_ticks(axes.xaxis)


# -- scores ----------------------------------------------------------------------------------------


def draw_scores(
    axes: Axes,
    histogram: ScoreHistogram,
    *,
    per: Literal["pairs", "share", "density"] = "pairs",
    alpha: float = 0.3,
) -> tuple[list[float], list[float]]:
    """How the scores of impostor and genuine pairs lie; the heights of the two.

    per: how many they are; the share of their own kind in percent, since the one may have a
        thousand times more pairs; or its density, where bins have different widths
    """
    heights = []
    widths = [high - low for low, high in pairwise(histogram.edges)]
    for counts, colour, label in (
        (histogram.impostor, IMPOSTOR_COLOUR, "different people"),
        (histogram.genuine, GENUINE_COLOUR, "same person"),
    ):
        drawn: list[float] = list(counts)
        if per == "share":
            drawn = [100 * share for share in shares(counts)]
        elif per == "density":
            drawn = [share / width for share, width in zip(shares(counts), widths, strict=True)]
        filled_stairs(axes, drawn, histogram.edges, colour, label=label, alpha=alpha)
        heights.append(drawn)
    return heights[0], heights[1]


def histogram_figure(
    title: str,
    histogram: ScoreHistogram,
    *,
    per: Literal["pairs", "share"] = "pairs",
    threshold: float | None = None,
    thresholds: Sequence[float] = (),
    limits: tuple[float, float] | None = None,
    legend: bool = True,
) -> Figure:
    """A score histogram; the `threshold` is marked with its value, further ones only by a line."""
    figure, axes = axes_of(title, "cosine", "pairs" if per == "pairs" else "share of its kind (%)")
    heights = draw_scores(axes, histogram, per=per)
    low, high = limits or (histogram.edges[0], histogram.edges[-1])
    axes.set_xlim(low, high)
    if threshold is not None:
        axes.axvline(threshold, color=INK, linewidth=1.1, linestyle=DASHED, label="threshold")
        note_at(axes, threshold, f"{threshold:.3f}", INK, left=threshold >= (low + high) / 2)
        axes.set_ylim(0, 1.18 * max(*heights[0], *heights[1], 1))
    for each in thresholds:
        axes.axvline(each, color=GREY, linewidth=0.9, linestyle=DASHED)
    if per == "pairs":
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    if legend:
        show_legend(axes)
    return figure


def score_distributions(panels: Sequence[tuple[str, ScoreHistogram]]) -> Figure:
    """How the scores of both kinds of pairs lie, one panel per model, all over the same axes.

    The overlap is what the two densities have in common: 100 % if they are the same.
    """
    if not panels:
        raise ValueError("score distributions need at least one histogram")
    lines = math.ceil(len(panels) / _COLUMNS)
    columns = math.ceil(len(panels) / lines)
    figure = wide_figure("Scores of pairs", height=0.75 + 1.75 * lines)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for number, (axes, (name, histogram)) in enumerate(zip(grid.flat, panels, strict=False)):
        is_lowest = number + columns >= len(panels)
        prepare_axes(
            axes, "cosine" if is_lowest else "", "density" if number % columns == 0 else ""
        )
        axes.tick_params(labelleft=False, labelbottom=is_lowest)
        axes.set_title(name, fontsize=9, color=INK, loc="left", parse_math=False)
        share = f"overlap {100 * overlap(histogram):.1f} %"
        axes.set_title(share, fontsize=8, color=INK, loc="right")
        kinds = draw_scores(axes, histogram, per="density", alpha=0.25)
        both = [min(pair) for pair in zip(*kinds, strict=True)]
        axes.stairs(both, histogram.edges, color=INK, alpha=0.75, fill=True, label="overlap")
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    first = grid[0, 0]
    ends = [_ends(histogram) for _, histogram in panels]
    first.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
    first.set_ylim(bottom=0)
    first.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    legend_below(figure, *first.get_legend_handles_labels())
    return figure


def _ends(histogram: ScoreHistogram) -> tuple[float, float]:
    """Where the scores begin and end: empty bins at the sides would squeeze the others."""
    pairs = zip(histogram.genuine, histogram.impostor, strict=True)
    used = [number for number, pair in enumerate(pairs) if any(pair)]
    if not used:
        return histogram.edges[0], histogram.edges[-1]
    return histogram.edges[used[0]], histogram.edges[used[-1] + 1]
