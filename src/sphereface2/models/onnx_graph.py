"""What an ONNX file says about itself, read without running or trusting it.

The file is walked in place, a memory map of protobuf fields, so that a hostile one takes no memory
and a network that could read other files or never end is refused before a runtime sees it.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 2**31 - 1
"""The largest file that protobuf, and with it ONNX without external data, allows."""
_MOST_DIMS = 64
_LONGEST_TEXT = 10_000

# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_OPSETS, _MODEL_METADATA, _MODEL_TRAINING, _MODEL_FUNCTIONS = 7, 8, 14, 20, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SPARSE = 1, 5, 11, 12, 15
_NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 1, 2, 8, 13, 14
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64,
         14: 64, 15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4}  # fmt: skip
_STANDARD = ("", "ai.onnx")

Value = int | memoryview
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class OnnxFacts:
    """What the graph takes and gives, and what its maker noted; None is a free dimension."""

    inputs: dict[str, Shape]
    outputs: dict[str, Shape]
    metadata: dict[str, str]


def look_at_onnx(path: Path) -> OnnxFacts:
    """The facts of an ONNX file; a ValueError says why it is not run.

    Refused are files that are not ONNX or are damaged, weights in other files, parts of a graph
    that run again and again (Loop, If, Scan), operators beyond ONNX's own, and tensors that claim
    more than the file holds.
    """
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; an ONNX file has at most {MOST_BYTES:,}")
    if size == 0:
        raise ValueError(f"{path} is empty")
    with path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        return _model(whole)
    except _RefusedError as error:
        raise ValueError(f"{path} is not run: {error}") from None
    except _DamagedError:
        raise ValueError(f"{path} is not an ONNX model, or is damaged") from None


class _DamagedError(Exception):
    pass


class _RefusedError(Exception):
    pass


def _model(message: memoryview) -> OnnxFacts:
    graph: memoryview | None = None
    metadata: dict[str, str] = {}
    opsets = 0
    for number, value in _fields(message):
        if number == _MODEL_GRAPH:
            graph = _message(value)
        elif number == _MODEL_OPSETS:
            opsets += 1
        elif number == _MODEL_METADATA:
            metadata.update([_entry(value)])
        elif number in (_MODEL_TRAINING, _MODEL_FUNCTIONS):
            raise _RefusedError("it defines functions of its own; export it with plain operators")
    if graph is None or not opsets:
        raise _DamagedError
    inputs: dict[str, Shape] = {}
    outputs: dict[str, Shape] = {}
    held: set[str] = set()
    for number, value in _fields(graph):
        if number == _GRAPH_NODE:
            _check_node(_message(value))
        elif number == _GRAPH_INITIALIZER:
            held.add(_check_tensor(_message(value)))
        elif number == _GRAPH_SPARSE:
            raise _RefusedError("it has sparse weights; export it with dense ones")
        elif number in (_GRAPH_INPUT, _GRAPH_OUTPUT):
            name, shape = _value_info(_message(value))
            (inputs if number == _GRAPH_INPUT else outputs)[name] = shape
    # Old exporters list the weights among the inputs.
    inputs = {name: shape for name, shape in inputs.items() if name not in held}
    return OnnxFacts(inputs, outputs, metadata)


def _check_node(message: memoryview) -> None:
    operator = domain = ""
    has_graph = False
    for number, value in _fields(message):
        if number == _NODE_OP:
            operator = _text(value)
        elif number == _NODE_DOMAIN:
            domain = _text(value)
        elif number == _NODE_ATTRIBUTE:
            for part, content in _fields(_message(value)):
                if part in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
                    _check_tensor(_message(content))
                has_graph |= part in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS)
    if has_graph:
        raise _RefusedError(
            f"its operator {operator[:40]} holds a graph of its own, which may never end; export "
            "the network without control flow"
        )
    if domain not in _STANDARD:
        raise _RefusedError(
            f"its operator {operator[:40]} is of the domain {domain[:40]}, not one of ONNX's own"
        )


def _check_tensor(message: memoryview) -> str:
    name, kind, held = "", 0, 0
    dims: list[int] = []
    for number, value in _fields(message):
        if number == _TENSOR_DIMS:
            dims += [value] if isinstance(value, int) else _varints(value)
        elif number == _TENSOR_TYPE:
            kind = value if isinstance(value, int) else 0
        elif number == _TENSOR_NAME:
            name = _text(value)
        elif number == _TENSOR_EXTERNAL or (number == _TENSOR_LOCATION and value == 1):
            key, where = _entry(value) if number == _TENSOR_EXTERNAL else ("", "")
            named = f" ({where[:80]!r})" if key == "location" else ""
            raise _RefusedError(
                f"some of its weights lie in another file{named}; save it as one file, with all "
                "weights inside"
            )
        elif isinstance(value, memoryview):
            held += len(value)
        else:
            held += 8  # a number that is not packed
    # Numbers of 4 bits to 64 may be packed as varints, of which the shortest has one byte.
    claimed = math.prod(dims) * min(_BITS.get(kind, 1), 8) / 8
    if any(dim < 0 or dim > MOST_BYTES for dim in dims) or claimed > held + 1:
        raise _RefusedError(
            f"its tensor {name[:40]} claims {math.prod(dims):,} numbers, but has {held:,} bytes"
        )
    return name


def _entry(value: Value) -> tuple[str, str]:
    """A key and its value."""
    parts = dict(_fields(_message(value)))
    key, text = (_text(parts.get(number, memoryview(b""))) for number in (1, 2))
    return key, text


def _value_info(message: memoryview) -> tuple[str, Shape]:
    name = ""
    shape: list[int | None] = []
    for number, value in _fields(message):
        if number == 1:
            name = _text(value)
        elif number == 2:
            for dim in _inside(_message(value), (1, 2, 1)):  # tensor_type, shape, dim
                sizes = [size for key, size in _fields(dim) if key == 1]
                size = sizes[0] if sizes and isinstance(sizes[0], int) else None
                shape.append(size or None)
    return name, tuple(shape)


def _inside(message: memoryview, path: tuple[int, ...]) -> Iterator[memoryview]:
    """The messages at the end of a path of field numbers."""
    if not path:
        yield message
        return
    for number, value in _fields(message):
        if number == path[0]:
            yield from _inside(_message(value), path[1:])


# -- protobuf's wire format ------------------------------------------------------------------------


def _fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Each field of a message: its number, and its whole number or its bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield number, value - 2**64 if value >= 2**63 else value
            continue
        if wire == 2:
            length, place = _varint(message, place)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise _DamagedError
        if number == 0 or place + length > len(message):
            raise _DamagedError
        yield number, message[place : place + length]
        place += length


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise _DamagedError
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise _DamagedError


def _varints(packed: memoryview) -> list[int]:
    place = 0
    found: list[int] = []
    while place < len(packed) and len(found) <= _MOST_DIMS:
        value, place = _varint(packed, place)
        found.append(value)
    return found


def _message(value: Value) -> memoryview:
    if isinstance(value, int):
        raise _DamagedError
    return value


def _text(value: Value) -> str:
    return bytes(_message(value)[:_LONGEST_TEXT]).decode("utf-8", "replace")
