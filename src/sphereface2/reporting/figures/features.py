"""Features of two and three dimensions on their sphere, with the boundaries of the loss."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Polygon
from matplotlib.patheffects import withStroke

from sphereface2.evaluation.experiment_results import LearnedFeatures
from sphereface2.reporting.style import INK, MUTED, PERSON_COLOURS

Vectors = npt.NDArray[np.floating[Any]]

_ELEVATION = math.radians(18)  # how far one looks down on planes that lie across the upright


def sphere_view(directions: Vectors, *, up: int) -> Vectors:
    """The view with one direction upright that shows the tips of all of them best apart.

    A parallel projection; its rows are right, up and towards the eye, so `points @ view.T` are
    points as one sees them.
    """
    views = [_frame(directions[up], turn) for turn in np.linspace(0, 2 * math.pi, 72, False)]
    return max(views, key=lambda view: _least_distance((directions @ view.T)[:, :2]))


def boundary_rim(direction: Vectors, cosine: float) -> Vectors:
    """The circle of all unit vectors with this cosine to a direction, as 181 points."""
    first, second = _across(direction)
    turn = np.linspace(0, 2 * math.pi, 181)[:, None]
    around = np.cos(turn) * first + np.sin(turn) * second
    return np.asarray(cosine * direction + math.sqrt(1 - cosine**2) * around)


def _frame(upright: Vectors, turn: float) -> Vectors:
    first, second = _across(upright)
    level = math.cos(turn) * first + math.sin(turn) * second
    eye = math.cos(_ELEVATION) * level + math.sin(_ELEVATION) * upright
    above = math.cos(_ELEVATION) * upright - math.sin(_ELEVATION) * level
    return np.stack([np.cross(above, eye), above, eye])


def _across(direction: Vectors) -> tuple[Vectors, Vectors]:
    """Two unit vectors at right angles to a direction and to each other."""
    axis = np.eye(3)[np.abs(direction).argmin()]
    first = np.cross(direction, axis)
    first = first / np.linalg.norm(first)
    return first, np.cross(direction, first)


def _least_distance(points: Vectors) -> float:
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    return float((apart + 9 * np.eye(len(points))).min())


# The sphere has the radius r. Its boundaries lie across W_i: positives of class i have to be beyond
# (1), everybody else has to stay below (3), and (2) is the threshold between them.

BOUNDARIES = (
    "(1)  $r(\\cos\\theta - m) + b = 0$",
    "(2)  $r\\,\\cos\\theta + b = 0$",
    "(3)  $r(\\cos\\theta + m) + b = 0$",
)
_STYLES: tuple[Any, ...] = ("-", (0, (4, 2.5)), (0, (1, 1.5)))
_INSIDE, _EDGE = "#fafbfc", "#c3c9d1"
_PANEL, _HEAD, _FOOT = 3.7, 0.52, 0.34  # inches: a square of features, what stands above and below


def feature_plane(learned: Sequence[LearnedFeatures]) -> Figure:
    """Features of two dimensions on their circle, a panel each, with the boundaries of all classes.

    One class is filled between (1) and (3), and its boundaries are numbered.
    """
    if not learned:
        raise ValueError("a picture of features needs at least one set of them")
    for each in learned:
        _require_dim(each, 2)
    height = _HEAD + _PANEL + _FOOT
    figure = Figure(figsize=(_PANEL * len(learned), height))
    share = 1 / len(learned)
    for number, each in enumerate(learned):
        panel = (number * share, _FOOT / height, share, _PANEL / height)
        axes: Axes = figure.add_axes(panel)
        _plane(axes, each)
        _headline(figure, (number + 0.03) * share, f"({chr(ord('a') + number)})  ", each)
    _key(figure)
    return figure


def feature_sphere(learned: LearnedFeatures, *, person: int = 0) -> Figure:
    """Features of three dimensions on their sphere, with the planes (1) and (3) of one class."""
    _require_dim(learned, 3)
    figure = Figure(figsize=(5.4, _HEAD + 3.9))
    axes: Axes = figure.add_axes((0, 0, 1, 3.9 / (_HEAD + 3.9)))
    radius, classifiers = learned.radius, np.asarray(learned.classifiers)
    _blank(axes, x=(-1.2 * radius, 2.02 * radius), y=(-1.17 * radius, 1.17 * radius))
    view = sphere_view(classifiers, up=person)
    axes.add_patch(Circle((0, 0), radius, facecolor=_INSIDE, edgecolor=_EDGE, linewidth=1))
    for shrink in np.linspace(0.95, 0.1, 18):  # a soft light from above
        centre = (-0.25 * (1 - shrink) * radius, 0.3 * (1 - shrink) * radius)
        axes.add_patch(Circle(centre, shrink * radius, color="white", alpha=0.10, linewidth=0))
    _dots_in_view(axes, learned, view, behind=True)
    _planes(axes, learned, view, person)
    for other, direction in enumerate(classifiers):
        x, y, depth = radius * (direction @ view.T)
        _arrow(axes, (x, y), person_colour(other), strong=other == person, faint=depth < 0)
        away = 1.11 * radius / max(math.hypot(x, y), 1e-9)
        near = 1 + 0.13 * radius / max(math.hypot(x, y), 0.3 * radius)
        _name(axes, min(away, near) * x, min(away, near) * y, other)
    _dots_in_view(axes, learned, view, behind=False)
    _headline(figure, 0.03, "", learned)
    return figure


def margin_sentence(learned: LearnedFeatures) -> str:
    """The empirical margin over the classes beside the one that the loss induces, as cosines."""
    gaps = learned.gaps()
    return (
        f"induced margin {learned.induced_margin:.2f}, empirical {np.mean(gaps):.2f} "
        f"(classes {min(gaps):.2f} to {max(gaps):.2f})"
    ).replace("-", "−")


def boundary_chord(direction: Vectors, cosine: float, *, radius: float) -> Vectors:
    """The two ends of the chord {x : W·x = r cos θ} for a unit vector W of the plane."""
    across = np.array([-direction[1], direction[0]]) * math.sqrt(1 - cosine**2)
    return radius * np.array([cosine * direction - across, cosine * direction + across])


def person_colour(person: int) -> str:
    return PERSON_COLOURS[person % len(PERSON_COLOURS)]


# -- in the plane ----------------------------------------------------------------------------------


def _plane(axes: Axes, learned: LearnedFeatures) -> None:
    radius = learned.radius
    _blank(axes, x=(-1.25 * radius, 1.25 * radius), y=(-1.2 * radius, 1.2 * radius))
    axes.add_patch(Circle((0, 0), radius, facecolor=_INSIDE, edgecolor=_EDGE, linewidth=1))
    classifiers = np.asarray(learned.classifiers)
    # The class that points up most: its numbers are read like lines of a page.
    numbered = int(classifiers[:, 1].argmax())
    if learned.margin:
        _band(axes, learned, classifiers[numbered], person_colour(numbered))
    for person, direction in enumerate(classifiers):
        for number, ends in _chords(learned, direction):
            axes.plot(
                ends[:, 0],
                ends[:, 1],
                color=person_colour(person),
                linewidth=1.5 if person == numbered else 1.1,
                linestyle=_STYLES[number],
                label=f"({number + 1})",
            )
            if person == numbered:
                _number(axes, ends, number)
        _arrow(axes, tuple(0.94 * radius * direction), person_colour(person))
        x, y = 1.12 * radius * direction
        _name(axes, x, y, person)
    features, labels = radius * np.asarray(learned.features), np.asarray(learned.labels)
    for person in range(learned.people):
        _dots(axes, features[labels == person], person)


def _chords(learned: LearnedFeatures, direction: Vectors) -> list[tuple[int, Vectors]]:
    """The boundaries of one class that cross the circle; without a margin all three are one."""
    return [
        (number, boundary_chord(direction, cosine, radius=learned.radius))
        for number, cosine in enumerate(learned.boundaries)
        if abs(cosine) < 1 and (learned.margin or number == 1)
    ]


def _band(axes: Axes, learned: LearnedFeatures, direction: Vectors, colour: str) -> None:
    """The part of the disc between boundaries (3) and (1): nobody's."""
    low, high = (math.acos(min(1.0, learned.boundaries[number])) for number in (2, 0))
    middle, turn = math.atan2(direction[1], direction[0]), np.linspace(low, high, 60)
    angles = middle + np.concatenate([turn, -turn[::-1]])
    edge = learned.radius * np.column_stack([np.cos(angles), np.sin(angles)])
    axes.add_patch(Polygon(edge, facecolor=colour, alpha=0.10, edgecolor="none"))


