"""Near-identical pictures: a hash of 128 bits for each, and all pairs that differ in few bits."""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

BITS = 128
MAX_DISTANCE = 12
"""Bits: the same photo saved again as a poor JPEG, scaled or brightened differs in up to 10, one
cropped or aligned again often in 12; another photo of the person hardly ever in fewer than 20."""

_SIDE = 32
_FLAT = 0.5  # grey levels × 32: an empty picture has the hash 0, not one of its rounding errors
_TABLES, _PICKED = 48, 22


def _lowest_waves() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of the 128 slowest waves of the DCT, without the constant one."""
    rows, columns = np.divmod(np.arange(_SIDE * _SIDE), _SIDE)
    order = np.lexsort((rows, rows + columns))[1 : BITS + 1]
    return rows[order], columns[order]


_ROWS, _COLUMNS = _lowest_waves()


def picture_hash(grey: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The signs of a grey picture's 128 slowest waves, as two words of 64 bits."""
    small = cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    signs = cv2.dct(small.astype(np.float32))[_ROWS, _COLUMNS] > _FLAT
    return np.packbits(signs).view(np.uint64)


def distance(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.int64]:
    """In how many bits hashes of shape (..., 2) differ."""
    return np.asarray(_ones(left ^ right).sum(axis=-1), np.int64)


def near_pairs(
    hashes: NDArray[np.uint64], *, max_distance: int = MAX_DISTANCE
) -> NDArray[np.int64]:
    """The pairs (i, j), i < j, of different hashes of shape (N, 2) within `max_distance` bits.

    Not all are compared with all: 48 times 22 bits are picked, and only hashes that agree in all
    of those are compared. A pair that differs in 12 bits is missed once in a hundred times, one
    that differs in 8 or fewer practically never. Hashes that are equal must have been merged before
    (`equal_groups`), for a thousand copies of one are half a million pairs.
    """
    if not 0 <= max_distance < BITS // 4:
        raise ValueError(f"max_distance must be from 0 to {BITS // 4 - 1}, got {max_distance}")
    found = [np.empty((0, 2), np.int64)]
    picks = np.random.default_rng(0)  # the same picks for everyone: same data, same answer
    for _ in range(_TABLES):
        keys = _picked(hashes, picks.choice(BITS, _PICKED, replace=False))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        for place, step in _neighbours(keys):
            left, right = order[place], order[place + step]
            near = distance(hashes[left], hashes[right]) <= max_distance
            if near.any():
                found.append(np.sort(np.stack((left[near], right[near]), axis=1), axis=1))
    return np.unique(np.concatenate(found), axis=0)


def equal_groups(rows: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row of (N, 2) the number of its value, and for each value its first row."""
    _, first, group = np.unique(
        np.ascontiguousarray(rows).view([("high", np.uint64), ("low", np.uint64)]).ravel(),
        return_index=True,
        return_inverse=True,
    )
    return group.astype(np.int64).ravel(), first.astype(np.int64)


def linked(pairs: NDArray[np.int64]) -> list[list[int]]:
    """The groups of numbers that the pairs link together, each sorted, by their first number."""
    parent: dict[int, int] = {}

    def root(number: int) -> int:
        while parent.setdefault(number, number) != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for left, right in pairs.tolist():
        low, high = sorted((root(left), root(right)))
        parent[high] = low
    groups: dict[int, list[int]] = {}
    for number in sorted(parent):
        groups.setdefault(root(number), []).append(number)
    return list(groups.values())


def _picked(hashes: NDArray[np.uint64], bits: NDArray[np.int64]) -> NDArray[np.int32]:
    """Some bits of each hash as one number."""
    octets = np.ascontiguousarray(hashes).view(np.uint8)
    keys = np.zeros(len(hashes), np.int32)
    for bit in bits.tolist():
        octet, place = divmod(bit, 8)
        keys = 2 * keys + (octets[:, octet] >> (7 - place) & 1)
    return keys


def _neighbours(keys: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Every pair of places with equal keys in a sorted list, by the step between the two."""
    place, step = np.arange(len(keys)), 0
    while True:
        step += 1
        place = place[place + step < len(keys)]
        # Keys are sorted: what has an equal at this step had one at the step before.
        place = place[keys[place] == keys[place + step]]
        if not len(place):
            return
        yield place, step


def _ones(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """How many bits of each word are set."""
    words = words - ((words >> np.uint64(1)) & np.uint64(0x5555555555555555))
    pairs = np.uint64(0x3333333333333333)
    words = (words & pairs) + ((words >> np.uint64(2)) & pairs)
    words = (words + (words >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (words * np.uint64(0x0101010101010101)) >> np.uint64(56)
