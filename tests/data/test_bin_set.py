"""Verification sets in .bin files: every dialect is read, and no pickle runs anything."""

import os
import pickle
import pickletools
import re
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sphereface2.data.pairs.bin_set import bin_set
from sphereface2.safe_pickle import NotPlainError, load_plain
from tests.data.bin_files import write_bin

PAIRS = 30
SAME = [index % 3 != 0 for index in range(PAIRS)]


def image(number: int) -> bytes:
    done, encoded = cv2.imencode(".png", np.full((8, 8, 3), (0, 0, number), np.uint8))
    assert done
    return encoded.tobytes()


IMAGES = [image(number) for number in range(2 * PAIRS)]


def python2_binary() -> bytes:
    """As Python 2 wrote it with protocol 2: images are str, short and long."""
    parts = [b"\x80\x02]q\x00("]
    for number, each in enumerate(IMAGES):
        if number % 2 and len(each) < 256:
            parts.append(b"U" + struct.pack("<B", len(each)) + each)
        else:
            parts.append(b"T" + struct.pack("<i", len(each)) + each)
        parts.append(b"r" + struct.pack("<I", number + 1))
    parts.append(b"e]r" + struct.pack("<I", 9999) + b"(")
    parts += [b"\x88" if answer else b"\x89" for answer in SAME]
    return b"".join([*parts, b"e\x86."])


def python2_text() -> bytes:
    """As Python 2 wrote it with protocol 0: images are quoted and escaped."""
    parts = [b"((lp0\n"]
    for number, each in enumerate(IMAGES):
        quoted = "".join(f"\\x{byte:02x}" for byte in each).encode()
        parts.append(b"S'" + quoted + b"'\np%d\na" % (number + 1))
    parts.append(b"(lp100\n")
    parts += [b"I01\na" if answer else b"I00\na" for answer in SAME]
    return b"".join([*parts, b"tp101\n."])


def arrays(shape: tuple[int, ...] = (-1,)) -> list[Any]:
    return [np.frombuffer(each, np.uint8).copy().reshape(shape) for each in IMAGES]


def numpy1(content: bytes) -> bytes:
    """The same pickle with the names of NumPy 1 (protocols below 4: no lengths to mend)."""
    return content.replace(b"numpy._core.", b"numpy.core.")


