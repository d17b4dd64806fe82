"""Training curves from the lines of metrics.jsonl; a line or key that is missing leaves a gap."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sphereface2.reporting.style import (
    BLUE,
    GENUINE_COLOUR,
    IMPOSTOR_COLOUR,
    axes_of,
    set_colour,
    short_name,
    show_legend,
)

MAX_POINTS = 300


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    label: str
    steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """One plot over the steps of a run; `percent` says that the values are shares."""

    title: str
    axis: str
    series: tuple[Series, ...]
    percent: bool = False


def training_curves(history: Sequence[Mapping[str, Any]]) -> tuple[Curve, ...]:
    """A curve for each quantity that the run has logged, the head's own numbers last.

    A series longer than `MAX_POINTS` is shortened to the means of equally long stretches.
    """
    training = [line for line in history if line.get("kind") == "train"]
    evaluations = [line for line in history if line.get("kind") == "evaluation"]
    numbers = _keys(line.get("head") for line in training)
    scores = [
        ("same person", "head", "positive_score"),
        ("other people", "head", "negative_score"),
    ]
    own = {"bias", "active_negatives", "positive_score", "negative_score"}
    curves = [
        _curve("Loss", "loss", training, [("loss", None, "loss")]),
        _curve(
            "Learning rate", "learning rate", training, [("learning rate", None, "learning_rate")]
        ),
        _curve(
            "Verification accuracy",
            "accuracy (%)",
            evaluations,
            [(n, "metrics", n) for n in _keys(line.get("metrics") for line in evaluations)],
            percent=True,
        ),
        _curve(
            "Accuracy on the sets to choose by",
            "accuracy (%)",
            evaluations,
            [(n, "choice", n) for n in _keys(line.get("choice") for line in evaluations)],
            percent=True,
        ),
        _curve("Scores of the head", "mean score", training, scores),
        _curve("Bias", "bias", training, [("bias", "head", "bias")]),
        _curve(
            "Active negatives",
            "share of negatives (%)",
            training,
            [("active negatives", "head", "active_negatives")],
            percent=True,
        ),
    ]
    for name in numbers:
        if name not in own:
            words = name.replace("_", " ")
            curves.append(_curve(words.capitalize(), words, training, [(words, "head", name)]))
    return tuple(curve for curve in curves if curve.series)


def curve_figure(curve: Curve) -> Figure:
    """One training curve over the steps of the run."""
    figure, axes = axes_of(curve.title, "step", curve.axis)
    for series in curve.series:
        values = [100 * value for value in series.values] if curve.percent else series.values
        axes.plot(
            series.steps,
            values,
            label=short_name(series.label),
            color=series_colour(series.label),
            linewidth=1.7,
            # Few points, as evaluations are, should be seen as such; a single one has no line.
            marker="o" if len(series.steps) <= 25 else None,
            markersize=3.2,
        )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.margins(x=0.02, y=0.08)
    if len(curve.series) > 1:
        show_legend(axes)
    return figure


def series_colour(label: str) -> str:
    """The colour of a training series: sets have their own, other quantities are blue."""
    fixed = {"same person": GENUINE_COLOUR, "other people": IMPOSTOR_COLOUR}
    fixed |= dict.fromkeys(("loss", "learning rate", "bias", "active negatives"), BLUE)
    return fixed.get(label) or set_colour(label)


def _curve(
    title: str,
    axis: str,
    lines: Sequence[Mapping[str, Any]],
    wanted: Sequence[tuple[str, str | None, str]],
    *,
    percent: bool = False,
) -> Curve:
    found = [_series(label, _values(lines, group, key)) for label, group, key in wanted]
    return Curve(title, axis, tuple(series for series in found if series.steps), percent)


def _values(
    lines: Sequence[Mapping[str, Any]], group: str | None, key: str
) -> Iterator[tuple[float, float]]:
    for line in lines:
        holder = line if group is None else line.get(group)
        if not isinstance(holder, Mapping):
            continue
        step, value = _number(line.get("step")), _number(holder.get(key))
        if step is not None and value is not None:
            yield step, value


def _series(label: str, points: Iterable[tuple[float, float]]) -> Series:
    # By step, the last word on each step: a resumed run may have logged some steps twice.
    ordered = sorted(dict(points).items())
    size = max(1, math.ceil(len(ordered) / MAX_POINTS))
    groups = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    return Series(
        label,
        tuple(sum(step for step, _ in group) / len(group) for group in groups),
        tuple(sum(value for _, value in group) / len(group) for group in groups),
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _keys(groups: Iterable[object]) -> list[str]:
    """The keys of all groups, in the order of their first appearance."""
    keys: dict[str, None] = {}
    for group in groups:
        if isinstance(group, Mapping):
            keys.update(dict.fromkeys(str(key) for key in group))
    return list(keys)
