"""A file whose parts are handed out, wiped and reused: crops by bytes, embeddings by rows.

Among the rows the nearest people are found exactly, by matrix products block by block.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.files import naming, printable
from sphereface2.galleries.gallery import BrokenGalleryError, Embeddings, check_format

HEADER = 4_096  # a page, so that rows of 1,024 values or a divisor of it never straddle two
_FORM = struct.Struct("<8sIQ16s")
_MAGIC = b"sf2parts"
_FORMAT = 1
_ZEROS = bytes(1 << 20)


class PartsFile:
    """A header of one page, then units of `unit` bytes each; which are in use is known elsewhere.

    identity: of the gallery, so that a file of another is noticed
    """

    def __init__(self, path: Path, *, unit: int, identity: bytes) -> None:
        self.path = path
        self.unit = unit
        self._mapped: Embeddings | None = None
        try:
            self._file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            raise BrokenGalleryError(
                f"{printable(path)} is missing; restore the gallery from a copy"
            ) from None
        except PermissionError:
            self._file = os.open(path, os.O_RDONLY)
        try:
            self._check(identity)
        except BaseException:
            self.close()
            raise

    def _check(self, identity: bytes) -> None:
        with naming(self.path):
            head = os.pread(self._file, _FORM.size, 0)
        if len(head) < _FORM.size or not head.startswith(_MAGIC):
            raise BrokenGalleryError(
                f"{printable(self.path)} is damaged: it does not begin as the file of a gallery; "
                "restore it from a copy"
            )
        _, version, unit, whose = _FORM.unpack(head)
        check_format(printable(self.path), version, _FORMAT)
        if unit != self.unit or whose != identity:
            raise BrokenGalleryError(
                f"{printable(self.path)} belongs to another gallery; restore it from a copy"
            )

    @staticmethod
    def create(path: Path, *, unit: int, identity: bytes) -> None:
        path.write_bytes(_FORM.pack(_MAGIC, _FORMAT, unit, identity).ljust(HEADER, b"\0"))

    def units(self) -> int:
        """How many whole units there are, in use or not."""
        return max(0, os.fstat(self._file).st_size - HEADER) // self.unit

    def require(self, units: int, start: int = 0) -> None:
        """A ValueError if units up to here cannot be in use: the file has been cut, or is not its.

        start: where they begin
        """
        if not (isinstance(start, int) and isinstance(units, int) and 0 <= start <= units):
            raise BrokenGalleryError(
                f"{printable(self.path)} has no place from {start!r} to {units!r}: the gallery's "
                "database is damaged; restore it from a copy"
            )
        if self.units() < units:
            raise BrokenGalleryError(
                f"{printable(self.path)} is damaged: it has been cut after "
                f"{os.fstat(self._file).st_size:,} bytes; restore it from a copy"
            )

    def write(self, start: int, content: bytes | memoryview) -> None:
        place, rest = HEADER + start * self.unit, memoryview(content)
        while rest:
            with naming(self.path):
                written = os.pwrite(self._file, rest, place)
            place, rest = place + written, rest[written:]

    def wipe(self, start: int, stop: int) -> None:
        self.require(stop, start)  # else a damaged database would fill the disk with zeros
        place, rest = HEADER + start * self.unit, (stop - start) * self.unit
        while rest > 0:
            with naming(self.path):
                written = os.pwrite(self._file, _ZEROS[:rest], place)
            place, rest = place + written, rest - written

    def sync(self) -> None:
        with naming(self.path):
            os.fsync(self._file)

    def read(self, start: int, stop: int) -> bytes:
        self.require(stop, start)
        with naming(self.path):
            return os.pread(self._file, (stop - start) * self.unit, HEADER + start * self.unit)

    def rows(self, count: int) -> Embeddings:
        """The first rows as float32, mapped into memory: what is written later shows in them."""
        mapped = self._mapped
        if mapped is None or not isinstance(count, int) or len(mapped) < count:
            self.require(count)
            if not count:
                return np.empty((0, self.unit // 4), dtype=np.float32)
            shape = (self.units(), self.unit // 4)
            with naming(self.path):
                mapped = np.memmap(self.path, np.float32, "r", HEADER, shape).view(np.ndarray)
            self._mapped = mapped
        return mapped[:count]

    def is_in_place(self) -> bool:
        """Whether the path still leads to this file."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._mapped = None
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


# The nearest people among all rows.

Owners = NDArray[np.int64]
Found = tuple[int, int, float]
"""A person's number, the row of the photo that is nearest, its cosine."""

NOBODY = -1  # the owner of a row that is not in use
_SCORES = (
    1 << 22
)  # a product, 16 MB: of many small ones, threads that wait for each other cost more
_QUERIES = 64  # at a time
_FIRST = 1_024  # scores looked at first, where nearly all are the best so far; then twice as many
_MOST = 65_536


def nearest_people(
    rows: Embeddings, owners: Owners, queries: Embeddings, people: int
) -> list[list[Found]]:
    """The `people` nearest owners of each query, best first.

    rows: (N, D), a memory map or an array; owners: (N,), NOBODY for rows to be left out
    """
    found = []
    step = min(_SCORES // max(1, min(_QUERIES, len(queries))), len(owners))
    scores = np.empty(step * min(_QUERIES, len(queries)), dtype=np.float32)
    for start in range(0, len(queries), _QUERIES):
        part = queries[start : start + _QUERIES]
        best = [_Best(people) for _ in part]
        for top in range(0, len(owners), max(1, step)):
            block = rows[top : top + step]
            product = scores[: len(block) * len(part)].reshape(len(block), len(part))
            np.matmul(block, part.T, out=product)
            for column, each in zip(product.T, best, strict=True):
                each.take(column, owners[top : top + len(block)], top)
        found += [each.falling() for each in best]
    return found


class _Best:
    """The best people of one query so far; a score below the bar changes nothing."""

    def __init__(self, people: int) -> None:
        self._people = people
        self._scores = np.empty(0, dtype=np.float32)
        self._owners = np.empty(0, dtype=np.int64)
        self._rows = np.empty(0, dtype=np.int64)
        self._bar = np.float32(-np.inf)
        self._step = _FIRST

    def take(self, scores: Embeddings, owners: Owners, top: int) -> None:
        start = 0
        while start < len(scores):
            part = scores[start : start + self._step]
            better = np.flatnonzero(part > self._bar) + start
            better = better[owners[better] != NOBODY]
            if better.size:
                self._merge(scores[better], owners[better], better + top)
            start += len(part)
            self._step = min(2 * self._step, _MOST)

    def _merge(self, scores: Embeddings, owners: Owners, rows: Owners) -> None:
        scores = np.concatenate((self._scores, scores))
        owners = np.concatenate((self._owners, owners))
        rows = np.concatenate((self._rows, rows))
        order = np.argsort(-scores, kind="stable")  # of equals the earlier row stays ahead
        _, first = np.unique(owners[order], return_index=True)  # each person once, by the best
        kept = order[np.sort(first)[: self._people]]
        self._scores, self._owners, self._rows = scores[kept], owners[kept], rows[kept]
        if len(kept) == self._people:
            self._bar = self._scores[-1]

    def falling(self) -> list[Found]:
        each = zip(self._owners.tolist(), self._rows.tolist(), self._scores.tolist(), strict=True)
        return list(each)