OBJECTS = np.empty(2 * PAIRS, object)
OBJECTS[:] = IMAGES
DIALECTS = {
    "python 2, protocol 2": python2_binary(),
    "python 2, protocol 0": python2_text(),
    **{f"bytes, protocol {p}": pickle.dumps((IMAGES, SAME), p) for p in range(6)},
    **{f"arrays, protocol {p}": pickle.dumps((arrays(), SAME), p) for p in range(6)},
    "arrays as cv2 makes them": pickle.dumps((arrays((-1, 1)), SAME), 2),
    "arrays of numpy 1": numpy1(pickle.dumps((arrays(), list(np.array(SAME))), 2)),
    "numpy bools": pickle.dumps((IMAGES, list(np.array(SAME))), 4),
    "an array of answers": pickle.dumps((IMAGES, np.array(SAME)), 5),
    "answers as integers": pickle.dumps([IMAGES, np.array(SAME, ">i8")], 2),
    "bytearrays": pickle.dumps(([bytearray(each) for each in IMAGES], tuple(SAME)), 2),
    "an array of bytes": pickle.dumps((np.array(IMAGES), SAME), 2),
    "an array of objects": pickle.dumps((OBJECTS, SAME), 4),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_read(dialect: str, tmp_path: Path) -> None:
    path = tmp_path / "some.bin"
    path.write_bytes(DIALECTS[dialect])
    (found,) = bin_set(path=str(path))
    assert found.name == "some"
    assert found.same.tolist() == SAME
    assert found.pairs.tolist() == [[2 * i, 2 * i + 1] for i in range(PAIRS)]
    assert found.people is None
    assert [found.images.encoded(i) for i in range(60)] == IMAGES  # type: ignore[attr-defined]  # more than Images
    assert found.images[17][3, 3].tolist() == [17, 0, 0]
    assert sorted(set(found.folds.tolist())) == list(range(10))


def test_what_is_written_any_unpickler_reads(tmp_path: Path) -> None:
    path = tmp_path / "mine.bin"
    write_bin(path, iter(IMAGES), SAME)
    content = path.read_bytes()
    assert pickle.loads(content) == (IMAGES, SAME)
    assert pickle.loads(content, encoding="bytes") == (IMAGES, SAME)
    assert max(op.proto for op, _, _ in pickletools.genops(content)) <= 3
    (found,) = bin_set(path=str(path), title="other")
    assert found.name == "other"
    assert found.same.tolist() == SAME


class Hostile:
    """Its pickle would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_is_refused_by_name_and_runs_nothing(
    protocol: int, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    path = tmp_path / "hostile.bin"
    content = pickle.dumps(([*IMAGES[:-1], Hostile(trap)], SAME), protocol)
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"hostile\.bin asks for {os.name}\.system; this is not a verification"
    ):
        bin_set(path=str(path))
    assert not trap.exists()
    pickle.loads(content)
    assert trap.exists()  # it would have


@pytest.mark.parametrize(
    "name", ["builtins\neval", "__builtin__\ngetattr", "numpy\nload", "numpy\nfromfile", "os\nfork"]
)
def test_no_other_function_is_known(name: str) -> None:
    with pytest.raises(NotPlainError, match=f"asks for {name.replace(chr(10), '.')}"):
        load_plain(b"c" + name.encode() + b"\n(I1\ntR.")


GLOBAL = {
    "array": b"cnumpy.core.multiarray\n_reconstruct\n",
    "ndarray": b"cnumpy\nndarray\n",
    "dtype": b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1tR",
    "bytes": b"c__builtin__\nbytes\n",
    "encode": b"c_codecs\nencode\n",
}
HUGE = b"L1000000000000\n"
LONG_TEXT = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000
BOMBS = {
    "bytes of a huge length": GLOBAL["bytes"] + b"(" + HUGE + b"tR.",
    "array of a huge shape": GLOBAL["array"]
    + b"("
    + GLOBAL["ndarray"]
    + b"("
    + HUGE
    + b"tC\x01btR(K\x01("
    + HUGE
    + b"t"
    + GLOBAL["dtype"]
    + b"\x89C\x01xtb.",
    "a text encoded again and again": GLOBAL["encode"]
    + b"q\x000"
    + LONG_TEXT
    + b"q\x01X\x06\x00\x00\x00latin1\x86q\x020"
    + b"]"
    + b"h\x00h\x02Ra" * 1_000_000
    + b".",
    "a place in the memo beyond all memory": b"Nr\xff\xff\xff\x7f\x8b\xff\xff\xff\x7f.",
    "a length beyond the file": b"\x8e" + struct.pack("<Q", 2**62) + b"abc.",
    "a bytearray beyond the file": b"\x96" + struct.pack("<Q", 2**40) + b"abc.",
    "a key that is hashed level by level": b"})" + b"\x85" * 100_000 + b"Ns.",
    "a persistent id": b"Pname\n.",
    "an extension": b"\x82\x01.",
    "a frame beyond the file": b"\x95" + struct.pack("<Q", 2**62) + b"\x8d\xff.",
    "an array that is called": GLOBAL["array"] + b"(tRq\x00h\x00(tR.",
    "the state of a function": GLOBAL["encode"] + b"N}b.",
    "the state of a known name": GLOBAL["encode"] + b"(NNtb.",
    "a number of endless digits": b"L" + b"9" * 100_000 + b"\n.",
    "an empty stack": b"ab.",
    "a mark too few": b"e.",
    "an unknown place in the memo": b"h\x07.",
    "an object": b"(inumpy\nndarray\n.",
    "a structured array": GLOBAL["array"]
    + b"(tR(K\x01(K\x01tcnumpy\ndtype\n(X\x05\x00\x00\x00u1,u1tR\x89C\x02xytb.",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_would_fill_the_memory_or_bend_the_reader_is_refused(bomb: str) -> None:
    with pytest.raises(NotPlainError):
        load_plain(BOMBS[bomb])


@pytest.mark.parametrize(
    "content",
    [
        b")" + b"\x85" * 200_000 + b".",  # a tuple in a tuple in a tuple ...
        # Each list holds the one before it twice: 2**60 lists, if somebody went through them.
        b"]\x94" + b"".join(b"(h%ch%cl\x94" % (n, n) for n in range(60)) + b".",
        b"]\x94h\x00a.",  # a list that holds itself
    ],
    ids=["deep", "billion laughs", "itself"],
)
def test_what_is_deep_or_endless_is_never_gone_through(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "deep.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"deep\.bin"):
        bin_set(path=str(path))


def test_every_cut_of_a_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "cut.bin"
    for content in (DIALECTS["arrays, protocol 5"], DIALECTS["python 2, protocol 0"]):
        for end in range(0, len(content) - 1, 97):
            path.write_bytes(content[:end])
            with pytest.raises(ValueError, match=r"cut\.bin is not a verification set: it is cut"):
                bin_set(path=str(path))


def test_flipped_bytes_never_give_anything_but_a_set_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "flipped.bin"
    content = bytearray(DIALECTS["arrays, protocol 2"])
    sentences: list[str] = []
    for _ in range(300):
        broken = bytearray(content)
        for place in rng.integers(0, len(content), 3):
            broken[place] = rng.integers(256)
        path.write_bytes(broken)
        try:
            assert len(bin_set(path=str(path))[0].images) == 2 * PAIRS
        except ValueError as error:  # and no other error
            sentences.append(str(error))
    assert 0 < len(sentences) < 300
    wanted = re.escape(str(path)) + "( asks for .*; this)? is not a verification set"
    assert [each for each in sentences if not re.match(wanted, each)] == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff\xd8\xff\xe0 a photo", "is not a verification set"),
        (b"a text\n", "is not a verification set"),
        (b"", "is cut short"),
        (pickle.dumps(IMAGES, 3), "no pair"),
        (pickle.dumps((1, SAME)), "its images are not a list"),
        (pickle.dumps((IMAGES, None)), "its answers are not a list"),
        (pickle.dumps({"images": IMAGES}), "is not a verification set"),
        (pickle.dumps((IMAGES[:-1], SAME)), "59 images and 30 answers; 30 pairs need 60 images"),
        (pickle.dumps(([], [])), "0 genuine and 0 impostor"),
        (pickle.dumps((IMAGES, [*SAME[:-1], 2])), "answer 29 is of type int, not true or false"),
        (pickle.dumps((IMAGES, ["yes"] * 30)), "answer 0 is of type str"),
        (pickle.dumps((["a.jpg"] * 60, SAME)), "image 0 is of type str, not the bytes"),
        (pickle.dumps(([None] * 60, SAME)), "image 0 is nothing"),
        (
            pickle.dumps(([np.zeros((8, 8, 3), np.uint8)] * 60, SAME)),
            r"image 0 is an array of shape \(8, 8, 3\)",
        ),
    ],
)
def test_a_wrong_file_gets_one_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as caught:
        bin_set(path=str(path))
    assert str(path) in str(caught.value)


def test_an_image_that_does_not_decode_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "one.bin"
    write_bin(path, [*IMAGES[:7], b"no image", *IMAGES[8:]], SAME)
    (found,) = bin_set(path=str(path))
    assert found.images[6].shape == (8, 8, 3)
    with pytest.raises(ValueError, match=r"one\.bin, image 7 \(pair 3\)"):
        found.images[7]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no verification set .*none\.bin"):
        bin_set(path=str(tmp_path / "none.bin"))
