"""What the functions and classes that a pickle of plain data names stand for: bytes and arrays.

Nothing here is called by its name in a module; each name has a meaning of its own, and what it
makes is never larger than what the pickle holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")  # NumPy 1 and NumPy 2
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
_BUILTINS = ("builtins", "__builtin__")  # Python 3 and Python 2
_LATIN = {"latin1", "latin-1", "iso-8859-1"}
_PLAIN_TYPE = re.compile(r"[uib][1248]|\?|S[0-9]{1,9}")
_MOST_SIDES = 8


Spend = Callable[[bytes], bytes]
"""Passes bytes on as long as all that were made are no more than the pickle holds."""


@dataclass
class Name:
    """Something of a module that a pickle refers to, by what it stands for here."""

    meaning: str


@dataclass
class DType:
    """A NumPy dtype as the pickle spells it."""

    code: str
    order: str = "|"


@dataclass
class Array:
    """A NumPy array whose content comes with a later instruction."""

    value: Any = None


KNOWN = {
    "_codecs.encode": "encode",
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    **{f"{module}._reconstruct": "array" for module in _MULTIARRAY},
    **{f"{module}.scalar": "scalar" for module in _MULTIARRAY},
    **{f"{module}._frombuffer": "buffer" for module in _NUMERIC},
    **{f"{module}.{name}": "bytes" for module in _BUILTINS for name in ("bytes", "bytearray")},
}


class NotPlainError(ValueError):
    """What was read is no pickle of plain data; the message goes on from the name of the file."""


class StrangeNameError(NotPlainError):
    """The pickle asks for a function or class that plain data do not need."""


def text_of(value: Any) -> str:
    """A short text of Python 3, or of Python 2, where it comes as bytes."""
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value


def _encode(spend: Spend, text: Any, encoding: Any = "utf-8") -> bytes:
    if text_of(encoding).lower() not in _LATIN:
        raise NotPlainError(f"encodes a text as {encoding!r}")
    return spend(text_of(text).encode("latin-1"))


def _bytes(spend: Spend, value: Any = b"", encoding: Any = "latin-1") -> bytes:
    # bytes(10**12) is a way to fill the memory: a number is refused
    if isinstance(value, bytes):
        return value
    return _encode(spend, value, encoding)


def _type(spend: Spend, code: Any, *flags: Any) -> DType:
    return DType(text_of(code))


def _array(spend: Spend, *arguments: Any) -> Array:
    return Array()


def _scalar(spend: Spend, kind: Any, data: Any = b"") -> Any:
    value = filled(data, kind, (), fortran=False)
    if not isinstance(value, np.ndarray):
        raise TypeError("expected a number")
    return value.item()


def _buffer(spend: Spend, data: Any, kind: Any, shape: Any, order: Any) -> Array:
    return Array(filled(data, kind, shape, fortran=text_of(order) == "F"))


def filled(data: Any, kind: Any, shape: Any, *, fortran: bool) -> Any:
    """The array of a pickle as a view of its bytes; an array of objects as a list."""
    if not isinstance(kind, DType):
        raise TypeError("expected a dtype")
    if kind.code.startswith("O") and isinstance(data, list):
        return data
    code = kind.code.lstrip("|<>=")
    if not isinstance(data, bytes) or not _PLAIN_TYPE.fullmatch(code):
        raise NotPlainError(f"holds an array of type {kind.code!r}")
    dtype = np.dtype(code)
    if kind.order == ">":
        dtype = dtype.newbyteorder(">")
    sides = [int(side) for side in shape[:_MOST_SIDES]]
    if (
        len(shape) > _MOST_SIDES
        or min(sides, default=0) < 0
        or math.prod(sides) * dtype.itemsize != len(data)
    ):
        raise NotPlainError(f"holds an array of shape {tuple(sides)} with {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(sides, order="F" if fortran else "C")


MEANINGS: dict[str, Callable[..., Any]] = {
    "encode": _encode,
    "bytes": _bytes,
    "dtype": _type,
    "array": _array,
    "scalar": _scalar,
    "buffer": _buffer,
}
