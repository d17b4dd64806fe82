"""A calibration to read, and what it says of a photo: tables for the terminal, and pictures."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.decision import Answer
from sphereface2.evaluation.thresholds import RateAtTarget, in_figures
from sphereface2.recognition.answers import Identification, Verification
from sphereface2.recognition.photos import FoundFace
from sphereface2.reporting.figures.verification import draw_scores
from sphereface2.reporting.style import (
    BLUE,
    DASHED,
    INK,
    METHOD_COLOURS,
    MUTED,
    note_at,
    prepare_axes,
    short_name,
    show_legend,
    write_figure,
)
from sphereface2.reporting.tables import (
    UNRESOLVED,
    Cell,
    TableContent,
    percent,
    rate_cell,
    share_cell,
)

COLLAPSED = 0.01  # a range of cosines of which the three decimals that are printed show little
BIAS_COLOUR = METHOD_COLOURS["sphereface2-m"]


def thresholds_content(calibration: Calibration) -> TableContent:
    """Where to cut for each target FAR, what that gives, and where the learned bias would cut."""
    rows = [_threshold_row(each) for each in calibration.thresholds]
    prior = percent(calibration.probability.prior, digits=0)
    even = Cell(in_figures(calibration.probability.even))
    rows.append((Cell(f"P(same) = 50% at prior {prior}%"), even, Cell(""), Cell("")))
    bias = calibration.bias
    if bias is not None:
        cut = "beyond all scores" if bias.threshold is None else in_figures(bias.threshold)
        rows.append(
            (
                Cell("learned bias, −b/r through g⁻¹"),
                Cell(cut, f"b {bias.bias:.2f}, r {bias.radius:g}, t {bias.sharpness:g}"),
                rate_cell(bias.far, digits=2),
                share_cell(bias.tar.value, bias.tar.interval),
            )
        )
    people = "" if calibration.people is None else f" of {calibration.people:,} people"
    return TableContent(
        title=f"Thresholds from {calibration.set_name}",
        columns=("accept if the cosine is at least", "threshold", "FAR (%)", "TAR (%)"),
        rows=tuple(rows),
        note=f"{calibration.genuine:,} genuine and {calibration.impostor:,} impostor "
        f"pairs{people}; under each number its 95% interval; of embeddings "
        f"{'with' if calibration.flip else 'without'} their mirror images' added",
    )


def bias_sentence(calibration: Calibration) -> str | None:
    """How far off the learned bias is as a pair threshold, in words."""
    bias = calibration.bias
    if bias is None:
        return None
    if bias.threshold is None:
        what = "accepts" if bias.bias > 0 else "rejects"
        return (
            f"the learned bias is not a pair threshold: −b/r is outside of g, it {what} every pair"
        )
    away = ""
    for each in (each for each in calibration.thresholds if each.resolved):
        gap = f"{bias.threshold - each.threshold:+.3f}".replace("-", "−")
        away = f" ({gap} from the threshold for FAR {each.target:g})"
    tar, far = percent(bias.tar.value), percent(bias.far.value, digits=2)
    return (
        f"the learned bias would cut at {in_figures(bias.threshold)}{away} and accept {tar}% of "
        f"the genuine and {far}% of the impostor pairs: it separates images from classes, not "
        "images from images"
    )


def collapse_sentence(calibration: Calibration) -> str | None:
    """That a network gives every face nearly the same embedding, if its scores say so."""
    ranked = [calibration.impostor_scores, calibration.genuine_scores]
    scores = [score for each in ranked if each is not None for score in each.scores]
    if not scores or (width := max(scores) - min(scores)) >= COLLAPSED:
        return None
    return (
        f"all scores lie within {width:.1g} of each other: this network gives every face nearly "
        "the same embedding, and its decisions mean little; train it longer"
    )


def calibration_figure(calibration: Calibration) -> Figure:
    """Scores with the thresholds in them, and whether the probabilities can be believed."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.45, 1))
    _draw_scores(left, calibration)
    _draw_reliability(right, calibration)
    return figure