def _number(axes: Axes, ends: Vectors, number: int) -> None:
    """The number of a boundary: on its line, but for (1) beside it, where features may lie."""
    first, second = ends
    x, y = 1.06 * first if number == 0 else first + 0.43 * (second - first)
    axes.text(
        x,
        y,
        f"({number + 1})",
        fontsize=8.5,
        color=INK,
        ha="center",
        va="center",
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9},
    )


def _key(figure: Figure) -> None:
    lines = [Line2D([], [], color=MUTED, linewidth=1.4, linestyle=style) for style in _STYLES]
    figure.legend(
        lines,
        BOUNDARIES,
        loc="lower center",
        ncols=3,
        fontsize=9,
        frameon=False,
        labelcolor=INK,
        handlelength=2.2,
        columnspacing=2.2,
        borderaxespad=0.3,
    )


# -- on the sphere ---------------------------------------------------------------------------------


def _planes(axes: Axes, learned: LearnedFeatures, view: Vectors, person: int) -> None:
    """What the planes of one class cut from the ball, as one sees them, and their names."""
    direction, colour = np.asarray(learned.classifiers)[person], person_colour(person)
    for number, cosine in enumerate(learned.boundaries):
        if abs(cosine) >= 1:
            continue
        rim = learned.radius * (boundary_rim(direction, cosine) @ view.T)
        if number != 1:
            axes.add_patch(Polygon(rim[:, :2], facecolor=colour, alpha=0.16, edgecolor="none"))
        front = np.where(rim[:, 2:] >= 0, rim[:, :2], np.nan)
        axes.plot(rim[:, 0], rim[:, 1], color=colour, linewidth=0.8, alpha=0.5)
        axes.plot(front[:, 0], front[:, 1], color=colour, linewidth=1.5, linestyle=_STYLES[number])
        x, y = rim[rim[:, 0].argmax(), :2]
        edge = 1.07 * learned.radius
        axes.plot([x, edge], [y, y], color=_EDGE, linewidth=0.7, zorder=0)
        axes.text(edge + 0.6, y, BOUNDARIES[number], fontsize=9, color=INK, va="center")


