"""Pickles read as data: numbers, texts, bytes, lists and NumPy arrays; no pickle runs anything.

Python's own unpickler calls what a pickle names, and can be made to fill the memory by a file of
ten bytes. Here the few instructions that such data need are carried out one by one; the
functions that a pickle may name are understood, never called, and what they make is bounded by
the size of the file.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import Any

from sphereface2.data.pairs.pickle_names import (
    KNOWN,
    MEANINGS,
    Array,
    DType,
    Name,
    NotPlainError,
    StrangeNameError,
    filled,
    text_of,
)

__all__ = ["NotPlainError", "StrangeNameError", "load_plain"]


_STATE_FIELDS = 5  # of an array: version, shape, dtype, Fortran order, data


def load_plain(content: bytes) -> Any:
    """What a pickle holds; a text of Python 2 comes as bytes, an array as a NumPy array.

    Raises NotPlainError for anything else than a whole pickle of plain data.
    """
    machine = _Machine(content)
    try:
        return machine.run()
    except NotPlainError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise NotPlainError(f"has a broken instruction before byte {machine.at}") from error


class _Machine:
    """The stack machine of the pickle format, with the instructions of plain data only."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.budget = len(content)

    def run(self) -> Any:
        while (code := self.take(1)) != b".":
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                raise NotPlainError(f"has an instruction {code!r} that plain data do not need")
            instruction(self)
        return _final(self.stack.pop())

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self.content) - self.at:
            raise NotPlainError("is cut short")
        self.at += count
        return self.content[self.at - count : self.at]

    def line(self) -> bytes:
        end = self.content.find(b"\n", self.at)
        if end < 0:
            raise NotPlainError("is cut short")
        text = self.content[self.at : end]
        self.at = end + 1
        return text

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        assert isinstance(value, int)
        return value

    def pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def push_name(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full not in KNOWN:
            raise StrangeNameError(f"asks for {full}")
        self.stack.append(Name(KNOWN[full]))

    def spend(self, made: bytes) -> bytes:
        # An honest pickle holds every byte once. One that makes the same long text into bytes
        # over and over again is out to fill the memory.
        self.budget -= len(made)
        if self.budget < 0:
            raise NotPlainError("makes more data than it holds")
        return made

    def call(self) -> None:
        arguments = self.stack.pop()
        name = self.stack.pop()
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise NotPlainError("calls something that is no function")
        self.stack.append(MEANINGS[name.meaning](self.spend, *arguments))

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, DType):
            target.order = text_of(state[1])
        elif isinstance(target, Array):
            _, shape, kind, fortran, data = state[-_STATE_FIELDS:]
            target.value = filled(data, kind, shape, fortran=bool(fortran))
        else:
            raise NotPlainError(f"sets the state of {type(target).__name__}")


def _final(value: Any) -> Any:
    """The arrays themselves in place of their stand-ins, down to the second level of lists."""
    if isinstance(value, list | tuple):
        return [_unwrapped(part) for part in value]
    return value.value if isinstance(value, Array) else value


def _unwrapped(value: Any) -> Any:
    value = value.value if isinstance(value, Array) else value
    if isinstance(value, list | tuple):
        return [part.value if isinstance(part, Array) else part for part in value]
    return value


# The instructions