def write_calibration_picture(path: Path, calibration: Calibration) -> None:
    """Write the figure as a PNG, whole or not at all."""
    write_figure(path, calibration_figure(calibration), kind="png", dpi=160)


def _draw_scores(axes: Axes, calibration: Calibration) -> None:
    prepare_axes(axes, "cosine", "pairs")
    axes.set_title(f"Scores on {calibration.set_name}", loc="left", fontsize=9.5, color=INK,
                   fontweight="bold", parse_math=False)  # fmt: skip
    impostor, genuine = draw_scores(axes, calibration.histogram)
    axes.set_ylim(0, 1.5 * max(*impostor, *genuine, 1))
    shown = [each for each in calibration.thresholds if each.resolved]
    for each in shown:
        if each.threshold_interval is not None:
            ends = each.threshold_interval
            axes.axvspan(ends.low, ends.high, color=INK, alpha=0.07, linewidth=0)
    marks = [(each.threshold, f"FAR {each.target:g}", INK) for each in shown]
    if calibration.bias is not None and calibration.bias.threshold is not None:
        marks.append((calibration.bias.threshold, "learned bias", BIAS_COLOUR))
    # Lower from left to right: so no line runs through the label of another.
    for number, (score, label, colour) in enumerate(sorted(marks)):
        _mark(axes, score, label, colour, height=0.97 - 0.085 * number)
    show_legend(axes, loc="upper left")


def _mark(axes: Axes, score: float, label: str, colour: str, *, height: float) -> None:
    axes.axvline(score, ymax=height - 0.02, color=colour, linewidth=1.1, linestyle=DASHED)
    axes.annotate(
        label,
        (score, height),
        xycoords=("data", "axes fraction"),
        xytext=(3, 0),
        textcoords="offset points",
        va="top",
        fontsize=7.5,
        color=colour,
    )


def _draw_reliability(axes: Axes, calibration: Calibration) -> None:
    prepare_axes(axes, "probability by the map (%)", "were one person (%)")
    error = percent(calibration.calibration_error)
    axes.set_title(f"Reliability, mean gap {error} points", loc="left", fontsize=9.5, color=INK,
                   fontweight="bold", parse_math=False)  # fmt: skip
    axes.plot([0, 100], [0, 100], color=INK, linewidth=0.9, linestyle=DASHED)
    bins = calibration.reliability
    shares = np.array([each.share for each in bins])
    low = np.array([each.interval.low for each in bins])
    high = np.array([each.interval.high for each in bins])
    axes.errorbar(
        [100 * each.probability for each in bins],
        100 * shares,
        # Where a prior moves the share, rounding may put it a hair outside of its interval.
        yerr=100 * np.maximum([shares - low, high - shares], 0.0),
        fmt="o",
        markersize=4,
        linewidth=1.3,
        color=BLUE,
    )
    axes.set_xlim(-3, 103)
    axes.set_ylim(-3, 103)


def _threshold_row(each: RateAtTarget) -> tuple[Cell, ...]:
    name = Cell(f"FAR at most {100 * each.target:g}%")
    if not each.resolved:
        few = f"{each.impostors:,} impostors"
        return (name, Cell(UNRESOLVED, few, faint=True), Cell(""), Cell(""))
    ends = each.threshold_interval
    return (
        name,
        Cell(
            in_figures(each.threshold),
            "" if ends is None else f"{in_figures(ends.low)} to {in_figures(ends.high)}",
            strong=True,
        ),
        rate_cell(each.false_rate, digits=2),
        share_cell(each.rate, each.interval),
    )


_MOST_FACES = 5  # of the person, in one row
_POINT = "#facc15"


def write_answer_picture(
    path: Path, verification: Verification, calibration: Calibration | None
) -> None:
    """The faces side by side, below them the histogram with the score, and the words, as a PNG."""
    faces = [(Path(face.photo).name, face) for face in verification.faces]
    _write_picture(path, faces, verification.answer, verification.sentences(), calibration)


