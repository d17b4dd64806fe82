"""Figures of an inspection: images per person, sizes, margins of labels. They compute nothing."""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sphereface2.datatools.inspect import PeopleCount, SizeCount
from sphereface2.evaluation.mislabelled import MislabelledResult
from sphereface2.reporting.style import (
    BLUE,
    DASHED,
    GENUINE_COLOUR,
    IMPOSTOR_COLOUR,
    axes_of,
    filled_stairs,
    note_at,
)


def people_figure(people: PeopleCount) -> Figure:
    """How many people have how many images."""
    figure, axes = axes_of("Images per person", "images", "people")
    filled_stairs(axes, people.counts, people.edges, BLUE, alpha=0.35)
    if people.most >= 20 * max(people.fewest, 1):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.set_ylim(0, 1.1 * max(*people.counts, 1))
    return figure


def sizes_figure(sizes: tuple[SizeCount, ...]) -> Figure:
    """The sizes of the images; the larger a dot, the more images have that size."""
    figure, axes = axes_of("Sizes", "width", "height")
    most = max(size.images for size in sizes)
    axes.scatter(
        [size.width for size in sizes],
        [size.height for size in sizes],
        s=[12 + 180 * size.images / most for size in sizes],
        color=BLUE,
        alpha=0.5,
        linewidths=0,
    )
    longest = max(max(size.width, size.height) for size in sizes)
    axes.plot([0, 1.15 * longest], [0, 1.15 * longest], color=BLUE, linewidth=0.8, alpha=0.6)
    axes.set_xlim(0, 1.15 * longest)
    axes.set_ylim(0, 1.15 * longest)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return figure


def margins_figure(result: MislabelledResult) -> Figure:
    """The margins of all judged images; all suspects lie left of the threshold."""
    figure, axes = axes_of("Margins", "own less best other similarity", "images")
    edges, counts = result.histogram.edges, result.histogram.counts
    filled_stairs(axes, counts, edges, GENUINE_COLOUR, alpha=0.35)
    if result.threshold is not None:
        axes.axvline(result.threshold, color=IMPOSTOR_COLOUR, linewidth=1.2, linestyle=DASHED)
        word = f"suspects {result.threshold:.2f}".replace("-", "−")
        note_at(axes, result.threshold, word, IMPOSTOR_COLOUR, left=True)
    # Few wrong labels among very many right ones: on a plain axis they would not be seen.
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(0, 1.5 * max(*counts, 10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure
