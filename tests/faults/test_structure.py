"""Files whose structure matters, drawn by hypothesis: what is sound comes back as it was written,
and whatever else has that structure is refused in a sentence.

The fuzzer of `faults/fuzz.py` changes bytes; here whole files are built from their parts.
EXAMPLES=5000 pytest tests/faults/test_structure.py draws others than `make test`, and more.
"""

import itertools
import os
import pickle
import struct
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sphereface2.config.schema import dump_config, load_config
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.data.sources.recordio_writer import MAGIC, RecordWriter
from sphereface2.evaluation.embedding_files import read_embeddings
from sphereface2.experiments.sweep.plan import settings_of_grid
from sphereface2.safe_pickle import NotPlainError, load_plain

IN_MEMORY = os.environ.get("PYTEST_DEBUG_TEMPROOT")  # as the other tests, where there is room
EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
drawn = settings(
    max_examples=EXAMPLES or 60, derandomize=not EXAMPLES, deadline=None, database=None
)

# -- pickles of verification sets ------------------------------------------------------------------

_WHOLE_NUMBERS = ["u1", "<i2", ">i4", "<u8", "?"]
_atoms = st.none() | st.booleans() | st.integers() | st.binary() | st.text()
_arrays = st.sampled_from(_WHOLE_NUMBERS).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(max_dims=3, max_side=4))
)
_plain = st.recursive(_atoms, lambda inner: st.lists(inner) | st.tuples(inner, inner))


def _as_lists(value: Any) -> Any:
    """Lists and tuples are the same to who reads a verification set."""
    return [_as_lists(each) for each in value] if isinstance(value, list | tuple) else value


