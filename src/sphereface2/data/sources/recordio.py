"""RecordIO files (.rec with .idx) of InsightFace and of im2rec, memory-mapped, without mxnet."""

from __future__ import annotations

import mmap
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import EncodedImages, OnBadImage, people_file
from sphereface2.data.sources.image_file import Encoded, ending_of, to_array
from sphereface2.data.sources.recordio_writer import (
    FIRST,
    HEADER,
    LENGTH_BITS,
    MAGIC,
    MAX_LENGTH,
    WHOLE,
    from_frames,
    record_starts,
)
from sphereface2.data.sources.source import classes_of_numbers, gaps_note
from sphereface2.files import printable
from sphereface2.registry import DataPath
from sphereface2.workers import Progress, unseen

_HEADER_WORDS = HEADER.size // 4
_AT_ONCE = 1 << 18
_CAN_ADVISE = hasattr(mmap, "MADV_RANDOM")
_EXACT = 1 << 24
"""float32, as which labels are stored, holds every whole number up to this one."""


class RecordIO(EncodedImages):
    """The images of a .rec file, in the order of the file, labelled from 0 to K - 1.

    With an .idx of the same name beside it, the records are those that it lists; without one
    they are found by reading through the file. Images are parts of the memory-mapped file, so
    the source can be used from any number of threads, and in processes to which it is forked or
    sent.
    """

    def __init__(
        self, *, path: DataPath, image_size: int | None = None, on_bad_image: OnBadImage = "stop"
    ) -> None:
        self._file = Path(path)
        self._index_file = self._file.with_suffix(".idx")
        self._is_checked = False
        self._mapped: tuple[mmap.mmap, memoryview] | None = None
        self._is_read_at_random = False
        _require_rec(self._file)
        keys, offsets = self._records()
        heads = _Heads(len(offsets))
        for start in range(0, len(offsets), _AT_ONCE):
            self._read_heads(heads, keys, offsets, slice(start, start + _AT_ONCE))
        if not self._index_file.exists() and len(np.unique(heads.ids)) == len(keys):
            keys = heads.ids  # writers put the key there, too; record 0 may be at the end
        is_image, notes = _find_images(keys, heads)
        self._keys = keys[is_image]
        self._starts = heads.starts[is_image]
        self._lengths = heads.lengths[is_image]
        self._frames = offsets[is_image]
        """Where the record begins; used for split records, whose start is -1."""
        if not len(self._keys):
            raise ValueError(f"{self._shown} holds no images")
        numbers = self._whole_numbers(heads.labels[is_image])
        labels, classes = classes_of_numbers(numbers, self.location)
        super().__init__(
            path=self._file,
            labels=labels,
            people=[str(number) for number in classes.tolist()],
            image_size=image_size,
            on_bad_image=on_bad_image,
            notes=[*notes, *_inexact_note(numbers), *gaps_note(classes)],
        )

    def encoded(self, index: int, /) -> Encoded:
        start = self._starts.item(index)
        if start < 0:
            payload = from_frames(self._view(), int(self._frames[index]))
            return payload[_unpack(payload)[3] :]
        view, end = self._view(), start + self._lengths.item(index)
        self._require_whole()
        if self._is_read_at_random and end > start:
            assert self._mapped is not None
            page = start - start % mmap.PAGESIZE
            self._mapped[0].madvise(mmap.MADV_WILLNEED, page, end - page)
        return view[start:end]

    def quick_pixels(self, index: int, /) -> NDArray[np.uint8] | None:
        start = self._starts.item(index)
        if start < 0 or self._is_read_at_random or self._mapped is None:
            return super().quick_pixels(index)
        self._require_whole()
        return to_array(self._mapped[1][start : start + self._lengths.item(index)])

    def location(self, index: int, /) -> str:
        return f"{self._shown}, key {self._keys[index]}"

    def name(self, index: int, /) -> str:
        ending = ending_of(self.encoded(index))
        return f"{self.person(index)}/{self._keys[index]:08d}{ending}"

    def names_of_people(self) -> list[str]:
        side = people_file(self.path)
        if self.path.suffix != ".rec" or not side.is_file():
            return self.people
        lines = side.read_bytes().decode("utf-8", "surrogateescape").split("\n")[:-1]
        numbers = [int(person) for person in self.people]
        if max(numbers, default=0) >= len(lines):
            return self.people  # names of another set
        return [lines[number] for number in numbers]

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        """Check the structure of every image, in the order of the file; then expect any order."""
        super().prepare(workers=workers, progress=progress)
        self._expect_any_order()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None, "_is_read_at_random": False}

    @property
    def _shown(self) -> str:
        return printable(self._file)

    def _view(self) -> memoryview:
        # Two threads that come first may both map the file: one map is then given up again.
        if self._mapped is None:
            with self._file.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._mapped = mapped, memoryview(mapped)
            self._expect_any_order()
        return self._mapped[1]

    def _require_whole(self) -> None:
        """Refuse a file that has been cut since it was opened: its map would end the process."""
        assert self._mapped is not None
        if self._mapped[0].size() < len(self._mapped[1]):
            raise OSError(
                f"{self._shown} has been cut while it is read, from {len(self._mapped[1]):,} to "
                f"{self._mapped[0].size():,} bytes; copy it again, and then resume"
            )

    def _expect_any_order(self) -> None:
        # Reading ahead makes the check quick. In training, where images come in any order, the
        # system would read a megabyte from the disk for each; so it is advised of what is needed. A
        # file that fits into memory with room to spare is there after the check, once and for all.
        if self._is_checked and _CAN_ADVISE and self._mapped is not None:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            self._is_read_at_random = len(self._mapped[1]) > memory // 4
            if self._is_read_at_random:
                self._mapped[0].madvise(mmap.MADV_RANDOM)

    # -- opening ---------------------------------------------------------------------------------

    def _records(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The key and the offset of every record, in the order of the file."""
        index_file = self._index_file
        size = len(self._view())
        if not index_file.exists():
            starts, end = record_starts(self._view())
            if end < size:
                raise ValueError(self._cut_short(end, f"after {len(starts)} records"))
            offsets = np.frombuffer(starts, np.int64)
            return np.arange(len(offsets)), offsets
        keys, offsets = _read_index(index_file)
        order = np.argsort(offsets, kind="stable")
        keys, offsets = keys[order], offsets[order]
        past = np.flatnonzero((offsets < 0) | (offsets > size - 8))
        if len(past):
            raise ValueError(
                f"{printable(index_file)}: key {keys[past[0]]} points to byte {offsets[past[0]]}, "
                f"but {self._shown} has {size}; one of them is cut short or of another data set, "
                "so copy both again"
            )
        return keys, offsets

    def _cut_short(self, place: int, where: str) -> str:
        return (
            f"{self._shown} is cut short or damaged {where}, at byte {place} of "
            f"{len(self._view())}; copy it again"
        )

    def _read_heads(
        self, heads: _Heads, keys: NDArray[np.int64], offsets: NDArray[np.int64], part: slice
    ) -> None:
        """Read flag, label and place of the image of many records at once."""
        keys, offsets = keys[part], offsets[part]
        size = len(self._view())
        words = np.frombuffer(self._view(), "<u4", count=size // 4)
        place = offsets >> 2
        word = words.take(place + 1)
        kind, length = word >> LENGTH_BITS, (word & MAX_LENGTH).astype(np.int64)
        is_record = (offsets & 3 == 0) & (words.take(place) == MAGIC) & (kind <= FIRST)
        if not is_record.all():
            first = int(np.flatnonzero(~is_record)[0])
            index_file = printable(self._index_file)
            raise ValueError(
                f"{index_file}: key {keys[first]} points to byte {offsets[first]}, where no record "
                f"of {self._shown} begins; the .idx is of another .rec, so take the right one, or "
                "remove it and the .rec is read without"
            )

        def refuse(damaged: NDArray[np.bool_]) -> None:
            for first in np.flatnonzero(damaged)[:1].tolist():
                raise ValueError(self._cut_short(int(offsets[first]), f"in key {keys[first]}"))

        refuse(offsets + 8 + (length + 3 & ~3) > size)

        def at(position: int) -> NDArray[np.uint32]:
            # A record that is too short for this, at the end of the file, is refused below.
            return words.take(place + position, mode="clip")

        flag = at(2).astype(np.int64)
        body = HEADER.size + 4 * flag
        labels = np.where(flag > 0, at(2 + _HEADER_WORDS), at(3)).view("<f4")
        heads.flags[part] = np.minimum(flag, 2)
        heads.labels[part] = labels
        heads.starts[part] = np.where(kind == WHOLE, offsets + 8 + body, -1)
        heads.ids[part] = at(4) | at(5).astype(np.int64) << 32
        heads.lengths[part] = np.maximum(length - body, -1)
        for split in np.flatnonzero(kind == FIRST).tolist():
            here = part.start + split
            # One in some thousand records: joined in full.
            try:
                payload = from_frames(self._view(), int(offsets[split]))
                heads.flags[here], heads.labels[here], heads.ids[here], start = _unpack(payload)
                heads.lengths[here] = len(payload) - start
            except ValueError:
                heads.lengths[here] = -1
        refuse(heads.lengths[part] < 0)

    def _whole_numbers(self, labels: NDArray[np.float32]) -> NDArray[np.int64]:
        with np.errstate(invalid="ignore"):
            numbers = labels.astype(np.int64)
        odd = np.flatnonzero(numbers != labels)
        if len(odd):
            raise ValueError(
                f"{self.location(int(odd[0]))}: the label {labels[odd[0]]} is not a whole number "
                "from -1 to 2^63 - 1; labels are the numbers of people"
            )
        return numbers


class _Heads:
    """What the headers of all records say, an array for each word."""

    def __init__(self, count: int) -> None:
        self.flags = np.empty(count, np.uint8)
        self.labels = np.empty(count, np.float32)
        self.ids = np.empty(count, np.int64)
        self.starts = np.empty(count, np.int64)
        self.lengths = np.empty(count, np.int32)


def _require_rec(path: Path) -> None:
    if path.is_dir():
        found = sorted(path.glob("*.rec"))
        hint = f", such as {printable(found[0])}" if found else ""
        raise ValueError(f"data.path: {printable(path)} is a folder; give the .rec file{hint}")
    if not path.is_file():
        raise FileNotFoundError(f"data.path: there is no file {printable(path)}")
    if not path.stat().st_size:
        raise ValueError(f"{printable(path)} is empty; copy it again")


def _read_index(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    text = path.read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy warns where it stops at what is not a number
            numbers = np.fromstring(text, np.int64, sep=" ")
    except (DeprecationWarning, ValueError):
        numbers = np.empty(0, np.int64)
    if not len(numbers) or len(numbers) != 2 * (text.rstrip().count(b"\n") + 1):
        raise ValueError(
            f"{printable(path)} is not an index: expected lines of a key, a tab and an offset; "
            "remove it, and the .rec is read without"
        )
    return numbers[0::2], numbers[1::2]


def _find_images(keys: NDArray[np.int64], heads: _Heads) -> tuple[NDArray[np.bool_], list[str]]:
    """Which records are images, recognised by the empty body of the others.

    InsightFace's record 0 has two labels [a, b] and no body: images are the keys 1 to a - 1, and
    a to b - 1 are the identities, again with two labels and no body. In im2rec's files every
    record is an image.
    """
    is_range = (heads.lengths == 0) & (heads.flags >= 2)
    if not is_range[keys == 0].any():
        return np.ones(len(keys), np.bool_), []
    announced = float(heads.labels[is_range & (keys == 0)][0]) - 1
    found = int((~is_range).sum())
    if announced == found or announced >= _EXACT:
        return ~is_range, []
    return ~is_range, [f"record 0 announces {announced:.0f} images, but there are {found}"]


def _unpack(payload: bytes) -> tuple[int, float, int, int]:
    """Flag, label, id, and where the image begins."""
    if len(payload) < HEADER.size:
        raise ValueError("too short")
    flag, label, number, _ = HEADER.unpack_from(payload)
    start = HEADER.size + 4 * flag
    if start > len(payload):
        raise ValueError("too short")
    if flag:
        label = np.frombuffer(payload, "<f4", 1, HEADER.size)[0]
    # An id beyond 63 bits is nobody's key; it wraps, as it does where many are read at once.
    return min(flag, 2), float(label), number - (number >> 63 << 64), start


def _inexact_note(numbers: NDArray[np.int64]) -> list[str]:
    count = int((numbers >= _EXACT).sum())
    if not count:
        return []
    return [
        f"{count} images have labels from {_EXACT} on, where the float32 of RecordIO leaves "
        "numbers out: some people may be counted as one"
    ]
