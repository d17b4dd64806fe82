"""RecordIO files written as InsightFace lays them out: .rec, .idx and `property`, resumable."""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from pathlib import Path
from typing import BinaryIO

from sphereface2.data.sources.image_file import Encoded, check_header
from sphereface2.data.sources.source import ImageWriter
from sphereface2.files import printable, put_in_place, write_atomically


class RecordWriter(ImageWriter):
    """Writes `path` (.rec) with .idx and `property` beside it.

    Record 0 says which keys are images and which are identities; an identity is the range of keys
    of its images, so all images of a label must follow one another. Images are stored as they are.

    After an error what was written stays in `path`.part, from which `resume` continues: `written`
    images are already there.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        self._offsets = array("q")
        self._ranges: list[tuple[int, int]] = []
        """The label and the first key of each run of images with one label."""
        self._seen: set[int] = set()
        self._size = (112, 112)
        is_begun = resume and self.part.exists()
        self._file: BinaryIO = self.part.open("r+b" if is_begun else "wb")
        if is_begun:
            self._take_up()
        if not self._offsets:
            self._append(_ranges_record(0, 0, 0))  # the numbers are filled in at the end

    @property
    def written(self) -> int:
        """How many images there are already."""
        return len(self._offsets) - 1

    def write(self, encoded: Encoded, label: int) -> None:
        """Append an image; all images of a label follow one another."""
        (stored,) = struct.unpack("<f", struct.pack("<f", label))
        if stored != label:
            raise ValueError(f"RecordIO stores labels as float32, which cannot hold {label}")
        key = len(self._offsets)
        self._note(label, key, encoded)
        self._append(HEADER.pack(0, label, key, 0) + bytes(encoded))

    def finish(self) -> None:
        """Write the identities, the index and `property`, and give the files their names."""
        if not self.written:
            raise ValueError(f"there are no images to write to {printable(self.path)}")
        images = len(self._offsets)
        ends = [start for _, start in self._ranges[1:]] + [images]
        people = [
            (start, end)
            for (label, start), end in zip(self._ranges, ends, strict=True)
            if label >= 0
        ]
        for start, end in people:
            self._append(_ranges_record(len(self._offsets), start, end))
        self._file.seek(0)
        self._file.write(to_frames(_ranges_record(0, images, images + len(people))))
        self._file.close()
        index = "".join(f"{key}\t{offset}\n" for key, offset in enumerate(self._offsets))
        height, width = self._size
        write_atomically(self.path.with_suffix(".idx"), index)
        write_atomically(self.path.with_name("property"), f"{len(people)},{height},{width}\n")
        # Last: only with all of it done is there a .rec.
        put_in_place(self.part, self.path)

    def close(self) -> None:
        self._file.close()

    def _append(self, payload: bytes) -> None:
        offset = self._file.tell()
        self._file.write(to_frames(payload))
        self._offsets.append(offset)

    def _note(self, label: int, key: int, encoded: Encoded) -> None:
        if not self._ranges:
            try:
                header = check_header(encoded)
                self._size = header.height, header.width
            except ValueError:
                pass  # a bad image is copied as it is; the size is then the usual one
        if self._ranges and self._ranges[-1][0] == label:
            return
        if label in self._seen:
            raise ValueError(f"the images of label {label} do not follow one another")
        self._seen.add(label)
        self._ranges.append((label, key))

    def _take_up(self) -> None:
        """Find what is written, and cut off what an interruption left unfinished."""
        end = 0
        if os.fstat(self._file.fileno()).st_size:
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                end = self._read_back(mapped)
        self._file.truncate(end)
        self._file.seek(end)

    def _read_back(self, mapped: mmap.mmap) -> int:
        """The labels of the whole records; returns where the last image ends."""
        view = memoryview(mapped)
        try:
            starts, end = record_starts(view)
            for key, start in enumerate(starts):
                payload = from_frames(view, start)
                if len(payload) < HEADER.size:
                    return start  # as a power cut leaves it
                flag, label, _, _ = HEADER.unpack_from(payload)
                if key and (flag or not label.is_integer()):
                    return start  # identities: the last attempt had come this far
                if key:
                    self._note(int(label), key, payload[HEADER.size :])
                self._offsets.append(start)
            return end
        finally:
            view.release()


def _ranges_record(key: int, first: int, end: int) -> bytes:
    """A record without an image and with two labels: a range of keys."""
    return HEADER.pack(2, 0, key, 0) + struct.pack("<ff", first, end)


# RecordIO frames: how records lie in a .rec file, and how one that holds the magic is split.

# A frame is u32 magic, u32 part << 29 | length, the payload, and zeros up to four bytes.
MAGIC = 0xCED7230A
LENGTH_BITS = 29
MAX_LENGTH = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)

# The payload of a record starts with flag, label, id, id2; then `flag` float32 labels, if any.
HEADER = struct.Struct("<IfQQ")

_FRAME = struct.Struct("<II")
_MAGIC = struct.pack("<I", MAGIC)


def to_frames(payload: bytes) -> bytes:
    """A record as the file holds it.

    The magic must be at a multiple of four only where a frame begins: the payload is cut
    wherever it has one there, and the four bytes are left out.
    """
    if len(payload) > MAX_LENGTH:
        raise ValueError(f"a record of {len(payload)} bytes is more than RecordIO can hold")
    parts = []
    done = place = 0
    while (place := payload.find(_MAGIC, place)) >= 0:
        if place % 4:
            place += 1
            continue
        parts.append(payload[done:place])
        done = place = place + 4
    kinds = [FIRST, *[MIDDLE] * (len(parts) - 1), LAST] if parts else [WHOLE]
    parts.append(payload[done:])
    return b"".join(
        _FRAME.pack(MAGIC, kind << LENGTH_BITS | len(part)) + part + bytes(-len(part) % 4)
        for kind, part in zip(kinds, parts, strict=True)
    )


def from_frames(buffer: Encoded, start: int) -> bytes:
    """The payload of the record that begins at `start`, its parts joined by the magic again."""
    parts: list[bytes] = []
    while True:
        try:
            magic, word = _FRAME.unpack_from(buffer, start)
        except struct.error:
            raise ValueError(f"no frame at byte {start}") from None
        kind, length = word >> LENGTH_BITS, word & MAX_LENGTH
        expected = (WHOLE, FIRST) if not parts else (MIDDLE, LAST)
        if magic != MAGIC or kind not in expected or start + 8 + length > len(buffer):
            raise ValueError(f"no frame at byte {start}")
        parts.append(bytes(buffer[start + 8 : start + 8 + length]))
        if kind in (WHOLE, LAST):
            return _MAGIC.join(parts)
        start += 8 + length + -length % 4


def record_starts(buffer: Encoded) -> tuple[array[int], int]:
    """Where each whole record begins, from frame to frame, and where the last of them ends."""
    starts = array("q")
    size = len(buffer)
    place = end = 0
    first = -1
    while place + 8 <= size:
        magic, word = _FRAME.unpack_from(buffer, place)
        kind, length = word >> LENGTH_BITS, word & MAX_LENGTH
        following = place + 8 + length + -length % 4
        if magic != MAGIC or following > size or (kind in (WHOLE, FIRST)) != (first < 0):
            break
        if first < 0:
            first = place
        place = following
        if kind in (WHOLE, LAST):
            starts.append(first)
            first, end = -1, place
    return starts, end
