"""What an inspection shows: images per person, sizes, margins of labels, and its pictures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sphereface2.datatools.inspect import Inspected, Inspection, NamedGroup, PeopleCount, SizeCount
from sphereface2.evaluation.mislabelled import MislabelledResult
from sphereface2.faces.face import TEMPLATE
from sphereface2.reporting.style import (
    BLUE,
    DASHED,
    GENUINE_COLOUR,
    IMPOSTOR_COLOUR,
    ImageArray,
    axes_of,
    filled_stairs,
    note_at,
)


def people_figure(people: PeopleCount) -> Figure:
    """How many people have how many images."""
    figure, axes = axes_of("Images per person", "images", "people")
    # A bin reaches half an image to either side: one of 5 images lies over the 5.
    edges = [edge - 0.5 for edge in people.edges]
    filled_stairs(axes, people.counts, edges, BLUE, alpha=0.35)
    if people.most >= 20 * max(people.fewest, 1):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
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
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return figure


# -- an inspection: average face, sample rows, copies, and suspects beside people they resemble ----

Read = Callable[[int], ImageArray]

SUSPECTS, COPIES, PEOPLE, DOUBTFUL = 60, 24, 6, 12
"""How many of each a page shows."""


@dataclass(frozen=True, eq=False)
class PictureRow:
    """Pictures that belong together, under one caption; a gap stands between the parts."""

    caption: str
    parts: tuple[tuple[ImageArray, ...], ...]


@dataclass(frozen=True, eq=False)
class InspectionPictures:
    """All that the page of an inspection shows as pictures."""

    average: ImageArray
    samples: tuple[PictureRow, ...] = ()
    copies: tuple[PictureRow, ...] = ()
    suspects: tuple[PictureRow, ...] = ()
    alike: tuple[PictureRow, ...] = ()
    split: tuple[PictureRow, ...] = ()


def collect_pictures(
    inspected: Inspected,
    *,
    average: ImageArray,
    labels: npt.NDArray[np.int64],
    people: Sequence[str],
    usable: npt.NDArray[np.bool_],
    read: Read,
) -> InspectionPictures:
    """Read the pictures that the page shows; `read` gives an image of the source by its number.

    Only `usable` images are shown as samples. Suspects are not shown as examples of a person.
    """
    result = inspected.labels
    clean = usable.copy()
    clean[[suspect.index for suspect in (result.suspects if result else ())]] = False

    def of(label: int, number: int, *, but: Iterable[int] = ()) -> list[int]:
        found = np.flatnonzero((labels == label) & clean)
        found = found[~np.isin(found, list(but))]
        # Evenly over the person's images: neighbours are often from one photo session.
        chosen = np.linspace(0, len(found) - 1, min(number, len(found))).astype(int)
        return [int(index) for index in found[chosen]]

    def row(caption: str, *parts: Iterable[int]) -> PictureRow:
        return PictureRow(caption, tuple(tuple(map(read, part)) for part in parts))

    known = np.unique(labels[usable & (labels >= 0)])
    shown = known[np.linspace(0, len(known) - 1, min(PEOPLE, len(known))).astype(int)]
    return InspectionPictures(
        average=average,
        samples=tuple(row(people[label], of(label, 10)) for label in shown.tolist()),
        copies=tuple(
            row(" · ".join(dict.fromkeys(group.people)), group.indices[:4])
            for group in groups_of_copies(inspected.data)[:COPIES]
        ),
        suspects=tuple(
            row(suspect.image, [suspect.index], suspect.examples, suspect.other_examples)
            for suspect in (result.suspects[:SUSPECTS] if result else ())
        ),
        alike=tuple(
            row(
                f"{pair.first_person} and {pair.second_person}",
                of(pair.first, 4),
                of(pair.second, 4),
            )
            for pair in (result.alike[:DOUBTFUL] if result else ())
        ),
        split=tuple(
            row(each.person, of(each.label, 4, but=each.part), each.part[:4])
            for each in (result.split[:DOUBTFUL] if result else ())
        ),
    )


def groups_of_copies(data: Inspection) -> list[NamedGroup]:
    """All groups that are named, those with several people first."""
    groups = [group for count in data.duplicates for group in count.named]
    return sorted(groups, key=lambda group: not group.across_people)


def with_template(average: ImageArray) -> ImageArray:
    """The average face, three times as large, with the five points of the template marked."""
    large = cv2.resize(average, None, fx=3, fy=3, interpolation=cv2.INTER_CUBIC)
    for x, y in TEMPLATE.tolist():
        place = (round(3 * x + 1), round(3 * y + 1))
        cv2.circle(large, place, 5, (255, 255, 255), 1, cv2.LINE_AA)
        cv2.circle(large, place, 6, (0, 0, 0), 1, cv2.LINE_AA)
    return np.asarray(large, np.uint8)
