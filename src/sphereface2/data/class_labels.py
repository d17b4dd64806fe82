"""Classes from the labels that files hold: numbers with gaps or names become 0 to K - 1."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# 3, -1, and 3.000000, as im2rec writes it.
_WHOLE = re.compile(r"(-?\d+)(?:\.0*)?")


def classes_of_numbers(
    numbers: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels from 0 to K - 1 in the order of the numbers, and the number of each class.

    -1 means that the person is not known, and stays.
    """
    least = int(numbers.min(initial=0))
    if least < -1:
        first = int(np.flatnonzero(numbers == least)[0])
        raise ValueError(
            f"image {first} has label {least}; labels start from 0, and -1 means an unknown person"
        )
    found, labels = np.unique(numbers, return_inverse=True)
    if least == -1:
        return labels.astype(np.int64) - 1, found[1:]
    return labels.astype(np.int64, copy=False), found


def classes_of_texts(texts: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Labels from 0 to K - 1 and the name of each class, for numbers or names written as text.

    If all are whole numbers, the classes are in the order of the numbers, and otherwise in that
    of the names. -1 means that the person is not known, and stays.
    """
    names = sorted(set(texts))
    whole = [match[1] for name in names if (match := _WHOLE.fullmatch(name)) is not None]
    if len(whole) == len(names):
        values = np.array([int(text) for text in whole], np.int64)
        labels, kept = classes_of_numbers(values)
        spelling: dict[int, str] = {}
        for value, text in zip(values.tolist(), whole, strict=True):
            spelling.setdefault(value, text)  # 0007 stays 0007
        people = [spelling[value] for value in kept.tolist()]
        label_of = dict(zip(names, labels.tolist(), strict=True))
    else:
        people = [name for name in names if name != "-1"]
        label_of = {name: label for label, name in enumerate(people)} | {"-1": -1}
    return np.fromiter((label_of[text] for text in texts), np.int64, len(texts)), people


def gaps_note(numbers: NDArray[np.int64]) -> list[str]:
    """A sentence if the numbers of the classes leave some out, otherwise none."""
    if not len(numbers) or int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers):
        return []
    missing = int(numbers[-1]) - int(numbers[0]) + 1 - len(numbers)
    return [
        f"the labels {numbers[0]} to {numbers[-1]} leave out {missing} of them; the "
        f"{len(numbers)} people found are numbered from 0"
    ]
