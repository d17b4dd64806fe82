"""Arithmetic of boxes: rows of left, top, right, bottom."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def suppress(
    boxes: Floats, scores: Floats, *, overlap: float, of_smaller: bool = False
) -> NDArray[np.intp]:
    """Non-maximum suppression: which boxes stay, the surest first.

    A box goes if a surer one that stays overlaps it by more than `overlap` of their union, or of
    the smaller of the two.
    """
    left, top, right, bottom = boxes.T
    areas = (right - left) * (bottom - top)
    order = np.argsort(-scores, kind="stable")
    kept = []
    while len(order):
        best, rest = order[0], order[1:]
        kept.append(best)
        width = np.minimum(right[best], right[rest]) - np.maximum(left[best], left[rest])
        height = np.minimum(bottom[best], bottom[rest]) - np.maximum(top[best], top[rest])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        if of_smaller:
            whole = np.minimum(areas[best], areas[rest])
        else:
            whole = areas[best] + areas[rest] - shared
        order = rest[shared <= overlap * whole]
    return np.array(kept, np.intp)


def moved(boxes: Floats, offsets: Floats) -> Floats:
    """Boxes with each edge moved by its offset, given as a share of the box's width or height."""
    size = boxes[:, 2:] - boxes[:, :2]
    return boxes + offsets * np.hstack([size, size])


def squared(boxes: Floats) -> Floats:
    """The squares around the same centres with the boxes' longer sides."""
    size = boxes[:, 2:] - boxes[:, :2]
    centre = boxes[:, :2] + size / 2
    half = size.max(axis=1, keepdims=True) / 2
    return np.hstack([centre - half, centre + half])
