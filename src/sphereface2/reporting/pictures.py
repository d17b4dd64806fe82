"""The pictures of a report: a contact sheet of the data, and the hardest pairs side by side."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from sphereface2.data.sources.source import Images, Source
from sphereface2.evaluation.results import COMBINED, EvaluationResult, ScoredPair

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
    done, encoded = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    assert done
    return "data:image/png;base64," + base64.b64encode(encoded.tobytes()).decode("ascii")
