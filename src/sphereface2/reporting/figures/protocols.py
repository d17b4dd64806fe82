"""Figures of a protocol's view: ROC, DET, rates over ranks, scores, and groups side by side."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sphereface2.evaluation.intervals import Rate
from sphereface2.evaluation.views import Compared, Histogram, RateCurve, Roc
from sphereface2.reporting.figures.verification import GENUINE_COLOUR, IMPOSTOR_COLOUR, axes_of

_LINE = 2.0
_MARK = "#828a96"


def roc_figure(title: str, curve: Roc, *, colour: str) -> Figure:
    """The ROC over a logarithmic axis that starts at one impostor; bars are intervals."""
    figure, axes = axes_of(f"ROC, {title}", "false accept rate", "true accept rate (%)")
    far, tar = _from_one_impostor(curve)
    axes.plot(
        far,
        [100 * share for share in tar],
        drawstyle="steps-post",
        color=colour,
        linewidth=_LINE,
    )
    _mark_rates(axes, _at_target(curve), colour=colour)
    axes.set_ylim(0, 102)
    _far_axis(axes, curve)
    return figure


def det_figure(title: str, curve: Roc, *, colour: str) -> Figure:
    """The two errors against each other, both on logarithmic axes that start at one trial."""
    figure, axes = axes_of(f"DET, {title}", "false accept rate", "false reject rate")
    lowest = 1 / curve.genuine
    far, tar = _from_one_impostor(curve)
    axes.plot(
        far,
        [max(1 - share, lowest / 2) for share in tar],
        drawstyle="steps-post",
        color=colour,
        linewidth=_LINE,
    )
    marks = _at_target(curve)
    _bars(
        axes,
        [x for x, _ in marks],
        [max(1 - rate.value, lowest / 2) for _, rate in marks],
        low=[max(1 - rate.interval.high, lowest / 2) for _, rate in marks],
        high=[1 - rate.interval.low for _, rate in marks],
        colour=colour,
    )
    axes.set_yscale("log")
    axes.set_ylim(lowest, 1)
    _far_axis(axes, curve)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    return figure


def rate_figure(curve: RateCurve, *, colour: str) -> Figure:
    """A rate over a count, such as that of the probes found among the first k, with intervals."""
    figure, axes = axes_of(curve.title, curve.x_label, curve.y_label)
    axes.plot(curve.x, [100 * rate for rate in curve.y], color=colour, linewidth=_LINE)
    marks = [(float(count), measure.rate) for count, measure in curve.marks]
    _mark_rates(axes, marks, colour=colour)
    lowest = min([*curve.y, *(rate.interval.low for _, rate in marks)])
    axes.set_ylim(max(0.0, 100 * lowest - 8), 101.5)
    axes.set_xscale("log")
    axes.set_xlim(0.9 * curve.x[0], max(2 * curve.x[0], 1.1 * curve.x[-1]))
    if curve.x[-1] < 100 * curve.x[0] + 1:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    return figure


def scores_figure(title: str, histogram: Histogram) -> Figure:
    """How the scores lie, each kind as a share of its own: the one may have a thousand times more.

    Resolved thresholds are marked.
    """
    figure, axes = axes_of(title, "cosine", "share of its kind (%)")
    edges = histogram.counts.edges
    for counts, colour in (
        (histogram.counts.impostor, IMPOSTOR_COLOUR),
        (histogram.counts.genuine, GENUINE_COLOUR),
    ):
        total = max(1, sum(counts))
        shares = [100 * count / total for count in counts]
        axes.stairs(shares, edges, color=colour, alpha=0.3, fill=True)
        axes.stairs(shares, edges, color=colour, linewidth=1.4)
    for measure in histogram.measures:
        if measure.at is not None and measure.at.resolved:
            axes.axvline(measure.at.threshold, color=_MARK, linewidth=0.9, linestyle=(0, (4, 2)))
    axes.set_xlim(edges[0], edges[-1])
    return figure


def compared_figure(compared: Compared, *, colour: str) -> Figure:
    """A rate of each group with its interval; the dashed line is that of all together."""
    figure, axes = axes_of(compared.title, "", "rate (%)")
    rates = [(float(place), rate) for place, (_, rate) in enumerate(compared.rates)]
    if compared.line is not None:
        axes.axhline(100 * compared.line, color=_MARK, linewidth=0.9, linestyle=(0, (4, 2)))
    _mark_rates(axes, rates, colour=colour)
    axes.set_xticks(range(len(rates)), [name for name, _ in compared.rates])
    axes.set_xlim(-0.5, len(rates) - 0.5)
    axes.set_ylim(bottom=0)
    if sum(len(name) for name, _ in compared.rates) > 36:
        axes.tick_params(axis="x", rotation=30)
    return figure


def _from_one_impostor(curve: Roc) -> tuple[list[float], list[float]]:
    """FAR and TAR from the best point at the left edge on, where one impostor is accepted."""
    leftmost, points = 1 / curve.impostors, curve.points
    start = max(0, sum(far <= leftmost for far in points.far) - 1)
    return [max(far, leftmost) for far in points.far[start:]], list(points.tar[start:])


def _at_target(curve: Roc) -> list[tuple[float, Rate]]:
    measures = [measure for measure in curve.measures if measure.resolved]
    return [(measure.at.target, measure.rate) for measure in measures if measure.at is not None]


def _mark_rates(axes: Axes, marks: Sequence[tuple[float, Rate]], *, colour: str) -> None:
    """Rates in percent, with their intervals."""
    _bars(
        axes,
        [x for x, _ in marks],
        [100 * rate.value for _, rate in marks],
        low=[100 * rate.interval.low for _, rate in marks],
        high=[100 * rate.interval.high for _, rate in marks],
        colour=colour,
    )


def _bars(
    axes: Axes,
    places: Sequence[float],
    values: Sequence[float],
    *,
    low: Sequence[float],
    high: Sequence[float],
    colour: str,
) -> None:
    below = [max(0.0, value - end) for value, end in zip(values, low, strict=True)]
    above = [max(0.0, end - value) for value, end in zip(values, high, strict=True)]
    axes.errorbar(
        places,
        values,
        yerr=(below, above),
        fmt="o",
        color=colour,
        markersize=3.6,
        linewidth=1.2,
        capsize=2.5,
        zorder=4,
    )


def _far_axis(axes: Axes, curve: Roc) -> None:
    # A curve of which only the strict end is kept (MegaFace) fills the plot all the same.
    leftmost, points = 1 / curve.impostors, curve.points
    is_whole = not points.tar or points.tar[-1] == 1
    rightmost = 1.0 if is_whole else 10.0 ** math.ceil(math.log10(max(leftmost, *points.far)))
    axes.set_xscale("log")
    axes.set_xlim(leftmost, max(rightmost, 10 * leftmost))
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda far, _: f"{far:g}"))
