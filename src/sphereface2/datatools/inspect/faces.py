"""The average face: what aligned faces have in common, and how much of it that is."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.transforms import resize
from sphereface2.faces.face import TEMPLATE, TEMPLATE_SIZE

SIDE = TEMPLATE_SIZE
DETAIL_SIDE = 56


def detail(grey: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A grey picture at 56 × 56 pixels, only what is about as large as an eye or a mouth."""
    return eye_sized(resize(grey, DETAIL_SIDE).astype(np.float32))


def eye_sized(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """The structures between 3 and 9 pixels of a picture; light and shade over the face go away."""
    fine = cv2.GaussianBlur(picture, (0, 0), 1.5)
    coarse = cv2.GaussianBlur(picture, (0, 0), 4.5)
    return np.asarray(fine - coarse, np.float32)


def _window() -> NDArray[np.float32]:
    """1 where an aligned face has its eyes, nose and mouth, 0 at the borders of the picture."""
    rows, columns = np.mgrid[:DETAIL_SIDE, :DETAIL_SIDE]
    window = np.exp(-(((columns - 27.5) / 17) ** 4) - ((rows - 33) / 20) ** 4)
    return np.asarray(window, np.float32)


_WINDOW = _window()


class FaceAverage:
    """Sums over pictures from which the average face and the agreement come."""

    def __init__(self) -> None:
        self.count = 0
        self._structured = 0  # pictures that are not blank
        self._colour = np.zeros((SIDE, SIDE, 3), np.float64)
        self._detail = np.zeros((DETAIL_SIDE, DETAIL_SIDE), np.float64)
        self._inner = np.zeros((DETAIL_SIDE, DETAIL_SIDE), np.float64)

    def add(self, image: NDArray[np.uint8], grey: NDArray[np.uint8]) -> None:
        """Take one RGB picture in; `grey` is the same without colour."""
        structure = detail(grey)
        self.count += 1
        cv2.accumulate(resize(image, SIDE), self._colour)
        # Of unit length: a picture of strong contrast counts no more than any other.
        self._detail += _unit(structure)
        inner = _unit(structure * _WINDOW)
        self._structured += bool(inner.any())
        self._inner += inner

    def merge(self, other: FaceAverage) -> None:
        """Take in all that another average has."""
        self.count += other.count
        self._structured += other._structured
        self._colour += other._colour
        self._detail += other._detail
        self._inner += other._inner

    def picture(self) -> NDArray[np.uint8]:
        """The average face, 112 × 112 RGB."""
        return np.rint(self._colour / max(self.count, 1)).astype(np.uint8)

    def detail(self) -> NDArray[np.float32]:
        """The average of the structures of eye's size, 56 × 56."""
        return (self._detail / max(self.count, 1)).astype(np.float32)

    def agreement(self) -> float:
        """The mean correlation of two different pictures' eyes, noses and mouths.

        1 if all are the same, 0 if they have nothing in common; it does not depend on how many
        pictures there are.
        """
        number = self._structured
        if number < 2:
            return 0.0
        # |Σu|² = N + Σ_{i≠j} u_i·u_j for unit vectors u
        together = float((self._inner**2).sum())
        return (together - number) / (number * (number - 1))


def _unit(structure: NDArray[np.float32]) -> NDArray[np.float32]:
    length = float(cv2.norm(structure))
    return structure / np.float32(length) if length > 1e-3 else np.zeros_like(structure)


# The colour of faces: grey pictures, and skin that is blue because red and blue are swapped.

_GREY = 3.0
"""Levels between the strongest and the weakest channel, on average, below which it is grey."""

_ENOUGH = 20  # pictures without which nothing is said
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


# Where the average face has its eyes, nose and mouth, against where aligned faces have them.

MIN_AGREEMENT = 0.13
"""Aligned faces reach 0.3 and more, profiles alone 0.16, photos that are not aligned 0.1."""
MIN_MATCH = 0.6
"""Aligned faces reach 0.9, noise and faces lying on their side 0.58; below, there is no face to
be placed."""
MAX_DISPLACEMENT = 5.0
"""Pixels of 112, on average over the five points; aligned faces of two sources have 1 and 2.3."""

# The dark parts of a face and the bright ridge of the nose, in pixels of 56: which point they lie
# at, offset to the right and down from it, half widths, strength. Fitted once to averages of
# aligned photos.
_EYES, _NOSE, _MOUTH = (0, 1), (2,), (3, 4)
_PARTS = (
    (_EYES, 0.0, 0.0, 5.1, 2.5, -1.0),
    (_EYES, -2.0, -3.1, 2.5, 0.7, -0.7),  # inner end of the brow: towards the nose
    (_NOSE, 0.0, 2.7, 4.5, 3.0, -0.5),
    (_NOSE, 0.0, -3.0, 1.8, 6.0, 0.14),
    (_MOUTH, 0.0, -0.1, 7.5, 3.0, -0.44),
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 10, 46, 17, 52  # the part of the picture that is compared
_BORDER = 12


@dataclass(frozen=True)
class AlignmentCheck:
    """How the average face lies; lengths are pixels of a 112 × 112 picture.

    agreement: mean correlation of two pictures' eyes, noses and mouths
    match: correlation of the average with the drawn face at its best place
    right, down, scale, turn: that place, against an aligned face; degrees counter-clockwise
    displacement: mean distance of the five points from where they belong
    verdict: aligned, displaced, scattered, no face or not judged
    """

    images: int
    agreement: float
    match: float
    right: float
    down: float
    scale: float
    turn: float
    displacement: float
    verdict: str


def check_alignment(average: FaceAverage) -> AlignmentCheck:
    """Whether the pictures are aligned with each other, and at the place of the template."""
    agreement = average.agreement()
    match, scale, turn, points = _best_pose(average.detail())
    offset = points - _points()
    right, down = (offset.mean(axis=0) * SIDE / DETAIL_SIDE).tolist()
    displacement = float(np.linalg.norm(offset, axis=1).mean()) * SIDE / DETAIL_SIDE
    if average.count < _ENOUGH:
        verdict = "not judged"
    elif agreement < MIN_AGREEMENT:
        verdict = "scattered"
    elif match < MIN_MATCH:
        verdict = "no face"
    elif displacement > MAX_DISPLACEMENT:
        verdict = "displaced"
    else:
        verdict = "aligned"
    return AlignmentCheck(
        images=average.count,
        agreement=agreement,
        match=match,
        right=right,
        down=down,
        scale=scale,
        turn=turn,
        displacement=displacement,
        verdict=verdict,
    )


def drawn_face() -> NDArray[np.float32]:
    """An aligned face as a few dark and bright spots, of eye's size only, 56 × 56."""
    rows, columns = np.mgrid[:DETAIL_SIDE, :DETAIL_SIDE]
    face = np.zeros((DETAIL_SIDE, DETAIL_SIDE), np.float32)
    points = _points()
    for at, right, down, wide, high, strength in _PARTS:
        # The mouth is one part between its two corners; each eye is one of its own.
        places = [points[list(at)].mean(axis=0)] if at is _MOUTH else [points[i] for i in at]
        for place in places:
            outwards = -1 if place[0] < DETAIL_SIDE / 2 and at is _EYES else 1
            x, y = place[0] + outwards * right, place[1] + down
            face += strength * np.exp(
                -(((columns - x) / wide) ** 2 + ((rows - y) / high) ** 2) / 2
            ).astype(np.float32)
    return eye_sized(face)


def _points() -> NDArray[np.float64]:
    # Pixel centres: x of 112 is (x + ½)/2 − ½ of 56.
    return (TEMPLATE + 0.5) * DETAIL_SIDE / SIDE - 0.5


def _best_pose(structure: NDArray[np.float32]) -> tuple[float, float, float, NDArray[np.float64]]:
    """Match, scale, turn, and the five points in the picture where the drawn face fits best."""
    face = drawn_face()[_TOP:_BOTTOM, _LEFT:_RIGHT]
    framed = np.pad(structure, _BORDER)
    scales, turns = np.geomspace(0.6, 1.6, 15), np.arange(-30.0, 31.0, 5.0)
    _, scale, turn, _ = _search(framed, face, scales, turns)
    return _search(framed, face, scale * np.geomspace(0.94, 1.06, 7), np.arange(turn - 4, turn + 5))


def _search(
    framed: NDArray[np.float32],
    face: NDArray[np.float32],
    scales: NDArray[np.float64],
    turns: NDArray[np.float64],
) -> tuple[float, float, float, NDArray[np.float64]]:
    middle = (DETAIL_SIDE - 1) / 2 + _BORDER
    best = (-2.0, 1.0, 0.0, _points())
    for scale in scales.tolist():
        for turn in turns.tolist():
            undo = cv2.getRotationMatrix2D((middle, middle), -turn, 1 / scale)
            upright = cv2.warpAffine(framed, undo, framed.shape[::-1])
            scores = cv2.matchTemplate(upright, face, cv2.TM_CCOEFF_NORMED)
            _, match, _, (left, top) = cv2.minMaxLoc(scores)
            if match > best[0]:
                places = _points() + np.array([left - _LEFT, top - _TOP])
                redo = cv2.invertAffineTransform(undo)
                points = np.column_stack((places, np.ones(len(places)))) @ redo.T - _BORDER
                best = (float(match), float(scale), float(turn), np.asarray(points, np.float64))
    return best
