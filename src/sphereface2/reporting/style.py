"""The look of all figures: colours, fonts, axes, legends, and their form as a file or as markup.

Every figure is built with matplotlib's object interface, so no global state is touched. Inside a
page its text stays text and its ink takes the page's colours, so one figure serves light and dark.
"""

import colorsys
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from sphereface2.evaluation.pair_scores import COMBINED
from sphereface2.evaluation.verification import RAW_PIXELS, UNTRAINED
from sphereface2.files import write_atomically

# One colour per method, in every figure of the project; all are legible on white and near-black.
METHOD_COLOURS = {
    "sphereface2-c": "#3b82f6",
    "sphereface2-a": "#06b6d4",
    "sphereface2-m": "#8b5cf6",
    "sphereface2": "#3b82f6",
    "softmax": "#a3836a",
    "normface": "#b45309",
    "sphereface": "#10b981",
    "cosface": "#f59e0b",
    "arcface": "#ef4444",
    "curricularface": "#ec4899",
    "circle": "#84cc16",
    "magface": "#d946ef",
    "adaface": "#14b8a6",
    "contrastive": "#65a30d",
    "triplet": "#0ea5e9",
    "simple": "#f97316",
    "deepid2": "#a855f7",
    "ring": "#e11d48",
    RAW_PIXELS: "#828a96",
    UNTRAINED: "#b3bac4",
}
SET_COLOURS = {
    "plain": "#3b82f6",
    "age-30": "#10b981",
    "cross-age": "#f59e0b",
    "cross-pose": "#ec4899",
    COMBINED: "#8b5cf6",
}
# One colour per person in pictures of features; neighbours in the list are well apart.
PERSON_COLOURS = ("#3b82f6", "#f59e0b", "#8b5cf6", "#10b981", "#ec4899", "#64748b")
GENUINE_COLOUR, IMPOSTOR_COLOUR = "#14b8a6", "#f97316"
BLUE, GREY = METHOD_COLOURS["sphereface2"], METHOD_COLOURS[RAW_PIXELS]
_OTHERS = ("#6366f1", "#0ea5e9", "#84cc16", "#ef4444", "#d946ef", "#a16207")

# Colours of the page: hex for a figure on its own, CSS variables once it is inside a page.
INK, MUTED, GRID = "#1e2530", "#5c6673", "#e3e6ea"
_PAGE_COLOURS = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)"}

ImageArray = npt.NDArray[np.uint8]
"""A picture, (height, width, 3) in RGB."""

DASHED = (0, (4, 2))
ROUND = (1, 2, 2.5, 5, 10)  # what ticks are multiples of
WIDTH = 6.4  # inches: a README shows it some 800 pixels wide, text then has its page's size
_SIZE = (3.6, 2.75)  # inches: a card a third of a page wide, with text of about its page's size


def method_colour(model: str) -> str:
    """The colour of a model by the longest method name that its label starts with."""
    known = [name for name in METHOD_COLOURS if model.lower().startswith(name)]
    return METHOD_COLOURS[max(known, key=len)] if known else _other(model)


def set_colour(name: str) -> str:
    return SET_COLOURS.get(name) or _other(name)


def distinct_colours(models: Sequence[str]) -> dict[str, str]:
    """A colour for each of several models: its method's own, as long as no other has it."""
    colours: dict[str, str] = {}
    for model in models:
        spare = [c for c in (method_colour(model), *_OTHERS) if c not in colours.values()]
        colours[model] = spare[0] if spare else method_colour(model)
    return colours


def shades(colour: str, count: int) -> list[str]:
    """`count` shades of one colour, from light to dark: small to large values of one setting."""
    hue, _, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    lightness = np.linspace(0.78, 0.28, count) if count > 1 else [0.5]
    mixed = [colorsys.hls_to_rgb(hue, float(light), saturation) for light in lightness]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in mixed]


def _other(name: str) -> str:
    """A colour for a name without one of its own; the same name always gets the same."""
    return _OTHERS[sum(name.encode()) % len(_OTHERS)]


# -- plots -----------------------------------------------------------------------------------------


