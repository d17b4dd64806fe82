"""The index of a checkpoint: every Python's way of writing it is read, and nothing else is."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    TensorProperties,
)

from sphereface2.safe_pickle import load_metadata


class ByGetattr:
    """Pickles as `getattr(owner, name)`, as Python 3.11.2 does with a member of an enum."""

    def __init__(self, owner: Any, name: str) -> None:
        self.parts = (owner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, self.parts


class Call:
    """Pickles as a call of something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.parts = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


def write(path: Path, hidden: Any) -> Path:
    """An index with `hidden` somewhere in it."""
    path.write_bytes(pickle.dumps(Metadata(state_dict_metadata={"x": hidden})))
    return path


def test_a_member_of_an_enum_is_read_however_python_wrote_it(tmp_path: Path) -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    for written in (member, ByGetattr(_MEM_FORMAT_ENCODING, member.name)):
        found = load_metadata(write(tmp_path / "index", written))
        assert found.state_dict_metadata["x"] is member
    properties = TensorProperties()
    assert load_metadata(write(tmp_path / "index", properties)).state_dict_metadata["x"] == (
        properties
    )


@pytest.mark.parametrize(
    "hostile",
    [
        Call(os.system, "exit 1"),
        Call(eval, "1"),
        ByGetattr(_MEM_FORMAT_ENCODING, "__init_subclass__"),
        ByGetattr(Metadata, "__init__"),
        ByGetattr("text", "format"),
    ],
    ids=["system", "eval", "attribute of an enum", "attribute of a class", "attribute of a value"],
)
def test_anything_else_is_refused(hostile: Any, tmp_path: Path) -> None:
    with pytest.raises(pickle.UnpicklingError, match="an index of tensors has no"):
        load_metadata(write(tmp_path / "index", hostile))


def test_something_that_is_not_an_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(pickle.UnpicklingError, match="is not an index of tensors"):
        load_metadata(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "is not an index"),  # a place in the memo far away
        (
            b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"x.",
            "is cut short",
        ),  # a terabyte announced
        (b"Pname\n.", "an instruction b'P'"),
        (b"(inumpy\nndarray\n.", "an instruction b'i'"),
    ],
)
def test_an_index_cannot_fill_the_memory(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "index").write_bytes(content)
    with pytest.raises(pickle.UnpicklingError, match=sentence):
        load_metadata(tmp_path / "index")
