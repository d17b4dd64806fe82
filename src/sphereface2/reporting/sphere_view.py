"""How a sphere is looked at: which way is up, and what lies in front."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.floating[Any]]

_ELEVATION = math.radians(18)  # how far one looks down on planes that lie across the upright


@dataclass(frozen=True)
class SphereView:
    """A parallel projection; the rows of `frame` are right, up and towards the eye."""

    frame: Vectors

    @classmethod
    def of(cls, directions: Vectors, *, up: int) -> Self:
        """The view with one direction upright that shows the tips of all of them best apart."""
        views = [
            cls(_frame(directions[up], turn)) for turn in np.linspace(0, 2 * math.pi, 72, False)
        ]
        return max(views, key=lambda view: _least_distance(view.seen(directions)[:, :2]))

    def seen(self, points: Vectors) -> Vectors:
        """Points as (to the right, upwards, towards the eye)."""
        return np.asarray(points @ self.frame.T)

    @staticmethod
    def rim(direction: Vectors, cosine: float) -> Vectors:
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
