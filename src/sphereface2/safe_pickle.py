"""Pickles and .npz files read as data: a stranger's runs no code and cannot fill the memory.

Python's unpickler in C calls what a pickle names, and reserves memory for whatever ten bytes
announce. Its twin in Python, `pickle._Unpickler`, holds what it has read and no more; here it
carries out only the instructions, and knows only the names, that are listed.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt


class NotPlainError(ValueError):
    """What was read is not a pickle of plain data; the message continues the name of the file."""


class StrangeNameError(NotPlainError):
    """The pickle asks for a function or class that plain data do not need."""


class _Instructions(dict[int, Callable[[Any], None]]):
    """What each instruction of a pickle does, of those that are listed."""

    def __init__(self, names: str) -> None:
        codes = [getattr(pickle, name)[0] for name in names.split()]
        super().__init__({code: pickle._Unpickler.dispatch[code] for code in codes})
        # The original reserves what a bytearray announces before it reads; bytes are only read.
        self[pickle.BYTEARRAY8[0]] = pickle._Unpickler.dispatch[pickle.BINBYTES8[0]]

    def __missing__(self, code: int) -> NoReturn:
        raise NotPlainError(f"has an instruction {bytes([code])!r} that plain data do not need")


_PLAIN = """
    PROTO FRAME STOP MARK POP POP_MARK DUP PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
    NONE NEWTRUE NEWFALSE INT LONG BININT BININT1 BININT2 LONG1 LONG4 STRING BINSTRING
    SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE
    BINUNICODE8 EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    GLOBAL STACK_GLOBAL REDUCE BUILD
