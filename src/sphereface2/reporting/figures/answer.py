"""A verification or a search as a picture: the faces, the score among known ones, the words."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.decision import Answer, in_figures
from sphereface2.recognition.answers import Identification, Verification
from sphereface2.recognition.photos import FoundFace
from sphereface2.reporting.figures.verification import draw_scores
from sphereface2.reporting.style import (
    BLUE,
    DASHED,
    INK,
    MUTED,
    note_at,
    prepare_axes,
    short_name,
    show_legend,
    write_figure,
)

_MOST_FACES = 5  # of the person, in one row
_POINT = "#facc15"


def write_answer_picture(
    path: Path, verification: Verification, calibration: Calibration | None
) -> None:
    """Write the picture of a verification as a PNG, whole or not at all."""
    write_figure(path, answer_figure(verification, calibration), kind="png", dpi=150)


def write_search_picture(
    path: Path,
    identification: Identification,
    faces: Mapping[str, FoundFace],
    calibration: Calibration | None,
) -> None:
    """Write the picture of a search; faces: of candidates whose crops were kept, by name."""
    figure = search_figure(identification, faces, calibration)
    write_figure(path, figure, kind="png", dpi=150)


def answer_figure(verification: Verification, calibration: Calibration | None) -> Figure:
    """The faces side by side, below them the histogram with the score, and the words."""
    faces = [(Path(face.photo).name, face) for face in verification.faces]
    return _figure(faces, verification.answer, verification.sentences(), calibration)


def search_figure(
    identification: Identification, faces: Mapping[str, FoundFace], calibration: Calibration | None
) -> Figure:
    """The face and those of the candidates with their scores, the histogram, and the words."""
    shown = [(Path(identification.photo.photo).name, identification.photo)]
    for each in identification.candidates:
        if each.person in faces:
            score = in_figures(each.answer.score)
            shown.append((f"{each.person} {score}", faces[each.person]))
    first = identification.match or identification.candidates[0]
    return _figure(shown, first.answer, identification.sentences(), calibration)


def _figure(
    faces: Sequence[tuple[str, FoundFace]],
    answer: Answer,
    sentences: Sequence[str],
    calibration: Calibration | None,
) -> Figure:
    said = [
        line
        for number, sentence in enumerate(sentences)
        for line in textwrap.wrap(sentence, 70 if number == 0 else 118)
    ]
    faces = faces[: _MOST_FACES + 1]
    height = 2.3 + 0.17 * len(said) + (2.5 if calibration is not None else 0.0)
    figure = Figure(figsize=(7.2, height), layout="constrained")
    words = 0.17 * len(said) + 0.1
    heights = [2.1, *([2.5] if calibration is not None else []), words]
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
    first = textwrap.wrap(sentences[0], 70)
    for number, line in enumerate(said):
        strong = number < len(first)
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
    return figure


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
