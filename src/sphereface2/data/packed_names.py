"""The names of millions of files, in little memory and without an object for each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class PackedNames:
    """Names in a row, found by where they end.

    A list of strings takes three times as much, and forked processes that use it end up with a
    copy each, for a count of references stands in every string.
    """

    def __init__(self, names: Iterable[str]) -> None:
        # Bytes that are no UTF-8 come as lone surrogates, which this takes as they are.
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        self._text = b"".join(encoded)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self._ends = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"name {index} of {len(self)}")
        place = index % len(self)
        start, end = self._ends.item(place), self._ends.item(place + 1)
        return self._text[start:end].decode("utf-8", "surrogatepass")