@given(_plain, st.integers(0, 4))
@drawn
def test_plain_data_come_back_as_python_reads_them(value: Any, protocol: int) -> None:
    content = pickle.dumps(value, protocol)
    assert _as_lists(load_plain(content)) == _as_lists(value)
    for end in {0, 1, len(content) // 2, len(content) - 1}:
        with pytest.raises(NotPlainError):
            load_plain(content[:end])


@given(st.lists(_arrays, min_size=1, max_size=3), st.sampled_from([2, 3, 4]))
@drawn
def test_arrays_come_back_as_python_reads_them(arrays: list[Any], protocol: int) -> None:
    found = load_plain(pickle.dumps((arrays, [True]), protocol))[0]
    for one, other in zip(found, arrays, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
        assert one.shape == other.shape


_INSTRUCTIONS = [
    b"(", b")", b"]", b"}", b"a", b"e", b"t", b"0", b"1", b"2", b"R", b"b", b"N", b"\x88", b"\x85",
    b"\x86", b"s", b"\x81", b"\x93", b"K\x05", b"M\xff\xff", b"J\xff\xff\xff\xff", b"I7\n",
    b"L7L\n", b"\x8a\x02\xff\x7f", b"U\x03abc", b"T\xff\xff\xff\x7fab", b"X\x02\0\0\0<u",
    b"C\x02ab", b"V\\u00e9\n", b"q\x01", b"r\xff\xff\xff\x7f", b"h\x01", b"\x94", b"cos\nsystem\n",
    b"cbuiltins\neval\n", b"c_codecs\nencode\n", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n",
    b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy.core.multiarray\nscalar\n", b"\x80\x04",
    b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f", b"X\x06\0\0\0latin1", b"X\x02\0\0\0os", b".",
]  # fmt: skip


@given(st.lists(st.sampled_from(_INSTRUCTIONS), max_size=24))
@settings(drawn, max_examples=EXAMPLES or 300)
def test_no_sequence_of_instructions_calls_anything(instructions: list[bytes]) -> None:
    called: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "system", called.append)
        with suppress(NotPlainError):
            load_plain(b"".join(instructions) + b".")
    assert not called


# -- records ---------------------------------------------------------------------------------------

_magic = struct.pack("<I", MAGIC)
# Images in which the mark of a frame stands at any place, and of any length.
_bodies = st.lists(st.sampled_from([_magic, b"a", b"\0\0\0\0", b"abcd"]), max_size=6).map(b"".join)


def _write(path: Path, people: list[list[bytes]], *, resume: bool = False) -> int:
    """Write all that is not there; how many images were."""
    images = [(body, label) for label, bodies in enumerate(people) for body in bodies]
    writer = RecordWriter(path, resume=resume)
    there = writer.written
    for body, label in images[there:]:
        writer.write(body, label)
    writer.finish()
    return there


@given(st.lists(st.lists(_bodies, min_size=1, max_size=3), min_size=2, max_size=4), st.data())
@drawn
def test_records_come_back_and_resume_from_any_byte(
    people: list[list[bytes]], data: st.DataObject
) -> None:
    with TemporaryDirectory(dir=IN_MEMORY) as name:
        path = Path(name) / "a.rec"
        _write(path, people)
        bodies = list(itertools.chain.from_iterable(people))
        found = RecordIO(path=str(path))
        assert [bytes(found.encoded(number)) for number in range(len(found))] == bodies
        labels = [label for label, each in enumerate(people) for _ in each]
        assert found.labels.tolist() == labels
        whole, index = path.read_bytes(), path.with_suffix(".idx").read_bytes()
        begun = Path(name) / "b.rec"
        cut = data.draw(st.integers(0, len(whole)))
        begun.with_name("b.rec.part").write_bytes(whole[:cut])
        assert _write(begun, people, resume=True) <= len(bodies)
        assert begun.read_bytes() == whole
        assert begun.with_suffix(".idx").read_bytes() == index


# -- configs and grids -----------------------------------------------------------------------------

_KEYS = [
    "base", "data", "name", "path", "head", "margin", "backbone", "width", "training", "steps",
    "batch_size", "optimizer", "learning_rate", "schedule", "evaluation", "sets", "seed", "device",
    "open_set", "share", "nobody", "",
]  # fmt: skip
_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["quickstart", "small", "sphereface2", "folder", "cpu", "1e-3", "..", "\0"])
)
_nodes = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(_KEYS), _nodes, max_size=6))
@drawn
def test_a_config_is_read_or_refused_and_what_is_read_comes_back(nodes: dict[str, Any]) -> None:
    with TemporaryDirectory(dir=IN_MEMORY) as name:
        path = Path(name) / "a.yaml"
        path.write_text(yaml.safe_dump({"base": "quickstart", **nodes}, allow_unicode=True))
        try:
            config = load_config(str(path))
        except (ValueError, OSError):
            return  # any other error would be a traceback
        path.write_text(dump_config(config))
        assert dump_config(load_config(str(path))) == dump_config(config)


_values = st.lists(
    st.integers() | st.sampled_from(["a", "[1, 2]", "{x: 1}", "'b, c'", "1e-3"]),
    min_size=1, max_size=4, unique=True,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(_KEYS[1:-1]), _values, max_size=3))
@drawn
def test_a_grid_has_every_combination_once(axes: dict[str, list[Any]]) -> None:
    words = [f"{key}={','.join(map(str, values))}" for key, values in axes.items()]
    found = [each.overrides for each in settings_of_grid(words)]
    wanted = itertools.product(*([f"{key}={each}" for each in axes[key]] for key in axes))
    assert found == [tuple(each) for each in wanted]


# -- tables of embeddings --------------------------------------------------------------------------

_tables = st.sampled_from(["<f2", "<f4", ">f8", "i4", "?", "S3", "U2", "c8", "<M8[s]"]).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=0, max_dims=4, max_side=5))
)


@given(_tables, st.booleans())
@drawn
def test_a_table_is_what_was_saved_or_is_refused(table: Any, by_columns: bool) -> None:
    with TemporaryDirectory(dir=IN_MEMORY) as name:
        path = Path(name) / "a.npy"
        np.save(path, np.asfortranarray(table) if by_columns else table)
        try:
            found = read_embeddings(path, check_values=True)
        except ValueError:
            return
    assert table.dtype.kind == "f"
    assert table.ndim in (2, 3)
    assert np.array_equal(np.asarray(found.vectors), table.reshape(len(table), -1))