def _dots_in_view(axes: Axes, learned: LearnedFeatures, view: Vectors, *, behind: bool) -> None:
    seen = learned.radius * (np.asarray(learned.features) @ view.T)
    labels = np.asarray(learned.labels)
    for person in range(learned.people):
        chosen = (labels == person) & ((seen[:, 2] < 0) == behind)
        _dots(axes, seen[chosen, :2], person, faint=behind)


# -- what both have --------------------------------------------------------------------------------


def _require_dim(learned: LearnedFeatures, dim: int) -> None:
    if learned.dim != dim:
        raise ValueError(
            f"this picture is of features with {dim} dimensions, but these have {learned.dim}"
        )


def _blank(axes: Axes, *, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(*x)
    axes.set_ylim(*y)


def _headline(figure: Figure, x: float, start: str, learned: LearnedFeatures) -> None:
    top = figure.get_figheight()
    title = f"{start}m = {learned.margin:g},  r = {learned.radius:g}"
    figure.text(x, 1 - 0.17 / top, title, fontsize=10, fontweight="bold", color=INK, va="center")
    sentence = margin_sentence(learned)
    figure.text(x, 1 - 0.40 / top, sentence, fontsize=8.5, color=MUTED, va="center")


def _dots(axes: Axes, points: Vectors, person: int, *, faint: bool = False) -> None:
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=20,
        color=person_colour(person),
        alpha=0.3 if faint else 0.8,
        edgecolor="white",
        linewidth=0.5,
        zorder=2 if faint else 4,
        label=f"person {person + 1}",
    )


def _arrow(
    axes: Axes,
    tip: tuple[float, float],
    colour: str,
    *,
    strong: bool = False,
    faint: bool = False,
) -> None:
    style = {
        "arrowstyle": "-|>",
        "color": colour,
        "linewidth": 2.0 if strong else 1.2,
        "alpha": 0.4 if faint else 1.0,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 12 if strong else 10,
    }
    axes.annotate("", xy=tip, xytext=(0, 0), arrowprops=style)


def _name(axes: Axes, x: float, y: float, person: int) -> None:
    axes.text(
        x,
        y,
        f"$W_{person + 1}$",
        fontsize=10.5,
        color=person_colour(person),
        ha="center",
        va="center",
        zorder=5,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )
