"""Figures that compare trained models by their scores, and heads by their speed over ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sphereface2.evaluation.experiment_results import (
    MethodRoc,
    ParallelResult,
    mean_roc,
    overlap,
    roc_band,
    shares,
    tar_at,
)
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.results import RocBand, ScoreHistogram
from sphereface2.reporting.figures.sweep import ROUND, WIDTH, legend_below, wide_axes, wide_figure
from sphereface2.reporting.figures.verification import (
    GENUINE_COLOUR,
    IMPOSTOR_COLOUR,
    INK,
    distinct_colours,
    prepare_axes,
    roc_figure,
    show_legend,
)

_COLUMNS = 4  # panels beside each other


def score_distributions(
    panels: Sequence[tuple[str, ScoreHistogram]], *, title: str = "Scores of pairs"
) -> Figure:
    """How the scores of both kinds of pairs lie, a panel a model, all over the same axes.

    The overlap is what the two densities have in common: 100 % if they are the same.
    """
    if not panels:
        raise ValueError("score distributions need at least one histogram")
    lines = math.ceil(len(panels) / _COLUMNS)
    columns = math.ceil(len(panels) / lines)
    figure = wide_figure(title, height=0.75 + 1.75 * lines)
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
        _draw_overlap(axes, histogram)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    first = grid[0, 0]
    low = min(_ends(histogram)[0] for _, histogram in panels)
    high = max(_ends(histogram)[1] for _, histogram in panels)
    first.set_xlim(low, high)
    first.set_ylim(bottom=0)
    first.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    legend_below(figure, *first.get_legend_handles_labels())
    return figure


def roc_curves(methods: Sequence[MethodRoc], *, title: str) -> Figure:
    """The ROC of several methods, each the mean over the ROCs of its seeds, deviation as a band.

    The axis starts at one impostor pair.
    """
    curves = [
        _Roc(
            model=method.label,
            set_name=title,
            impostor=method.impostors,
            roc=mean_roc(method.rocs),
            roc_band=roc_band(method.rocs, impostors=method.impostors),
        )
        for method in methods
        if method.rocs
    ]
    figure = roc_figure(curves, colours=distinct_colours([curve.model for curve in curves]))
    figure.set_size_inches(WIDTH, 3.4)
    figure.texts[0].set_text(title)
    # Close to the top is where methods differ.
    leftmost = 1 / max(curve.impostor for curve in curves)
    lowest = min(tar_at(curve.roc, leftmost) for curve in curves)
    figure.axes[0].set_ylim(max(0.0, 100 * lowest - 4), 101)
    return figure


def images_per_second(
    result: ParallelResult, *, title: str = "The head alone, its classes over ranks"
) -> Figure:
    """Images a second over ranks; dots are single steps, dashed is the first point times ranks."""
    threads = "one thread" if result.threads == 1 else f"{result.threads} threads"
    each = "a GPU" if result.device == "cuda" else f"a process of {threads}"
    figure, axes = wide_axes(
        title, f"ranks ({each} each)", f"images/s, {result.identities:,} people", height=3.4
    )
    colours = distinct_colours(result.methods)
    for method in result.methods:
        runs = result.of(method)
        ranks = [run.ranks for run in runs]
        rates = [result.images_per_second(run) for run in runs]
        colour = colours[method]
        axes.plot(
            ranks,
            [rates[0] * count / ranks[0] for count in ranks],
            color=colour,
            linewidth=1,
            linestyle=(0, (4, 3)),
            alpha=0.7,
        )
        axes.scatter(
            [run.ranks for run in runs for _ in run.seconds],
            [rate for run in runs for rate in result.every_rate(run)],
            s=9,
            color=colour,
            alpha=0.4,
            linewidths=0,
        )
        last = runs[-1]
        sent = f"{last.exchanges:.0f} exchanges, {last.bytes_sent / 1e6:.2f} MB a step and rank"
        label = f"{method}: {result.speed_up(last):.2f}× on {last.ranks}"
        axes.plot(
            ranks,
            rates,
            color=colour,
            linewidth=2,
            marker="o",
            markersize=5,
            label=f"{label}; {sent}" if last.exchanges else label,
            zorder=3,
        )
    axes.plot([], [], color=INK, linewidth=1, linestyle=(0, (4, 3)), label="ideal")
    axes.set_xticks(result.ranks)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
    show_legend(axes, loc="upper left")
    return figure


@dataclass(frozen=True)
class _Roc:
    """The part of a verification result that its ROC is drawn from."""

    model: str
    set_name: str
    impostor: int
    roc: RocPoints
    roc_band: RocBand | None


def _draw_overlap(axes: Axes, histogram: ScoreHistogram) -> None:
    edges = histogram.edges
    widths = [high - low for low, high in pairwise(edges)]
    kinds = []
    for counts, colour, label in (
        (histogram.impostor, IMPOSTOR_COLOUR, "different people"),
        (histogram.genuine, GENUINE_COLOUR, "same person"),
    ):
        # A density: panels may have bins of different widths, and kinds different numbers.
        density = [s / width for s, width in zip(shares(counts), widths, strict=True)]
        kinds.append(density)
        axes.stairs(density, edges, color=colour, alpha=0.25, fill=True)
        axes.stairs(density, edges, color=colour, linewidth=1.4, label=label)
    both = [min(pair) for pair in zip(*kinds, strict=True)]
    axes.stairs(both, edges, color=INK, alpha=0.75, fill=True, label="overlap")


def _ends(histogram: ScoreHistogram) -> tuple[float, float]:
    """Where the scores begin and end: empty bins at the sides would squeeze the others."""
    used = [
        number
        for number, pair in enumerate(zip(histogram.genuine, histogram.impostor, strict=True))
        if any(pair)
    ]
    if not used:
        return histogram.edges[0], histogram.edges[-1]
    return histogram.edges[used[0]], histogram.edges[used[-1] + 1]
