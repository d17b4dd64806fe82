"""The average face: what aligned faces have in common, and how much of it that is."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

SIDE = 112
DETAIL_SIDE = 56


def detail(grey: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A grey picture at 56 × 56 pixels, only what is about as large as an eye or a mouth."""
    small = cv2.resize(grey, (DETAIL_SIDE, DETAIL_SIDE), interpolation=cv2.INTER_AREA)
    return eye_sized(small.astype(np.float32))


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
        if image.shape[:2] != (SIDE, SIDE):
            image = np.asarray(
                cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA), np.uint8
            )
        structure = detail(grey)
        self.count += 1
        cv2.accumulate(image, self._colour)
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
