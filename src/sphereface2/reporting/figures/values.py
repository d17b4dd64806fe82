"""Accuracy over a hyperparameter of the head, from a sweep, beside the paper's."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sphereface2.aliases import other_words
from sphereface2.config.yaml_text import parse_mapping
from sphereface2.evaluation.experiment_results import SweepResult, SweepRow
from sphereface2.reporting.figures.sweep import (
    PAPER_COLOUR,
    PAPER_STYLE,
    ROUND,
    draw_seeds,
    is_accuracy,
    wide_figure,
)
from sphereface2.reporting.figures.verification import (
    METHOD_COLOURS,
    distinct_colours,
    prepare_axes,
    show_legend,
)

_SYMBOLS = {"balance": "λ", "radius": "r", "margin": "m", "sharpness": "t"}


def value_curve(
    result: SweepResult, x: str | Sequence[str], *, by: str | None = None, title: str | None = None
) -> Figure:
    """Accuracy, or what else is judged by, over a hyperparameter; the paper's has its own axis.

    x: an option of the head in any of its words (sharpness, t); several get a column each, and
        into each go the rows in which the others have their commonest value
    by: an option that tells lines apart
    """
    names = [_word(name) for name in ([x] if isinstance(x, str) else x)]
    by = None if by is None else _word(by)
    grid = {name: _lines(result.rows, name, others=names, by=by) for name in names}
    if not all(grid.values()):
        missing = next(name for name, lines in grid.items() if not lines)
        raise ValueError(f"no row of '{result.name}' says what its {missing} is")
    column = result.judged_by
    drawn = [
        row
        for lines in grid.values()
        for points in lines.values()
        for row in points.values()
        if column in row.published
    ]
    measure = "accuracy" if is_accuracy(column) else column
    sides = ["here", "in the paper"] if drawn else ["here"]
    # One hyperparameter: the two side by side; several: the paper's below ours.
    shape = (1, len(sides)) if len(names) == 1 else (len(sides), len(names))
    figure = wide_figure(title or result.title, height=2.9 if shape[0] == 1 else 4.4)
    panels = figure.subplots(*shape, squeeze=False, sharey="row" if len(names) > 1 else False)
    for place, (name, lines) in enumerate(grid.items()):
        for row_or_column, side in enumerate(sides):
            at = (0, row_or_column) if len(names) == 1 else (row_or_column, place)
            axes: Axes = panels[at]
            first = at[1] == 0 or len(names) == 1
            prepare_axes(axes, _symbol(name), f"{measure} {side} (%)" if first else "")
            _draw_lines(axes, lines, column, by=by, is_ours=side == "here")
    if by is not None:
        show_legend(panels[0, 0])
    return figure


def _draw_lines(
    axes: Axes,
    lines: Mapping[float | None, Mapping[float, SweepRow]],
    column: str,
    *,
    by: str | None,
    is_ours: bool,
) -> None:
    names = [f"{_SYMBOLS.get(by, by)} = {v:g}" if by and v is not None else "" for v in lines]
    single = METHOD_COLOURS["sphereface2"]
    colours = distinct_colours(names) if by else dict.fromkeys(names, single)
    for name, points in zip(names, lines.values(), strict=True):
        known = sorted(points.items())
        if not is_ours:
            shown = [(x, row.published[column]) for x, row in known if column in row.published]
            style = {
                **PAPER_STYLE,
                "color": colours[name] if by else PAPER_COLOUR,
                "linestyle": "--",
            }
            axes.plot([x for x, _ in shown], [y for _, y in shown], linewidth=1.3, **style)
            continue
        means = [(x, row.mean(column), row.deviation(column) or 0.0) for x, row in known]
        ours = [(x, mean, wide) for x, mean, wide in means if mean is not None]
        axes.fill_between(
            [x for x, _, _ in ours],
            [mean - wide for _, mean, wide in ours],
            [mean + wide for _, mean, wide in ours],
            color=colours[name],
            alpha=0.18,
            linewidth=0,
        )
        axes.plot(
            [x for x, _, _ in ours],
            [mean for _, mean, _ in ours],
            color=colours[name],
            label=name or None,
            marker="o",
            markersize=4.5,
            linewidth=2,
            zorder=3,
        )
        each = [(x, value) for x, row in known for value in row.numbers(column)]
        draw_seeds(axes, each, colour=colours[name])
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND))
    places = sorted({x for points in lines.values() for x in points})
    gaps = [high - low for low, high in pairwise(places)]
    if gaps and min(gaps) > 0.1 * sum(gaps):
        axes.set_xticks(places, [f"{x:g}" for x in places])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND))
    axes.margins(x=0.06, y=0.1)


def _lines(
    rows: Sequence[SweepRow], name: str, *, others: Sequence[str], by: str | None
) -> dict[float | None, dict[float, SweepRow]]:
    """For each value of `by` the rows by their value of `name`; the first of equals counts."""
    fixed = {other: _commonest(rows, other) for other in others if other != name}
    lines: dict[float | None, dict[float, SweepRow]] = {}
    for row in rows:
        value = option_value(row, name)
        if value is None or any(option_value(row, other) != fixed[other] for other in fixed):
            continue
        lines.setdefault(option_value(row, by) if by else None, {}).setdefault(value, row)
    return lines


def _commonest(rows: Sequence[SweepRow], name: str) -> float | None:
    values = [option_value(row, name) for row in rows]
    return max(values, key=values.count) if values else None


def option_value(row: SweepRow, name: str) -> float | None:
    """The number that a row's head has for an option: by its config, overrides or label."""
    name = _word(name)
    words = {name, *other_words(name), *([_SYMBOLS[name]] if name in _SYMBOLS else [])}
    found: dict[str, Any] = {}
    for part in (*re.split(r", ?", row.label), *row.overrides):
        key, is_one, value = part.partition("=")
        if is_one:
            found[key.strip().rpartition(".")[2]] = value
    if row.config:
        found |= parse_mapping(row.config, origin=f"the config of '{row.label}'").get("head", {})
    if name in found:
        return _as_number(found[name])
    return next((_as_number(found[word]) for word in sorted(words) if word in found), None)


def _as_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _word(name: str) -> str:
    """Our word for an option that may be named by its symbol."""
    return next((word for word, symbol in _SYMBOLS.items() if symbol == name), name)


def _symbol(name: str) -> str:
    return f"{_SYMBOLS[name]} ({name})" if name in _SYMBOLS else name
