"""The pictures of an inspection: average face, sample rows, copies, and suspects by their kin."""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from sphereface2.datatools.inspect.inspection import Inspected
from sphereface2.faces.alignment import TEMPLATE

ImageArray = npt.NDArray[np.uint8]
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
    groups = [group for count in inspected.data.duplicates for group in count.named]
    groups.sort(key=lambda group: not group.across_people)
    result = inspected.labels
    return InspectionPictures(
        average=average,
        samples=tuple(PictureRow(people[label], (of(label, 10),)) for label in shown.tolist()),
        copies=tuple(
            PictureRow(
                " · ".join(dict.fromkeys(group.people)),
                (tuple(read(index) for index in group.indices[:4]),),
            )
            for group in groups[:COPIES]
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


def with_template(average: ImageArray) -> ImageArray:
    """The average face, three times as large, with the five points of the template marked."""
    large = cv2.resize(average, None, fx=3, fy=3, interpolation=cv2.INTER_CUBIC)
    for x, y in TEMPLATE.tolist():
        place = (round(3 * x + 1), round(3 * y + 1))
        cv2.circle(large, place, 5, (255, 255, 255), 1, cv2.LINE_AA)
        cv2.circle(large, place, 6, (0, 0, 0), 1, cv2.LINE_AA)
    return np.asarray(large, np.uint8)


def jpeg_data_uri(image: ImageArray, *, max_size: int = 112) -> str:
    """An RGB image as a JPEG inside a data URI; hundreds of them fit on a page."""
    height, width = image.shape[:2]
    if max(height, width) > max_size:
        scale = max_size / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
    quality = [cv2.IMWRITE_JPEG_QUALITY, 85]
    done, encoded = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), quality)
    assert done
    return "data:image/jpeg;base64," + base64.b64encode(encoded.tobytes()).decode("ascii")
