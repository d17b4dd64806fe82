"""ROC, DET, score histograms and training curves, drawn from results: they compute nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sphereface2.evaluation.experiment_results import shares
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
    BLUE,
    DASHED,
    GENUINE_COLOUR,
    GREY,
    IMPOSTOR_COLOUR,
    INK,
    axes_of,
    filled_stairs,
    method_colour,
    note_at,
    plain_log_ticks,
    set_colour,
    short_name,
    show_legend,
)

_BASELINES = (RAW_PIXELS, UNTRAINED)


@dataclass(frozen=True)
class AcceptCurve:
    """One curve of a ROC or DET.

    impostors, genuine: the trials behind it; one of them is where an axis starts
    band: the interval of the TAR over the FAR
    marks: rates that are shown with their intervals, each at its FAR
    colour: "": that of the method that the label names
    """

    label: str
    points: RocPoints
    impostors: int
    genuine: int = 1
    band: RocBand | None = None
    marks: Sequence[tuple[float, Rate]] = ()
    colour: str = ""

    @classmethod
    def of(cls, result: VerificationResult, *, colour: str = "") -> "AcceptCurve":
        counts = result.impostor, result.genuine
        return cls(result.model, result.roc, *counts, band=result.roc_band, colour=colour)


def roc_figure(title: str, curves: Sequence[AcceptCurve]) -> Figure:
    """The TAR of several models over a logarithmic FAR axis.

    A step shows the TAR at the FAR reached, a band its interval. The axis starts at one impostor:
    the trials say nothing about rarer errors.
    """
    figure, axes = axes_of(title, "false accept rate", "true accept rate (%)")
    _draw_curves(axes, curves, lambda tar: 100 * tar)
    axes.set_ylim(0, 101.5)
    return figure


def det_figure(title: str, curves: Sequence[AcceptCurve]) -> Figure:
    """The two error rates of several models against each other, both on logarithmic axes.

    The axes start at one impostor and one genuine trial.
    """
    figure, axes = axes_of(title, "false accept rate", "false reject rate")
    lowest = 1 / max((curve.genuine for curve in curves), default=1)
    _draw_curves(axes, curves, lambda tar: max(1 - tar, lowest / 2))
    axes.set_yscale("log")
    axes.set_ylim(lowest, 1)
    plain_log_ticks(axes.yaxis)
    return figure


def lowest_far(curves: Sequence[AcceptCurve]) -> float:
    """The false accept rate of one impostor, where the axis starts."""
    return 1 / max(curve.impostors for curve in curves)


def _draw_curves(
    axes: Axes, curves: Sequence[AcceptCurve], height: Callable[[float], float]
) -> None:
    """All curves, with `height` as the place of a TAR on the upright axis."""
    if not curves:
        raise ValueError("a ROC or DET needs at least one curve")
    leftmost = lowest_far(curves)
    for curve in curves:
        colour = curve.colour or method_colour(curve.label)
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
    values = np.array([height(rate.value) for _, rate in marks])
    ends = [sorted((height(rate.interval.low), height(rate.interval.high))) for _, rate in marks]
    low, high = np.reshape(ends, (-1, 2)).T
    axes.errorbar(
        [place for place, _ in marks],
        values,
        yerr=np.maximum([values - low, high - values], 0.0),
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
    return figure


# -- training curves, from the lines of metrics.jsonl; what is missing there leaves a gap ----------

MAX_POINTS = 300

_Parts = Sequence[tuple[float, Mapping[str, Any]]]  # steps, and what was logged at each


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
    steps, heads = _parts(training), _parts(training, "head")
    metrics, choice = _parts(evaluations, "metrics"), _parts(evaluations, "choice")
    scores = {"positive_score": "same person", "negative_score": "other people"}
    negatives = {"active_negatives": "active negatives"}
    accuracy, share = "accuracy (%)", "share of negatives (%)"
    curves = [
        _curve("Loss", "loss", steps, {"loss": "loss"}),
        _curve("Learning rate", "learning rate", steps, {"learning_rate": "learning rate"}),
        _curve("Verification accuracy", accuracy, metrics, _keys(metrics), percent=True),
        _curve("Accuracy on the sets to choose by", accuracy, choice, _keys(choice), percent=True),
        _curve("Scores of the head", "mean score", heads, scores),
        _curve("Bias", "bias", heads, {"bias": "bias"}),
        _curve("Active negatives", share, heads, negatives, percent=True),
    ]
    for name in _keys(heads):
        if name not in {"bias", *negatives, *scores}:
            words = name.replace("_", " ")
            curves.append(_curve(words.capitalize(), words, heads, {name: words}))
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
    parts: _Parts,
    labels: Mapping[str, str],
    *,
    percent: bool = False,
) -> Curve:
    """The logged numbers by their keys, under these labels."""
    found = [_series(label, key, parts) for key, label in labels.items()]
    return Curve(title, axis, tuple(series for series in found if series.steps), percent)


def _parts(lines: Sequence[Mapping[str, Any]], name: str = "") -> _Parts:
    """The steps of the lines, with all that each says, or what it says under a name."""
    found = [(_number(line.get("step")), line.get(name) if name else line) for line in lines]
    return [(step, part) for step, part in found if step is not None and isinstance(part, Mapping)]


def _keys(parts: _Parts) -> dict[str, str]:
    """All keys in the order of their first appearance, each as its own label."""
    return {key: key for _, part in parts for key in part}


def _series(label: str, key: str, parts: _Parts) -> Series:
    numbers = [(step, _number(part.get(key))) for step, part in parts]
    # By step, the last word on each step: a resumed run may have logged some steps twice.
    ordered = sorted({step: value for step, value in numbers if value is not None}.items())
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
