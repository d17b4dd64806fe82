"""Figures of a protocol's result: ROC, DET, CMC, scores, and the cost of more distractors."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.results import ScoreHistogram
from sphereface2.evaluation.thresholds import Measure
from sphereface2.reporting.figures.verification import GENUINE_COLOUR, IMPOSTOR_COLOUR, axes_of

_LINE = 2.0


def roc_figure(
    title: str, roc: RocPoints, measures: Sequence[Measure], *, impostors: int, colour: str
) -> Figure:
    """The ROC over a logarithmic axis that starts at one impostor; bars are intervals."""
    figure, axes = axes_of(f"ROC, {title}", "false accept rate", "true accept rate (%)")
    leftmost = 1 / impostors
    start = max(0, sum(far <= leftmost for far in roc.far) - 1)
    axes.plot(
        [max(far, leftmost) for far in roc.far[start:]],
        [100 * tar for tar in roc.tar[start:]],
        drawstyle="steps-post",
        color=colour,
        linewidth=_LINE,
    )
    shown = _at_target(measures)
    _bars(
        axes,
        [x for x, _ in shown],
        [100 * measure.rate.value for _, measure in shown],
        low=[100 * measure.rate.interval.low for _, measure in shown],
        high=[100 * measure.rate.interval.high for _, measure in shown],
        colour=colour,
    )
    axes.set_ylim(0, 102)
    _log_axis(axes, leftmost, roc)
    return figure


def det_figure(
    title: str,
    roc: RocPoints,
    measures: Sequence[Measure],
    *,
    impostors: int,
    genuine: int,
    colour: str,
) -> Figure:
    """The two errors against each other, both on logarithmic axes that start at one trial."""
    figure, axes = axes_of(f"DET, {title}", "false accept rate", "false reject rate")
    leftmost, lowest = 1 / impostors, 1 / genuine
    start = max(0, sum(far <= leftmost for far in roc.far) - 1)
    axes.plot(
        [max(far, leftmost) for far in roc.far[start:]],
        [max(1 - tar, lowest / 2) for tar in roc.tar[start:]],
        drawstyle="steps-post",
        color=colour,
        linewidth=_LINE,
    )
    shown = _at_target(measures)
    _bars(
        axes,
        [x for x, _ in shown],
        [max(1 - measure.rate.value, lowest / 2) for _, measure in shown],
        low=[max(1 - measure.rate.interval.high, lowest / 2) for _, measure in shown],
        high=[1 - measure.rate.interval.low for _, measure in shown],
        colour=colour,
    )
    axes.set_yscale("log")
    axes.set_ylim(lowest, 1)
    _log_axis(axes, leftmost, roc)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    return figure


def cmc_figure(
    title: str, cmc: Sequence[float], ranks: Sequence[Measure], *, colour: str
) -> Figure:
    """The share of probes whose right person is among the first k; bars are intervals."""
    figure, axes = axes_of(f"CMC, {title}", "rank", "found (%)")
    axes.plot(range(1, len(cmc) + 1), [100 * rate for rate in cmc], color=colour, linewidth=_LINE)
    shown = [(_rank(measure), measure) for measure in ranks]
    shown = [(rank, measure) for rank, measure in shown if rank <= len(cmc)]
    _bars(
        axes,
        [rank for rank, _ in shown],
        [100 * measure.rate.value for _, measure in shown],
        low=[100 * measure.rate.interval.low for _, measure in shown],
        high=[100 * measure.rate.interval.high for _, measure in shown],
        colour=colour,
    )
    lowest = min([*cmc, *(measure.rate.interval.low for _, measure in shown)])
    axes.set_ylim(max(0.0, 100 * lowest - 8), 101.5)
    _rank_axis(axes, len(cmc))
    return figure


def distractors_figure(
    title: str, sizes: Sequence[int], rank_1: Sequence[Measure], *, colour: str
) -> Figure:
    """Rank 1 against growing numbers of distractors; bars are intervals."""
    figure, axes = axes_of(title, "distractors", "rank 1 (%)")
    rates = [100 * measure.rate.value for measure in rank_1]
    axes.plot(sizes, rates, color=colour, linewidth=_LINE)
    low = [100 * measure.rate.interval.low for measure in rank_1]
    high = [100 * measure.rate.interval.high for measure in rank_1]
    _bars(axes, sizes, rates, low=low, high=high, colour=colour)
    axes.set_xscale("log")
    axes.set_ylim(max(0.0, min(low) - 8), 101.5)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    return figure


def scores_figure(
    title: str, histogram: ScoreHistogram, measures: Sequence[Measure] = ()
) -> Figure:
    """How the scores lie, each kind as a share of its own: the one may have a thousand times more.

    Resolved thresholds of `measures` are marked.
    """
    figure, axes = axes_of(title, "cosine", "share of its kind (%)")
    for counts, colour in (
        (histogram.impostor, IMPOSTOR_COLOUR),
        (histogram.genuine, GENUINE_COLOUR),
    ):
        total = max(1, sum(counts))
        shares = [100 * count / total for count in counts]
        axes.stairs(shares, histogram.edges, color=colour, alpha=0.3, fill=True)
        axes.stairs(shares, histogram.edges, color=colour, linewidth=1.4)
    for measure in measures:
        if measure.at is not None and measure.at.resolved:
            axes.axvline(
                measure.at.threshold, color="#828a96", linewidth=0.9, linestyle=(0, (4, 2))
            )
    axes.set_xlim(histogram.edges[0], histogram.edges[-1])
    return figure


def _at_target(measures: Sequence[Measure]) -> list[tuple[float, Measure]]:
    return [(m.at.target, m) for m in measures if m.at is not None and m.at.resolved]


def _rank(measure: Measure) -> int:
    return int(measure.name.removeprefix("rank ").split(",")[0])


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


def _log_axis(axes: Axes, leftmost: float, roc: RocPoints) -> None:
    # A curve of which only the strict end is kept (MegaFace) fills the plot all the same.
    is_whole = not roc.tar or roc.tar[-1] == 1
    rightmost = 1.0 if is_whole else 10.0 ** math.ceil(math.log10(max(leftmost, *roc.far)))
    axes.set_xscale("log")
    axes.set_xlim(leftmost, max(rightmost, 10 * leftmost))
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda far, _: f"{far:g}"))


def _rank_axis(axes: Axes, longest: int) -> None:
    axes.set_xscale("log")
    axes.set_xlim(0.9, max(2.0, longest * 1.1))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda rank, _: f"{rank:g}"))
