"""The colour of faces: grey pictures, and skin that is blue because red and blue are swapped."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

_GREY = 3.0
"""Levels between the strongest and the weakest channel, on average, below which it is grey."""

_ENOUGH = 20  # colour pictures without which nothing is said
_FEW = 0.02  # of aligned photos some 0.5 % have blue centres: stage light, masks, wrong crops


@dataclass(frozen=True)
class ColourCheck:
    """How many colour pictures are bluer than red in their centre.

    Skin of every tone reflects more red than blue, so in RGB nearly all centres are red.
    """

    colour_images: int
    grey_images: int
    blue_images: int
    blue_people: tuple[str, ...]
    """People most of whose colour pictures are blue, three at least; the first hundred."""
    verdict: str
    """right, swapped, partly swapped or not judged."""

    @property
    def blue_share(self) -> float:
        return self.blue_images / self.colour_images if self.colour_images else 0.0


def redness(image: NDArray[np.uint8]) -> float:
    """Red less blue, in levels, on average over the middle of an RGB picture: the cheeks and nose.

    Not a number where the picture is grey.
    """
    height, width = image.shape[:2]
    red, green, blue = cv2.split(image[:: max(1, height // 28), :: max(1, width // 28)])
    strongest, weakest = cv2.max(cv2.max(red, green), blue), cv2.min(cv2.min(red, green), blue)
    if cv2.mean(cv2.subtract(strongest, weakest))[0] < _GREY:
        return float("nan")
    middle = image[height * 36 // 100 : height * 80 // 100, width * 27 // 100 : width * 73 // 100]
    means = cv2.mean(middle)
    return float(means[0] - means[2])


def check_colours(
    rednesses: NDArray[np.float32], labels: NDArray[np.int64], people: list[str]
) -> ColourCheck:
    """The verdict over all pictures; each is given by its `redness` and its label."""
    coloured = ~np.isnan(rednesses)
    blue = coloured & (rednesses < 0)
    known = labels >= 0
    of_person = np.bincount(labels[coloured & known], minlength=len(people))
    blue_of_person = np.bincount(labels[blue & known], minlength=len(people))
    mostly = np.flatnonzero((blue_of_person >= 3) & (2 * blue_of_person > of_person))
    total, count = int(coloured.sum()), int(blue.sum())
    if total < _ENOUGH:
        verdict = "not judged"
    elif 2 * count > total:
        verdict = "swapped"
    elif count > _FEW * total:
        verdict = "partly swapped"
    else:
        verdict = "right"
    return ColourCheck(
        colour_images=total,
        grey_images=len(rednesses) - total,
        blue_images=count,
        blue_people=tuple(people[label] for label in mostly[:100]),
        verdict=verdict,
    )
