"""Figures of many runs: rows of a sweep, curves over a setting, heads over ranks, ROC over seeds.

A mean over seeds is drawn with its sample deviation; the paper's numbers are hollow diamonds.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sphereface2.evaluation.experiment_results import (
    MethodRoc,
    ParallelResult,
    SweepResult,
    SweepRow,
    mean_roc,
    overlap,
    roc_band,
    tar_at,
)
from sphereface2.evaluation.verification import ScoreHistogram
from sphereface2.reporting.figures.verification import (
    AcceptCurve,
    draw_scores,
    lowest_far,
    roc_figure,
)
from sphereface2.reporting.style import (
    BLUE,
    GREY,
    INK,
    METHOD_COLOURS,
    ROUND,
    WIDTH,
    NamedFigure,
    distinct_colours,
    legend_below,
    method_colour,
    prepare_axes,
    show_legend,
    wide_axes,
    wide_figure,
)

_PAPER: Mapping[str, Any] = {
    "marker": "D",
    "markersize": 5,
    "markerfacecolor": "none",
    "markeredgewidth": 1.4,
    "color": GREY,
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
_SYMBOLS = {
    "head.balance": "λ",
    "head.radius": "r",
    "head.margin": "m",
    "head.sharpness": "t",
}

Lines = Mapping[float | None, Mapping[float, SweepRow]]
"""The rows of a curve by their value on the axis, for each value of what separates the curves."""


def sweep_figures(result: SweepResult) -> list[NamedFigure]:
    """The figure that a sweep names, or none where there is no number to draw."""
    if not any(row.numbers(result.judged_by) for row in result.rows):
        return []
    draw = {"rows": method_bars, "ladder": ladder, "noise": noise_curves, "values": value_curves}
    figure = draw[result.figure.kind](result)
    return [NamedFigure(result.name, f"{result.title}, {result.judged_by}", figure)]


# -- one row per setting ---------------------------------------------------------------------------


def method_bars(result: SweepResult) -> Figure:
    """One row per setting, in the order of the table: its seeds, their mean and deviation."""
    return _rows(result, [method_colour(row.method) for row in result.rows])[0]


def ladder(result: SweepResult) -> Figure:
    """What each row adds to the one before."""
    figure, axes = _rows(result, [BLUE] * len(result.rows))
    printed = [
        (row.published[result.judged_by], place + _BELOW)
        for place, row in enumerate(result.rows)
        if result.judged_by in row.published
    ]
    axes.plot(
        [x for x, _ in printed],
        [y for _, y in printed],
        color=GREY,
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


def _rows(result: SweepResult, colours: Sequence[str]) -> tuple[Figure, Axes]:
    """Rows from top to bottom, their numbers in words at the right."""
    if not result.rows:
        raise ValueError(f"'{result.name}' has no rows to draw")
    column = result.judged_by
    has_paper = any(column in row.published for row in result.rows)
    figure, axes = wide_axes(
        result.title, f"{_measure(result)} (%)", "", height=1.15 + 0.36 * len(result.rows)
    )
    above = _ABOVE if has_paper else 0.0
    for place, (row, colour) in enumerate(zip(result.rows, colours, strict=True)):
        _draw_seeds(axes, [(value, place - above) for value in row.numbers(column)], colour)
        mean, deviation = row.mean(column), row.deviation(column)
        if mean is not None:
            axes.errorbar(mean, place - above, xerr=deviation, color=colour, **_LINE)
        _cell(axes, 8, place, "no run" if mean is None else _number(mean, deviation), INK)
        if column in row.published:
            axes.plot(row.published[column], place + _BELOW, **_PAPER)
            _cell(axes, 80, place, f"{row.published[column]:.2f}", GREY)
    _cell(axes, 8, -0.85, "here", INK)
    labels = [row.drawn_as or row.label for row in result.rows]
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.tick_params(axis="y", labelsize=8.5, labelcolor=INK)
    axes.set_ylim(len(labels) - 0.45, -0.6)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.07)
    many = f"here, mean ± deviation of {len(result.seeds)} seeds"
    ours = colours[0] if len(set(colours)) == 1 else INK
    entries: list[Artist] = [Line2D([], [], color=ours, marker="o", markersize=5, linewidth=1.3)]
    names = [many if len(result.seeds) > 1 else "here, one seed"]
    if has_paper:
        _cell(axes, 80, -0.85, "paper", GREY)
        entries.append(Line2D([], [], **_PAPER))
        names.append("the paper")
    legend_below(figure, entries, names)
    return figure, axes


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


# -- curves over a setting -------------------------------------------------------------------------


def noise_curves(result: SweepResult) -> Figure:
    """Accuracy over the share of wrong labels, one line per method."""
    column = result.judged_by
    methods: dict[str, list[tuple[float, SweepRow]]] = {}
    for row in result.rows:
        # A run without label noise has no such setting.
        percent = 100 * (row.number("label_noise.rate") or 0.0)
        methods.setdefault(row.method, []).append((percent, row))
    label = f"{_measure(result)} (%)"
    figure, axes = wide_axes(result.title, "wrong labels (%)", label, height=3.2)
    colours = distinct_colours(list(methods))
    for method, points in methods.items():
        known = [(x, row) for x, row in sorted(points, key=lambda p: p[0]) if row.numbers(column)]
        each = [(x, value) for x, row in known for value in row.numbers(column)]
        _draw_seeds(axes, each, colours[method])
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


def value_curves(result: SweepResult) -> Figure:
    """Accuracy, or what else is judged by, over settings; the paper's has its own axes.

    Several settings get a column each, and into each go the rows in which the others have their
    commonest value.
    """
    names, by = result.figure.over, result.figure.by
    grid = {name: _lines(result.rows, name, others=names, by=by) for name in names}
    for name, lines in grid.items():
        if not lines:
            raise ValueError(f"no row of '{result.name}' says what its {name} is")
    column = result.judged_by
    rows = [row for lines in grid.values() for points in lines.values() for row in points.values()]
    measure = result.measure or column
    sides = ["here", "in the paper"] if any(column in row.published for row in rows) else ["here"]
    # One setting: the two side by side; several: the paper's below ours.
    is_single = len(names) == 1
    shape = (1, len(sides)) if is_single else (len(sides), len(names))
    figure = wide_figure(result.title, height=2.9 if is_single or len(sides) == 1 else 4.4)
    panels = figure.subplots(*shape, squeeze=False, sharey=False if is_single else "row")
    for place, (name, lines) in enumerate(grid.items()):
        for number, side in enumerate(sides):
            at = (0, number) if is_single else (number, place)
            axes: Axes = panels[at]
            is_named = at[1] == 0 or is_single
            prepare_axes(axes, _axis_name(name), f"{measure} {side} (%)" if is_named else "")
            _draw_lines(axes, lines, column, by=by, is_ours=side == "here")
    if by:
        show_legend(panels[0, 0])
    return figure


def _draw_lines(axes: Axes, lines: Lines, column: str, *, by: str, is_ours: bool) -> None:
    names = [f"{_SYMBOLS.get(by, by)} = {v:g}" if by and v is not None else "" for v in lines]
    colours = distinct_colours(names) if by else dict.fromkeys(names, BLUE)
    for name, points in zip(names, lines.values(), strict=True):
        known = sorted(points.items())
        if is_ours:
            _draw_ours(axes, known, column, name=name, colour=colours[name])
            continue
        shown = [(x, row.published[column]) for x, row in known if column in row.published]
        style = {**_PAPER, "color": colours[name] if by else GREY, "linestyle": "--"}
        axes.plot([x for x, _ in shown], [y for _, y in shown], linewidth=1.3, **style)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND))
    places = sorted({x for points in lines.values() for x in points})
    gaps = [high - low for low, high in pairwise(places)]
    if gaps and min(gaps) > 0.1 * sum(gaps):
        axes.set_xticks(places, [f"{x:g}" for x in places])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND))
    axes.margins(x=0.06, y=0.1)


def _draw_ours(
    axes: Axes, known: Sequence[tuple[float, SweepRow]], column: str, *, name: str, colour: str
) -> None:
    means = [(x, row.mean(column), row.deviation(column) or 0.0) for x, row in known]
    ours = [(x, mean, wide) for x, mean, wide in means if mean is not None]
    places = [x for x, _, _ in ours]
    low = [mean - wide for _, mean, wide in ours]
    high = [mean + wide for _, mean, wide in ours]
    axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        places,
        [mean for _, mean, _ in ours],
        color=colour,
        label=name or None,
        marker="o",
        markersize=4.5,
        linewidth=2,
        zorder=3,
    )
    _draw_seeds(axes, [(x, value) for x, row in known for value in row.numbers(column)], colour)


def _lines(rows: Sequence[SweepRow], name: str, *, others: Sequence[str], by: str) -> Lines:
    """For each value of `by` the rows by their value of `name`; the first of equals counts."""
    fixed: dict[str, float | None] = {}
    for other in others:
        if other != name:
            values = [row.number(other) for row in rows]
            fixed[other] = max(values, key=values.count) if values else None
    lines: dict[float | None, dict[float, SweepRow]] = {}
    for row in rows:
        value = row.number(name)
        if value is not None and all(row.number(other) == fixed[other] for other in fixed):
            lines.setdefault(row.number(by) if by else None, {}).setdefault(value, row)
    return lines


def _axis_name(setting: str) -> str:
    word = setting.rpartition(".")[2]
    return f"{_SYMBOLS[setting]} ({word})" if setting in _SYMBOLS else word


def _measure(result: SweepResult) -> str:
    """What an axis shows: "accuracy, combined", but "TAR@FAR 1e-4", which names itself."""
    return ", ".join(word for word in (result.measure, result.judged_by) if word)


def _draw_seeds(axes: Axes, points: Sequence[tuple[float, float]], colour: str) -> None:
    """The single seeds behind a mean."""
    x, y = [x for x, _ in points], [y for _, y in points]
    axes.scatter(x, y, s=9, color=colour, alpha=0.45, linewidths=0, zorder=2.5)


# -- heads over ranks ------------------------------------------------------------------------------


def images_per_second(result: ParallelResult) -> Figure:
    """Images per second over ranks; dots are single steps, dashed: the first point times ranks."""
    threads = "one thread" if result.threads == 1 else f"{result.threads} threads"
    each = "a GPU" if result.device == "cuda" else f"a process of {threads}"
    title, rate = (
        "The head alone, its classes over ranks",
        f"images/s, {result.identities:,} people",
    )
    figure, axes = wide_axes(title, f"ranks ({each} each)", rate, height=3.4)
    ideal: Mapping[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 3))}
    colours = distinct_colours(result.methods)
    for method in result.methods:
        runs = result.of(method)
        ranks = [run.ranks for run in runs]
        rates = [result.images_per_second(run) for run in runs]
        colour = colours[method]
        linear = [rates[0] * count / ranks[0] for count in ranks]
        axes.plot(ranks, linear, color=colour, alpha=0.7, **ideal)
        axes.scatter(
            [run.ranks for run in runs for _ in run.seconds],
            [rate for run in runs for rate in result.every_rate(run)],
            s=9,
            color=colour,
            alpha=0.4,
            linewidths=0,
        )
        last = runs[-1]
        sent = f"{last.exchanges:.0f} exchanges, {last.bytes_sent / 1e6:.2f} MB per step and rank"
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
    axes.plot([], [], color=INK, label="ideal", **ideal)
    axes.set_xticks(result.ranks)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND))
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")
    show_legend(axes, loc="upper left")
    return figure


# -- ROC and scores of several methods -------------------------------------------------------------

_COLUMNS = 4  # panels beside each other


def roc_over_seeds(methods: Sequence[MethodRoc], *, title: str) -> Figure:
    """The ROC of several methods, each the mean over the ROCs of its seeds, deviation as a band."""
    drawn = [method for method in methods if method.rocs]
    colours = distinct_colours([method.label for method in drawn])
    curves = [
        AcceptCurve(
            method.label,
            mean_roc(method.rocs),
            method.impostors,
            band=roc_band(method.rocs, impostors=method.impostors),
            colour=colours[method.label],
        )
        for method in drawn
    ]
    figure = roc_figure(title, curves)
    show_legend(figure.axes[0])
    figure.set_size_inches(WIDTH, 3.4)
    figure.texts[0].set_text(title)
    # Close to the top is where methods differ.
    leftmost = lowest_far(curves)
    lowest = min(tar_at(curve.points, leftmost) for curve in curves)
    figure.axes[0].set_ylim(max(0.0, 100 * lowest - 4), 101)
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
