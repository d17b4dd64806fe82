"""Figures of a sweep: the ladder of principles, methods side by side, curves over label noise.

A mean over seeds stands with its sample deviation; the paper's numbers are hollow diamonds.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sphereface2.evaluation.experiment_results import SweepResult, SweepRow
from sphereface2.reporting.figures.verification import (
    INK,
    METHOD_COLOURS,
    axes_of,
    distinct_colours,
    method_colour,
    show_legend,
)

WIDTH = 6.4  # inches: a README shows it some 800 pixels wide, text then has its page's size
PAPER_COLOUR = "#828a96"
ROUND = (1, 2, 2.5, 5, 10)  # what ticks are multiples of
PAPER_STYLE: Mapping[str, Any] = {
    "marker": "D",
    "markersize": 5,
    "markerfacecolor": "none",
    "markeredgewidth": 1.4,
    "color": PAPER_COLOUR,
    "linestyle": "none",
    "zorder": 4,
}
_LINE: Mapping[str, Any] = {
    "marker": "o",
    "markersize": 5,
    "linewidth": 2,
    "capsize": 3,
    "elinewidth": 1.3,
    "zorder": 3,
}
_ABOVE, _BELOW = 0.1, 0.19  # ours above the row, the paper's below: neither hides the other
_PRINCIPLES = {
    "none": "none, λ = (K-1)/K",
    "PN": "+ PN: positives against negatives",
    "EH": "+ EH: easy against hard",
    "AM": "+ AM: angular margin",
    "SA": "+ SA: similarity adjustment",
}
_NOISY = re.compile(r"(?P<method>.+), (?P<percent>\d+(?:\.\d+)?) %")


def ladder(result: SweepResult) -> Figure:
    """What each design principle adds to those before: a step a row."""
    figure, axes = _dots(
        result,
        labels=[_principle(row.label) for row in result.rows],
        colours=[METHOD_COLOURS["sphereface2"]] * len(result.rows),
    )
    printed = [
        (row.published[result.judged_by], place + _BELOW)
        for place, row in enumerate(result.rows)
        if result.judged_by in row.published
    ]
    axes.plot(
        [x for x, _ in printed],
        [y for _, y in printed],
        color=PAPER_COLOUR,
        linewidth=1,
        linestyle=(0, (2, 3)),
    )
    means = [row.mean(result.judged_by) for row in result.rows]
    for place, (before, here) in enumerate(pairwise(means), start=1):
        if before is None or here is None:
            continue
        colour = METHOD_COLOURS["sphereface2" if here >= before else "simple"]
        axes.barh(
            place, here - before, left=before, height=0.46, color=colour, alpha=0.22, zorder=1.5
        )
        axes.plot([before] * 2, [place - 1, place + 0.23], color=colour, linewidth=1, alpha=0.5)
        axes.annotate(
            f"{here - before:+.1f}",
            ((before + here) / 2, place),
            xytext=(0, -10),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7.5,
            color=colour,
        )
    return figure


def method_bars(result: SweepResult) -> Figure:
    """One row a setting, in the order of the table: its seeds, their mean and deviation."""
    colours = [method_colour(row.method) for row in result.rows]
    return _dots(result, labels=[row.label for row in result.rows], colours=colours)[0]


def noise_curves(result: SweepResult) -> Figure:
    """Accuracy over the share of wrong labels, a line a method; labels read 'cosface, 40 %'."""
    column = result.judged_by
    methods: dict[str, list[tuple[float, SweepRow]]] = {}
    for row in result.rows:
        match = _NOISY.fullmatch(row.label)
        if match is None:
            raise ValueError(
                f"the row '{row.label}' of '{result.name}' does not read like 'cosface, 40 %'"
            )
        methods.setdefault(match["method"], []).append((float(match["percent"]), row))
    label = f"{measure_name(column)} (%)"
    figure, axes = wide_axes(result.title, "wrong labels (%)", label, height=3.2)
    colours = distinct_colours(list(methods))
    for method, points in methods.items():
        known = [(x, row) for x, row in sorted(points, key=lambda p: p[0]) if row.numbers(column)]
        each = [(x, value) for x, row in known for value in row.numbers(column)]
        draw_seeds(axes, each, colour=colours[method])
        axes.errorbar(
            [x for x, _ in known],
            [fmean(row.numbers(column)) for _, row in known],
            yerr=[row.deviation(column) or 0.0 for _, row in known],
            label=method,
            color=colours[method],
            **_LINE,
        )
    axes.set_xticks(sorted({x for points in methods.values() for x, _ in points}))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND))
    show_legend(axes)
    return figure


def _dots(
    result: SweepResult, *, labels: Sequence[str], colours: Sequence[str]
) -> tuple[Figure, Axes]:
    """Rows from top to bottom, their numbers in words at the right."""
    if not result.rows:
        raise ValueError(f"'{result.name}' has no rows to draw")
    column = result.judged_by
    published = [column in row.published for row in result.rows]
    figure, axes = wide_axes(
        result.title, f"{measure_name(column)} (%)", "", height=1.15 + 0.36 * len(result.rows)
    )
    above = _ABOVE if any(published) else 0.0
    for place, (row, colour) in enumerate(zip(result.rows, colours, strict=True)):
        draw_seeds(axes, [(value, place - above) for value in row.numbers(column)], colour=colour)
        mean, deviation = row.mean(column), row.deviation(column)
        if mean is not None:
            axes.errorbar(mean, place - above, xerr=deviation, color=colour, **_LINE)
        _cell(axes, 8, place, "no run" if mean is None else _number(mean, deviation), INK)
        if column in row.published:
            axes.plot(row.published[column], place + _BELOW, **PAPER_STYLE)
            _cell(axes, 80, place, f"{row.published[column]:.2f}", PAPER_COLOUR)
    _cell(axes, 8, -0.85, "here", INK)
    if any(published):
        _cell(axes, 80, -0.85, "paper", PAPER_COLOUR)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.tick_params(axis="y", labelsize=8.5, labelcolor=INK)
    axes.set_ylim(len(labels) - 0.45, -0.6)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.07)
    many = f"here, mean ± deviation of {len(result.seeds)} seeds"
    ours = colours[0] if len(set(colours)) == 1 else INK
    entries: list[Artist] = [Line2D([], [], color=ours, marker="o", markersize=5, linewidth=1.3)]
    names = [many if len(result.seeds) > 1 else "here, one seed"]
    if any(published):
        entries.append(Line2D([], [], **PAPER_STYLE))
        names.append("the paper")
    legend_below(figure, entries, names)
    return figure, axes


def is_accuracy(column: str) -> bool:
    """Whether a column is the accuracy on a set of pairs: others say at what they were measured."""
    return "@" not in column and "rank" not in column


def measure_name(column: str) -> str:
    """What an axis shows, for its label: "accuracy, combined", but "TAR@FAR 1e-4"."""
    return f"accuracy, {column}" if is_accuracy(column) else column


def draw_seeds(axes: Axes, points: Sequence[tuple[float, float]], *, colour: str) -> None:
    """The single seeds behind a mean."""
    x, y = [x for x, _ in points], [y for _, y in points]
    axes.scatter(x, y, s=9, color=colour, alpha=0.45, linewidths=0, zorder=2.5)


def _principle(label: str) -> str:
    """A row of the ablation by the principle that it adds: the last one of its label."""
    words = re.findall(r"\w+", label)
    return _PRINCIPLES.get(words[-1], label) if words else label


def _number(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def _cell(axes: Axes, offset: float, place: float, text: str, colour: str) -> None:
    """A word in the columns at the right of the rows, so many points from the plot."""
    axes.annotate(
        text,
        (1, place),
        xycoords=axes.get_yaxis_transform(),
        xytext=(offset, 0),
        textcoords="offset points",
        annotation_clip=False,
        va="center",
        fontsize=8.5,
        color=colour,
    )


def legend_below(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """One legend for the whole figure, under its plots."""
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=len(names),
        fontsize=7.5,
        frameon=False,
        labelcolor=INK,
    )


def wide_axes(title: str, x_label: str, y_label: str, *, height: float) -> tuple[Figure, Axes]:
    """A figure of one plot, as wide as a page."""
    figure, axes = axes_of(title, x_label, y_label)
    figure.set_size_inches(WIDTH, height)
    figure.texts[0].set_text(title)  # there is room for all of it
    return figure, axes


def wide_figure(title: str, *, height: float) -> Figure:
    """A wide figure with a title and no plot yet."""
    figure, axes = wide_axes(title, "", "", height=height)
    axes.remove()
    return figure
