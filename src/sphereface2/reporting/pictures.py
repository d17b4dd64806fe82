"""The pictures of pages: contact sheets, the hardest pairs, and what an inspection has found."""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from sphereface2.data.sources.source import Images, Source
from sphereface2.datatools.inspect import Inspected, Inspection, NamedGroup
from sphereface2.evaluation.results import COMBINED, EvaluationResult, ScoredPair
from sphereface2.faces.face import TEMPLATE

ImageArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class PairPicture:
    """The two images of a pair, uint8 RGB, with its score."""

    left: ImageArray
    right: ImageArray
    score: float
    same: bool
    set_name: str


@dataclass(frozen=True, eq=False)
class ReportPictures:
    """All that a report shows as pictures; each part may be missing.

    no_contact_sheet: what stands in the place of a contact sheet that is missing
    """

    contact_sheet: ImageArray | None = None
    no_contact_sheet: str = "No contact sheet was given."
    contact_sheet_caption: str = "Each row is one person."
    hardest: tuple[PairPicture, ...] = ()


def hardest_pairs(
    evaluation: EvaluationResult,
    images: Mapping[str, Images],
    *,
    model: str | None = None,
    per_set: int = 3,
) -> tuple[PairPicture, ...]:
    """The pictures of the `per_set` worst pairs of each kind, of each set that `images` names.

    `model` is by default the evaluation's subject.
    """
    pictures = []
    for set_name in evaluation.sets:
        result = evaluation.find(model or evaluation.model, set_name)
        if result is None or set_name not in images or set_name == COMBINED:
            continue
        worst: list[ScoredPair] = [
            *result.hardest_genuine[:per_set],
            *result.hardest_impostor[:per_set],
        ]
        pictures += [
            PairPicture(
                left=images[set_name][pair.left],
                right=images[set_name][pair.right],
                score=pair.score,
                same=pair.same,
                set_name=set_name,
            )
            for pair in worst
        ]
    return tuple(pictures)


def people_sheet(
    source: Source,
    *,
    people: Sequence[int] | None = None,
    samples: int = 10,
    size: int = 112,
    gap: int = 2,
) -> ImageArray:
    """A picture of a source: a row for each of the people (the first seven), a column an image.

    A person with fewer images leaves the rest of the row white.
    """
    known = [int(label) for label in np.unique(source.labels) if label >= 0]
    shown = known[:7] if people is None else list(people)
    step = size + gap
    sheet = np.full((len(shown) * step - gap, samples * step - gap, 3), 255, dtype=np.uint8)
    for row, label in enumerate(shown):
        for column, index in enumerate(np.flatnonzero(source.labels == label)[:samples]):
            image, _ = source[int(index)]
            tile = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA)
            top, left = row * step, column * step
            sheet[top : top + size, left : left + size] = tile
    return sheet


def png_data_uri(image: ImageArray, *, max_size: int | None = None) -> str:
    """An RGB image as a PNG inside a data URI; `max_size` bounds its longer side."""
    return _data_uri(image, "png", max_size)


def jpeg_data_uri(image: ImageArray, *, max_size: int = 112) -> str:
    """An RGB image as a JPEG inside a data URI; hundreds of them fit on a page."""
    return _data_uri(image, "jpeg", max_size, cv2.IMWRITE_JPEG_QUALITY, 85)


def _data_uri(image: ImageArray, kind: str, max_size: int | None, *options: int) -> str:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(
            "a picture of the report must be uint8 of the shape (height, width, 3), got "
            f"{image.dtype} of the shape {image.shape}"
        )
    height, width = image.shape[:2]
    if max_size is not None and max(height, width) > max_size:
        scale = max_size / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    done, encoded = cv2.imencode(f".{kind}", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
    assert done
    return f"data:image/{kind};base64,{base64.b64encode(encoded.tobytes()).decode('ascii')}"


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
    doubted = (
        {suspect.index for suspect in inspected.labels.suspects} if inspected.labels else set()
    )
    clean = usable.copy()
    clean[list(doubted)] = False

    def of(label: int, number: int, *, but: Iterable[int] = ()) -> tuple[ImageArray, ...]:
        found = np.flatnonzero((labels == label) & clean)
        found = found[~np.isin(found, list(but))]
        # Evenly over the person's images: neighbours are often from one photo session.
        chosen = found[np.linspace(0, len(found) - 1, min(number, len(found))).astype(int)]
        return tuple(read(index) for index in chosen.tolist())

    known = np.unique(labels[usable & (labels >= 0)])
    shown = known[np.linspace(0, len(known) - 1, min(PEOPLE, len(known))).astype(int)]
    result = inspected.labels
    return InspectionPictures(
        average=average,
        samples=tuple(PictureRow(people[label], (of(label, 10),)) for label in shown.tolist()),
        copies=tuple(
            PictureRow(
                " · ".join(dict.fromkeys(group.people)),
                (tuple(read(index) for index in group.indices[:4]),),
            )
            for group in groups_of_copies(inspected.data)[:COPIES]
        ),
        suspects=tuple(
            PictureRow(
                suspect.image,
                (
                    (read(suspect.index),),
                    tuple(read(index) for index in suspect.examples),
                    tuple(read(index) for index in suspect.other_examples),
                ),
            )
            for suspect in (result.suspects[:SUSPECTS] if result else ())
        ),
        alike=tuple(
            PictureRow(
                f"{pair.first_person} and {pair.second_person}",
                (of(pair.first, 4), of(pair.second, 4)),
            )
            for pair in (result.alike[:DOUBTFUL] if result else ())
        ),
        split=tuple(
            PictureRow(
                each.person,
                (
                    of(each.label, 4, but=each.part),
                    tuple(read(index) for index in each.part[:4]),
                ),
            )
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
