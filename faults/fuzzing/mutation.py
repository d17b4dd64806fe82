"""Mutations of inputs without knowledge of what they reach: for CI, where there is no atheris."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from faults.fuzzing.parser import PARTS

_NUMBERS = (
    0, 1, 2, 7, 8, 16, 127, 128, 255, 256, 1_000, 32_767, 65_535, 65_536, 1 << 24, (1 << 29) - 1,
    (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1,
)  # fmt: skip
_WORDS = (b"-1", b"0", b"nan", b"1e999", b"9" * 30, b"9" * 5_000, b"\0", b"\xff\xfe", b"../",
          b"/etc/passwd", b"[" * 2_000, b"{" * 300, b"\n", b"\t", b",", b'"', b"\xf0\x9f\x98\x80",
          b"null", b"true", b"__class__", b"cos\nsystem\n", b"\x80\x04\x95")  # fmt: skip


def mutated(content: bytes, others: Sequence[bytes], generator: random.Random) -> bytes:
    """One part of an input changed in one to four places; `others` lend their parts."""
    parts = content.split(PARTS)
    place = generator.randrange(len(parts))
    changed = parts[place]
    for _ in range(generator.choice((1, 1, 1, 2, 3, 4))):
        changed = generator.choice(_WAYS)(changed, generator)
    if generator.random() < 0.1:
        donor = generator.choice(others).split(PARTS)
        changed = donor[generator.randrange(len(donor))]
    parts[place] = changed
    return PARTS.join(parts)


def _flip(content: bytes, generator: random.Random) -> bytes:
    if not content:
        return b"\xff"
    place = generator.randrange(len(content))
    return _over(content, place, bytes([content[place] ^ 1 << generator.randrange(8)]))


def _byte(content: bytes, generator: random.Random) -> bytes:
    return _over(content, _place(content, generator), generator.randbytes(1))


def _number(content: bytes, generator: random.Random) -> bytes:
    form = generator.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
    value = generator.choice(_NUMBERS) & (1 << 8 * struct.calcsize(form)) - 1
    return _over(content, _place(content, generator), struct.pack(form, value))


def _word(content: bytes, generator: random.Random) -> bytes:
    place = _place(content, generator)
    return content[:place] + generator.choice(_WORDS) + content[place:]


def _digits(content: bytes, generator: random.Random) -> bytes:
    """A number that is written out becomes another one."""
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return _word(content, generator)
    place = generator.choice(places)
    return content[:place] + str(generator.choice(_NUMBERS)).encode() + content[place + 1 :]


def _cut(content: bytes, generator: random.Random) -> bytes:
    return content[: _place(content, generator)]


def _without(content: bytes, generator: random.Random) -> bytes:
    start = _place(content, generator)
    return content[:start] + content[start + generator.randrange(1, 64) :]


def _twice(content: bytes, generator: random.Random) -> bytes:
    start = _place(content, generator)
    stop = start + generator.randrange(1, 256)
    return content[:stop] + content[start:stop] + content[stop:]


def _moved(content: bytes, generator: random.Random) -> bytes:
    start, to = _place(content, generator), _place(content, generator)
    return _over(content, to, content[start : start + generator.randrange(1, 64)])


def _place(content: bytes, generator: random.Random) -> int:
    """Anywhere, but as often near the beginning or the end, where headers are."""
    count = len(content) + 1
    near = generator.randrange(min(count, 64))
    return generator.choice((generator.randrange(count), near, count - 1 - near))


def _over(content: bytes, place: int, piece: bytes) -> bytes:
    return content[:place] + piece + content[place + len(piece) :]


_WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _byte, _number, _word, _digits, _cut, _without, _twice, _moved,
)  # fmt: skip