def write_search_picture(
    path: Path,
    identification: Identification,
    faces: Mapping[str, FoundFace],
    calibration: Calibration | None,
) -> None:
    """The same of a search: the face and those of the candidates with their scores, as a PNG.

    faces: of candidates whose crops were kept, by name
    """
    shown = [(Path(identification.photo.photo).name, identification.photo)]
    for each in identification.candidates:
        if each.person in faces:
            score = in_figures(each.answer.score)
            shown.append((f"{each.person} {score}", faces[each.person]))
    first = identification.match or identification.candidates[0]
    _write_picture(path, shown, first.answer, identification.sentences(), calibration)


def _write_picture(
    path: Path,
    faces: Sequence[tuple[str, FoundFace]],
    answer: Answer,
    sentences: Sequence[str],
    calibration: Calibration | None,
) -> None:
    said = [
        (line, number == 0)
        for number, sentence in enumerate(sentences)
        for line in textwrap.wrap(sentence, 70 if number == 0 else 118)
    ]
    faces = faces[: _MOST_FACES + 1]
    height = 2.3 + 0.17 * len(said) + (2.5 if calibration is not None else 0.0)
    figure = Figure(figsize=(7.2, height), layout="constrained")
    heights = [2.1, *([2.5] if calibration is not None else []), 0.17 * len(said) + 0.1]
    parts = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    places = parts[0].subgridspec(1, max(len(faces), 2)).subplots(squeeze=False)[0]
    for place in places:
        place.set_axis_off()
    for place, (title, face) in zip(places, faces, strict=False):
        _draw_face(place, title, face)
    if calibration is not None:
        _draw_score(figure.add_subplot(parts[1]), answer, calibration)
    text = figure.add_subplot(parts[-1])
    text.set_axis_off()
    for number, (line, strong) in enumerate(said):
        text.annotate(
            line,
            (0.0, 1.0),
            xycoords="axes fraction",
            xytext=(0, -12.2 * number),
            textcoords="offset points",
            va="top",
            fontsize=9.5 if strong else 7.8,
            fontweight="bold" if strong else "normal",
            color=INK if strong else MUTED,
            parse_math=False,
        )
    write_figure(path, figure, kind="png", dpi=150)


def _draw_face(axes: Axes, title: str, face: FoundFace) -> None:
    axes.imshow(face.crop)
    if face.points is not None:
        x, y = face.points.T
        axes.scatter(x, y, s=16, facecolors="none", edgecolors=_POINT, linewidths=1.3)
    axes.set_title(short_name(title), fontsize=8, color=MUTED, parse_math=False)


def _draw_score(axes: Axes, answer: Answer, calibration: Calibration) -> None:
    prepare_axes(axes, "cosine", "share of its kind (%)")
    name = short_name(calibration.set_name)
    axes.set_title(f"Where the score lies among pairs of {name}", loc="left", fontsize=9,
                   color=INK, fontweight="bold", parse_math=False)  # fmt: skip
    impostor, genuine = draw_scores(axes, calibration.histogram, per="share")
    axes.set_ylim(0, 1.25 * max(*impostor, *genuine))
    edges = calibration.histogram.edges
    axes.set_xlim(min(edges[0], answer.score - 0.02), max(edges[-1], answer.score + 0.02))
    if answer.threshold is not None:
        axes.axvline(answer.threshold, ymax=0.92, color=INK, linewidth=1.0, linestyle=DASHED)
        is_left = answer.threshold < answer.score
        note_at(axes, answer.threshold, "\nthreshold", INK, left=is_left)
    axes.axvline(answer.score, color=BLUE, linewidth=2.2)
    is_left = answer.threshold is not None and answer.score < answer.threshold
    note_at(axes, answer.score, f"the score {answer.score:.3f}", BLUE, left=is_left)
    show_legend(axes, loc="upper left")