"""
_OBJECTS = "EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET ADDITEMS FROZENSET BINFLOAT FLOAT NEWOBJ"


# -- the index of a checkpoint's tensors ----------------------------------------------------------

_METADATA = "torch.distributed.checkpoint.metadata"
_INDEX_NAMES = {
    "torch.Size",
    "torch.serialization._get_layout",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    f"{_METADATA}.ChunkStorageMetadata",
    f"{_METADATA}.Metadata",
    f"{_METADATA}.MetadataIndex",
    f"{_METADATA}.StorageMeta",
    f"{_METADATA}.TensorProperties",
    f"{_METADATA}.TensorStorageMetadata",
    f"{_METADATA}._MEM_FORMAT_ENCODING",
}


def load_metadata(path: Path) -> Any:
    """The index that torch.distributed.checkpoint writes as a pickle.

    Raises pickle.UnpicklingError if the file holds anything but an index.
    """
    try:
        # From memory: an open file reserves what it is asked for before it reads.
        found = _IndexUnpickler(io.BytesIO(path.read_bytes())).load()
    except (NotPlainError, EOFError) as error:
        raise pickle.UnpicklingError(f"{path} {str(error) or 'is cut short'}") from None
    if f"{type(found).__module__}.{type(found).__name__}" != f"{_METADATA}.Metadata":
        raise pickle.UnpicklingError(f"{path} is not an index of tensors")
    return found


class _IndexUnpickler(pickle._Unpickler):
    dispatch = _Instructions(_PLAIN + _OBJECTS)

    def find_class(self, module: str, name: str) -> Any:
        import torch  # here: verification sets are read without it

        if f"{module}.{name}" in _INDEX_NAMES:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"an index of tensors has no {module}.{name}")


def _enum_member(owner: Any, name: str) -> Any:
    """What `getattr` may do here: some versions of Python pickle a member of an enum by it."""
    if isinstance(owner, type) and issubclass(owner, Enum) and name in owner.__members__:
        return owner[name]
    raise pickle.UnpicklingError(f"an index of tensors has no {owner!r}.{name}")


# -- verification sets: numbers, texts, bytes, lists and NumPy arrays -----------------------------

_LATIN = {"latin1", "latin-1", "iso-8859-1"}
_PLAIN_TYPE = re.compile(r"[uib][1248]|\?|S[0-9]{1,9}")
_MOST_SIDES = 8
_LONGEST_SIDE = 1 << 40


def load_plain(content: bytes) -> Any:
    """What a pickle holds; a text of Python 2 comes as bytes, an array as a NumPy array.

    Raises NotPlainError for anything else than a whole pickle of plain data.
    """
    file = io.BytesIO(content)
    unpickler = _PlainUnpickler(file, budget=len(content))
    try:
        return _with_arrays(unpickler.load(), depth=2)
    except NotPlainError:
        raise
    except (ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError,
            pickle.UnpicklingError, struct.error) as error:  # fmt: skip
        if unpickler.is_at_the_end():
            raise NotPlainError("is cut short") from error
        raise NotPlainError(f"has a broken instruction before byte {file.tell()}") from error
    finally:
        unpickler.memo.clear()  # its names refer to the unpickler: a cycle that keeps all texts


@dataclass
class _DType:
    """A NumPy dtype as the pickle spells it."""

    code: str
    order: str = "|"


@dataclass
class _Array:
    """A NumPy array whose content comes with a later instruction."""

    value: Any = None


class _PlainUnpickler(pickle._Unpickler):
    """Functions that a pickle names are understood, never called.

    What they stand for makes no more bytes than `budget`. An honest pickle holds every byte once;
    one that makes the same long text into bytes over and over again is out to fill the memory.
    """

    stack: list[Any]
    memo: dict[int, Any]
    _unframer: Any

    def __init__(self, file: io.BytesIO, *, budget: int) -> None:
        super().__init__(file, encoding="bytes")
        self.file = file
        self.budget = budget

    def is_at_the_end(self) -> bool:
        frame = self._unframer.current_frame
        return not self.file.read(1) and (frame is None or not frame.read(1))

    def find_class(self, module: str, name: str) -> Any:
        # Python 2 and NumPy 2 have other names for the same modules.
        module_3 = module.replace("__builtin__", "builtins")
        meaning = {
            "_codecs.encode": self.encode,
            "builtins.bytes": self.bytes_of,
            "builtins.bytearray": self.bytes_of,
            "numpy.dtype": lambda code, *flags: _DType(_text(code)),
            "numpy.ndarray": "only an argument, never called",
            "numpy.core.multiarray._reconstruct": lambda *arguments: _Array(),
            "numpy.core.multiarray.scalar": _scalar,
            "numpy.core.numeric._frombuffer": _from_buffer,
        }.get(f"{module_3.replace('numpy._core.', 'numpy.core.')}.{name}")
        if meaning is None:
            raise StrangeNameError(f"asks for {module}.{name}")
        return meaning

    def encode(self, text: Any, encoding: Any = "utf-8") -> bytes:
        if _text(encoding).lower() not in _LATIN:
            raise NotPlainError(f"encodes a text as {encoding!r}")
        made = _text(text).encode("latin-1")
        self.budget -= len(made)
        if self.budget < 0:
            raise NotPlainError("makes more data than it holds")
        return made

    def bytes_of(self, value: Any = b"", encoding: Any = "latin-1") -> bytes:
        # bytes(10**12) is a way to fill the memory: a number is refused
        return value if isinstance(value, bytes) else self.encode(value, encoding)

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, _DType):
            target.order = _text(state[1])
        elif isinstance(target, _Array):
            _, shape, kind, fortran, data = state[-5:]  # a version comes before them
            target.value = _filled(data, kind, shape, fortran=bool(fortran))
        else:
            raise NotPlainError(f"sets the state of {type(target).__name__}")

    dispatch = _Instructions(_PLAIN)
    dispatch[pickle.BUILD[0]] = build


def _text(value: Any) -> str:
    """A short text of Python 3, or of Python 2, where it comes as bytes."""
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value


def _scalar(kind: Any, data: Any = b"") -> Any:
    value = _filled(data, kind, (), fortran=False)
    if not isinstance(value, np.ndarray):
        raise TypeError("expected a number")
    return value.item()


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> _Array:
    return _Array(_filled(data, kind, shape, fortran=_text(order) == "F"))


def _filled(data: Any, kind: Any, shape: Any, *, fortran: bool) -> Any:
    """The array of a pickle as a view of its bytes; an array of objects as a list."""
    if not isinstance(kind, _DType):
        raise TypeError("expected a dtype")
    if kind.code.startswith("O") and isinstance(data, list):
        return data
    code = kind.code.lstrip("|<>=")
    if not isinstance(data, bytes) or not _PLAIN_TYPE.fullmatch(code):
        raise NotPlainError(f"holds an array of type {kind.code!r}")
    dtype = np.dtype(code)
    if kind.order == ">":
        dtype = dtype.newbyteorder(">")
    if (
        len(shape) > _MOST_SIDES
        or not all(isinstance(side, int) and 0 <= side < _LONGEST_SIDE for side in shape)
        or math.prod(shape) * dtype.itemsize != len(data)
    ):
        raise NotPlainError(f"holds an array of another shape than its {len(data):,} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _with_arrays(value: Any, *, depth: int) -> Any:
    """The arrays themselves in place of their stand-ins, down to the second level of lists."""
    if isinstance(value, _Array):
        value = value.value
    if depth and isinstance(value, list | tuple):
        return [_with_arrays(part, depth=depth - 1) for part in value]
    return value


# -- the arrays of an .npz file --------------------------------------------------------------------

_RATIO = 200
"""Embeddings get hardly smaller, texts some dozen times; zeros, as bombs hold, a thousand times."""
_ALWAYS = 1 << 24  # bytes that are unpacked whatever the ratio
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an .npz by their names; a ValueError says what is wrong, after the path.

    NumPy reserves the memory that an array's header claims before it reads, and unpacks whatever a
    zip file says; an .npz of a few bytes would so take all memory.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if size > _ALWAYS + _RATIO * path.stat().st_size:
                raise ValueError(f"it would unpack to {size:,} bytes")
            return {
                member.filename.removesuffix(".npy"): _array(archive.read(member))
                for member in members
            }
    except ValueError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy's parser raise errors of many kinds
        raise ValueError(f"it is damaged or cut short ({error})") from None


def _array(content: bytes) -> npt.NDArray[Any]:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"it has an array of the format {version[0]}.{version[1]}")
    shape, is_fortran, dtype = _HEADERS[version](file)
    if dtype.kind not in "biufUS":
        raise ValueError(f"it holds an array of the type {dtype}, which could run code")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"it has an array of another shape than {shape}, which it claims")
    if not count * dtype.itemsize:
        return np.empty(shape, dtype)
    table = np.frombuffer(content, dtype, count, file.tell())
    if dtype.kind == "U" and table.view(f"{dtype.str[0]}u4").max() > sys.maxunicode:
        raise ValueError("it holds texts that are not Unicode")
    return table.reshape(shape, order="F" if is_fortran else "C")
