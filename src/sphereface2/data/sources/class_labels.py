"""Classes from the labels that files hold: numbers with gaps or names become 0 to K - 1."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# 3, -1, and 3.000000, as im2rec writes it. Python reads no number of more digits than this.
_WHOLE = re.compile(r"(-?\d{1,4000})(?:\.0*)?")

Where = Callable[[int], str]
"""The place of the image with this number, for messages: a file and the line or key in it."""


def classes_of_numbers(
    numbers: NDArray[np.int64] | NDArray[np.uint64], where: Where
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels from 0 to K - 1 in the order of the numbers, and the number of each class.

    -1 means that the person is not known, and stays.
    """
    # An unsigned column may hold -1 as its largest number, so those are not taken for people.
    if int(numbers.max(initial=0)) > np.iinfo(np.int64).max:
        most = int(numbers.argmax())
        raise ValueError(
            f"{where(most)}: the label {numbers[most]} is above 2^63 - 1, the largest number that "
            "a label can be; write such labels as texts"
        )
    numbers = numbers.astype(np.int64, copy=False)
    least = int(numbers.min(initial=0))
    if least < -1:
        raise ValueError(_negative(where(int(numbers.argmin())), least))
    found, labels = np.unique(numbers, return_inverse=True)
    if least == -1:
        return labels.astype(np.int64) - 1, found[1:]
    return labels.astype(np.int64, copy=False), found


def classes_of_texts(texts: Sequence[str], where: Where) -> tuple[NDArray[np.int64], list[str]]:
    """Labels from 0 to K - 1 and the name of each class, for numbers or names written as text.

    If all are whole numbers, however large, the classes are in the order of the numbers, and
    otherwise in that of the names. -1 means that the person is not known, and stays.
    """
    names = sorted(set(texts))
    whole = {name: match[1] for name in names if (match := _WHOLE.fullmatch(name)) is not None}
    if whole and names == sorted([*whole, "nan"]):
        raise ValueError(
            f"{where(texts.index('nan'))}: the label 'nan' is not a number, and all others are; "
            "-1 means an unknown person"
        )
    if len(whole) == len(names):
        values = {name: int(text) for name, text in whole.items()}
        least = min(names, key=values.__getitem__)
        if values[least] < -1:
            raise ValueError(_negative(where(texts.index(least)), values[least]))
        spelling: dict[int, str] = {}
        for name, value in values.items():
            spelling.setdefault(value, whole[name])  # 0007 stays 0007
        kept = sorted(value for value in spelling if value >= 0)
        people = [spelling[value] for value in kept]
        class_of = {value: label for label, value in enumerate(kept)} | {-1: -1}
        label_of = {name: class_of[value] for name, value in values.items()}
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


def _negative(where: str, label: int) -> str:
    return f"{where}: the label is {label}; labels start from 0, and -1 means an unknown person"
