"""A file whose parts are handed out, wiped and reused: embeddings by rows, crops by bytes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from sphereface2.files import naming, printable
from sphereface2.galleries.gallery import Embeddings

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
            raise ValueError(
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
            raise ValueError(
                f"{printable(self.path)} is damaged: it does not begin as the file of a gallery; "
                "restore it from a copy"
            )
        _, version, unit, whose = _FORM.unpack(head)
        if version > _FORMAT:
            raise ValueError(
                f"{printable(self.path)} has format {version}, which this version of sphereface2 "
                f"does not know (it knows {_FORMAT}); use a newer one"
            )
        if unit != self.unit or whose != identity:
            raise ValueError(
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
            raise ValueError(
                f"{printable(self.path)} has no place from {start!r} to {units!r}: the gallery's "
                "database is damaged; restore it from a copy"
            )
        if self.units() < units:
            raise ValueError(
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