def axes_of(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """A figure of one plot in the look of all of them."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes: Axes = figure.add_subplot()
    # Names come from users: a dollar sign must not start mathematics.
    figure.suptitle(
        short_name(title),
        x=0.015,
        ha="left",
        fontsize=9.5,
        fontweight="bold",
        color=INK,
        parse_math=False,
    )
    prepare_axes(axes, x_label, y_label)
    return figure, axes


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


def prepare_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """The look of every plot: quiet grid, labels, no frame."""
    axes.set_xlabel(x_label, fontsize=8.5, color=MUTED, parse_math=False)
    axes.set_ylabel(short_name(y_label), fontsize=8.5, color=MUTED, parse_math=False)
    axes.tick_params(labelsize=8, colors=MUTED, length=0, which="both")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)


def plain_log_ticks(axis: Axis) -> None:
    """A logarithmic axis that reads 0.001, not 10 to the power of -3."""
    axis.set_major_locator(LogLocator(numticks=6))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def filled_stairs(
    axes: Axes,
    heights: Sequence[float],
    edges: Sequence[float],
    colour: str,
    *,
    label: str | None = None,
    alpha: float = 0.3,
) -> None:
    """The bars of a histogram: a soft area under a firm line."""
    axes.stairs(heights, edges, color=colour, alpha=alpha, fill=True)
    axes.stairs(heights, edges, color=colour, linewidth=1.4, label=label)


def note_at(axes: Axes, x: float, text: str, colour: str, *, left: bool) -> None:
    """A word beside a vertical line, near the top of the plot."""
    axes.annotate(
        text,
        (x, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if left else 4, -3),
        textcoords="offset points",
        ha="right" if left else "left",
        va="top",
        fontsize=8,
        color=colour,
    )


def show_legend(axes: Axes, *, loc: Literal["best", "upper left"] = "best") -> None:
    """A legend that takes no room from the plot."""
    legend = axes.legend(fontsize=7.5, frameon=False, labelcolor=MUTED, loc=loc)
    legend.set_in_layout(False)  # a long label must not squeeze the plot
    for text in legend.get_texts():
        text.set_parse_math(False)


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


def short_name(name: str) -> str:
    """A name that fits into a figure, however long it is; it must not squeeze the plot."""
    words = " ".join(name.split())
    return words if len(words) <= 36 else words[:35] + "…"


# -- files and markup ------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedFigure:
    """A figure, what its file is called and what stands below it."""

    name: str
    caption: str
    figure: Figure


def save_figure(folder: Path, named: NamedFigure) -> list[Path]:
    """Write a figure as PNG and SVG, each whole or not at all; the paths."""
    paths = []
    for kind in ("png", "svg"):
        paths.append(folder / f"{named.name}.{kind}")
        write_figure(paths[-1], named.figure, kind=kind, dpi=200)
    return paths


def write_figure(path: Path, figure: Figure, *, kind: str, dpi: int) -> None:
    """Write a figure as a file of this kind, whole or not at all."""
    buffer = io.BytesIO()
    # Without a date, and with fixed names inside the SVG: the same result is the same file.
    metadata = {"Date": None} if kind == "svg" else {}
    with mpl.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    write_atomically(path, buffer.getvalue())


def to_svgs(name: str, drawn: Iterable[tuple[str, Figure]]) -> list[Markup]:
    """Several figures of a page, each with its description."""
    return [
        to_svg(figure, name=f"{name}{number}", description=description)
        for number, (description, figure) in enumerate(drawn)
    ]


def to_svg(figure: Figure, *, name: str, description: str) -> Markup:
    """Markup of the figure to stand inside an HTML page.

    `name` must be unique in the page: it keeps the inner references of its figures apart.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    markup = buffer.getvalue()
    markup = markup[markup.index("<svg") :]
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup, flags=re.DOTALL)
    markup = re.sub(r'<g id="[^"]*"', "<g", markup)
    markup = re.sub(r"<!--.*?-->", "", markup, flags=re.DOTALL)
    # A figure fills its place in the page; its view box keeps the shape.
    opening = re.sub(
        r'\s(?:width|height|version|xmlns(?::\w+)?)="[^"]*"', "", markup[: markup.index(">")]
    )
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    markup = f'{opening} role="img" aria-label="{label}"' + markup[markup.index(">") :]
    # The family alone, or the last part of the shorthand, as the version of matplotlib has it.
    markup = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", markup)
    markup = re.sub(r"(font: [^;'\"]*px) '[^;\"]*", r"\1 var(--sans)", markup)
    for colour, variable in _PAGE_COLOURS.items():
        markup = markup.replace(colour, variable)
    return Markup(markup)  # matplotlib escapes the text inside a figure