def _push(read: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    def instruction(machine: _Machine) -> None:
        value = read(machine)  # first: reading may put another stack in place
        machine.stack.append(value)

    return instruction


def _sized(form: str) -> Callable[[_Machine], bytes]:
    return lambda machine: machine.take(machine.number(form))


def _sized_text(form: str) -> Callable[[_Machine], str]:
    return lambda machine: machine.take(machine.number(form)).decode("utf-8", "surrogatepass")


def _long(form: str) -> Callable[[_Machine], int]:
    # Longer than any count of images: no need to convert a number of a million digits
    def read(machine: _Machine) -> int:
        raw = machine.take(machine.number(form))
        if len(raw) > 16:
            raise NotPlainError("holds a number of more than 128 bits")
        return int.from_bytes(raw, "little", signed=True)

    return read


def _integer_line(machine: _Machine) -> int | bool:
    text = machine.line()
    if text in (b"00", b"01"):
        return text == b"01"
    return _decimal(text)


def _decimal(text: bytes) -> int:
    if len(text) > 40:
        raise NotPlainError("holds a number of more than 40 digits")
    return int(text.rstrip(b"L"))


def _string_line(machine: _Machine) -> bytes:
    text = machine.line().strip()
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        raise NotPlainError("holds a text without quotes")
    return codecs.escape_decode(text[1:-1])[0]


def _memo_put(read: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    def instruction(machine: _Machine) -> None:
        machine.memo[read(machine)] = machine.stack[-1]

    return instruction


def _appends(machine: _Machine) -> None:
    items = machine.pop_mark()
    _list_on_top(machine).extend(items)


def _append(machine: _Machine) -> None:
    item = machine.stack.pop()
    _list_on_top(machine).append(item)


def _list_on_top(machine: _Machine) -> list[Any]:
    top = machine.stack[-1]
    if not isinstance(top, list):
        raise TypeError("expected a list")
    return top


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def instruction(machine: _Machine) -> None:
        if len(machine.stack) < count:
            raise IndexError("the stack is empty")
        items = tuple(machine.stack[-count:])
        del machine.stack[-count:]
        machine.stack.append(items)

    return instruction


def _mark(machine: _Machine) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


def _global_line(machine: _Machine) -> None:
    module, name = machine.line(), machine.line()
    machine.push_name(module.decode("utf-8", "replace"), name.decode("utf-8", "replace"))


def _global_stack(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.push_name(text_of(module), text_of(name))


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": lambda machine: _discard(machine.take(1)),  # PROTO
    b"\x95": lambda machine: _discard(machine.take(8)),  # FRAME
    b"(": _mark,
    b"0": lambda machine: _discard(machine.stack.pop()),
    b"1": lambda machine: _discard(machine.pop_mark()),
    b"2": lambda machine: machine.stack.append(machine.stack[-1]),
    b"N": _push(lambda machine: None),
    b"\x88": _push(lambda machine: True),
    b"\x89": _push(lambda machine: False),
    b"I": _push(_integer_line),
    b"L": _push(lambda machine: _decimal(machine.line())),
    b"J": _push(lambda machine: machine.number("<i")),
    b"K": _push(lambda machine: machine.number("<B")),
    b"M": _push(lambda machine: machine.number("<H")),
    b"\x8a": _push(_long("<B")),
    b"\x8b": _push(_long("<i")),
    b"S": _push(_string_line),
    b"T": _push(_sized("<i")),
    b"U": _push(_sized("<B")),
    b"B": _push(_sized("<I")),
    b"C": _push(_sized("<B")),
    b"\x8e": _push(_sized("<Q")),
    b"\x96": _push(_sized("<Q")),
    b"V": _push(lambda machine: machine.line().decode("raw-unicode-escape")),
    b"X": _push(_sized_text("<I")),
    b"\x8c": _push(_sized_text("<B")),
    b"\x8d": _push(_sized_text("<Q")),
    b"]": _push(lambda machine: []),
    b"l": _push(lambda machine: machine.pop_mark()),
    b"a": _append,
    b"e": _appends,
    b")": _push(lambda machine: ()),
    b"t": _push(lambda machine: tuple(machine.pop_mark())),
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"p": _memo_put(lambda machine: _decimal(machine.line())),
    b"q": _memo_put(lambda machine: machine.number("<B")),
    b"r": _memo_put(lambda machine: machine.number("<I")),
    b"\x94": _memo_put(lambda machine: len(machine.memo)),
    b"g": _push(lambda machine: machine.memo[_decimal(machine.line())]),
    b"h": _push(lambda machine: machine.memo[machine.number("<B")]),
    b"j": _push(lambda machine: machine.memo[machine.number("<I")]),
    b"c": _global_line,
    b"\x93": _global_stack,
    b"R": _Machine.call,
    b"b": _Machine.build,
}


def _discard(value: object) -> None:
    """For instructions whose operand does not matter here."""
