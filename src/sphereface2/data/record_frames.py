"""RecordIO frames: how records lie in a .rec file, and how one that holds the magic is split."""

from __future__ import annotations

import struct
from array import array

from sphereface2.data.image_file import Encoded

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
    """A record as it stands in the file.

    The magic must not stand at a multiple of four but where a frame begins: the payload is cut
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
