"""RecordIO: both dialects, written here straight from the format's description, and our writer."""

import multiprocessing
import pickle
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.sources import SOURCES
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.data.sources.recordio_writer import RecordWriter
from sphereface2.registry import build

MAGIC = struct.pack("<I", 0xCED7230A)


def png(number: int) -> bytes:
    """A picture whose red says which one it is."""
    image = np.full((16, 16, 3), (0, 0, 5 * number), np.uint8)
    return cv2.imencode(".png", image)[1].tobytes()


# -- the format, by its description ----------------------------------------------------------------


def frame(part: int, content: bytes) -> bytes:
    padding = bytes((4 - len(content) % 4) % 4)
    return MAGIC + struct.pack("<I", part << 29 | len(content)) + content + padding


def framed(payload: bytes) -> bytes:
    """A record, word by word: cut wherever a word is the magic, which is dropped."""
    pieces, piece = [], b""
    for place in range(0, len(payload), 4):
        word = payload[place : place + 4]
        if word == MAGIC:
            pieces.append(piece)
            piece = b""
        else:
            piece += word
    pieces.append(piece)
    if len(pieces) == 1:
        return frame(0, piece)
    middle = b"".join(frame(2, each) for each in pieces[1:-1])
    return frame(1, pieces[0]) + middle + frame(3, pieces[-1])


def payload(labels: float | Sequence[float], body: bytes, *, number: int = 0) -> bytes:
    if isinstance(labels, int | float):
        return struct.pack("<IfQQ", 0, labels, number, 0) + body
    header = struct.pack("<IfQQ", len(labels), 0.0, number, 0)
    return header + struct.pack(f"<{len(labels)}f", *labels) + body


def write_rec(path: Path, payloads: Sequence[bytes], *, keys: Sequence[int] | None = None) -> Path:
    content, lines = b"", []
    for key, each in zip(keys or range(len(payloads)), payloads, strict=True):
        lines.append(f"{key}\t{len(content)}\n")
        content += framed(each)
    path.write_bytes(content)
    path.with_suffix(".idx").write_text("".join(lines))
    return path


def insightface(path: Path, labels: Sequence[float], bodies: Sequence[bytes]) -> Path:
    """Record 0 is [a, b], then the images, then the range of each identity."""
    first = 1 + len(labels)
    people = sorted(set(labels))
    images = [payload(x, body, number=k + 1) for k, (x, body) in enumerate(zip(labels, bodies))]  # noqa: B905
    ranges = [
        payload([1 + labels.index(x), 1 + len(labels) - labels[::-1].index(x)], b"") for x in people
    ]
    return write_rec(path, [payload([first, first + len(people)], b""), *images, *ranges])


def im2rec(path: Path, labels: Sequence[float | Sequence[float]], bodies: Sequence[bytes]) -> Path:
    """Every record is an image, record 0 as well."""
    return write_rec(path, [payload(x, body) for x, body in zip(labels, bodies, strict=True)])


BODIES = [png(number) for number in range(6)]
LABELS = [0.0, 0.0, 3.0, 3.0, 7.0, 7.0]
DIALECTS: dict[str, Callable[[Path], Path]] = {
    "InsightFace": lambda path: insightface(path, LABELS, BODIES),
    "im2rec": lambda path: im2rec(path, LABELS, BODIES),
    "im2rec, two labels": lambda path: im2rec(path, [(x, 9.0) for x in LABELS], BODIES),
    "im2rec, one of a list": lambda path: im2rec(path, [(x,) for x in LABELS], BODIES),
}


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_both_dialects_with_and_without_an_index(
    tmp_path: Path, dialect: str, with_index: bool
) -> None:
    path = DIALECTS[dialect](tmp_path / "train.rec")
    if not with_index:
        path.with_suffix(".idx").unlink()
    source = RecordIO(path=str(path))
    assert source.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.labels.dtype == np.int64
    assert source.people == ["0", "3", "7"]
    assert [bytes(source.encoded(index)) for index in range(6)] == BODIES
    assert [source[index][0][0, 0, 0] for index in range(6)] == [0, 5, 10, 15, 20, 25]
    first = 1 if dialect == "InsightFace" else 0
    assert source.location(2) == f"{path}, key {first + 2}"
    assert source.name(2) == f"3/{first + 2:08d}.png"
    assert source.notes == (
        "the labels 0 to 7 leave out 5 of them; the 3 people found are numbered from 0",
    )
    source.prepare(workers=2)
    assert source.bad == ()
    assert source[5][1] == 2


def test_images_are_parts_of_the_mapped_file(tmp_path: Path) -> None:
    source = RecordIO(path=str(im2rec(tmp_path / "a.rec", LABELS, BODIES)))
    one, other = source.encoded(1), source.encoded(2)
    assert isinstance(one, memoryview)
    assert isinstance(other, memoryview)
    assert one.readonly
    assert one.obj is other.obj  # the whole file, of which nothing is copied


@pytest.mark.parametrize(
    "body",
    [
        MAGIC,
        MAGIC * 3,
        b"abcd" + MAGIC + b"efgh",
        b"abc" + MAGIC + b"defgh",  # not at a multiple of four: stays
        b"abcd" + MAGIC + b"ef",
        b"abcd" + MAGIC,
        b"ab" + MAGIC + b"ab" + MAGIC,
        MAGIC[:2] + MAGIC * 2 + MAGIC[2:],
    ],
)
def test_records_that_hold_the_magic_are_split_and_joined(tmp_path: Path, body: bytes) -> None:
    path = im2rec(tmp_path / "a.rec", [1.0, 1.0, 2.0], [b"before", body, b"behind"])
    for _ in range(2):
        source = RecordIO(path=str(path))
        assert [bytes(source.encoded(i)) for i in range(3)] == [b"before", body, b"behind"]
        assert source.labels.tolist() == [0, 0, 1]
        path.with_suffix(".idx").unlink(missing_ok=True)


def test_the_magic_in_the_header_of_a_record_is_split_too(tmp_path: Path) -> None:
    number = 0xCED7230A
    path = write_rec(
        tmp_path / "a.rec", [payload(5.0, b"x"), payload([5.0, 1], b"y", number=number)]
    )
    source = RecordIO(path=str(path))
    assert bytes(source.encoded(1)) == b"y"
    assert source.people == ["5"]


def test_the_writer_is_read_back_and_byte_for_byte_as_described(tmp_path: Path) -> None:
    bodies = [*BODIES[:5], b"abcd" + MAGIC + b"efg" + MAGIC + MAGIC]
    labels = [0, 0, 3, 3, 7, 7]
    expected = insightface(tmp_path / "expected.rec", [float(x) for x in labels], bodies)
    with RecordWriter(tmp_path / "train.rec") as writer:
        for label, body in zip(labels, bodies, strict=True):
            writer.write(body, label)
        assert not (tmp_path / "train.rec").exists()
    content = bytearray((tmp_path / "train.rec").read_bytes())
    for key, line in enumerate((tmp_path / "train.idx").read_text().splitlines()):
        offset = int(line.split("\t")[1])
        if key >= 7:  # the description leaves the id of an identity open
            content[offset + 16 : offset + 24] = bytes(8)
    assert bytes(content) == expected.read_bytes()
    assert (tmp_path / "train.idx").read_text() == expected.with_suffix(".idx").read_text()
    assert (tmp_path / "property").read_text() == "3,16,16\n"
    assert not list(tmp_path.glob("*.part"))
    source = RecordIO(path=str(tmp_path / "train.rec"))
    assert [bytes(source.encoded(i)) for i in range(6)] == bodies
    assert source.people == ["0", "3", "7"]


def test_the_writer_resumes_after_an_interruption_at_any_byte(tmp_path: Path) -> None:
    bodies = [*BODIES[:3], b"abcd" + MAGIC + b"efg", *BODIES[3:]]
    labels = [-1, 0, 0, 0, 1, 1, 2]
    whole = tmp_path / "whole.rec"
    with RecordWriter(whole) as writer:
        for label, body in zip(labels, bodies, strict=True):
            writer.write(body, label)
    content = whole.read_bytes()
    resumed = tmp_path / "resumed.rec"
    counts = set()
    for length in [0, 7, 40, 41, *range(100, len(content), 53), len(content)]:
        resumed.with_name("resumed.rec.part").write_bytes(content[:length])
        with RecordWriter(resumed, resume=True) as writer:
            counts.add(writer.written)
            for label, body in list(zip(labels, bodies, strict=True))[writer.written :]:
                writer.write(body, label)
        assert resumed.read_bytes() == content
        assert resumed.with_suffix(".idx").read_text() == whole.with_suffix(".idx").read_text()
        resumed.unlink()
    assert counts == set(range(8))


def test_an_error_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    def interrupted() -> None:
        with RecordWriter(tmp_path / "a.rec") as writer:
            writer.write(BODIES[0], 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["a.rec.part"]
    with RecordWriter(tmp_path / "a.rec", resume=True) as writer:
        assert writer.written == 1
    with RecordWriter(tmp_path / "a.rec") as writer:
        assert writer.written == 0
        writer.write(BODIES[1], 0)
    assert bytes(RecordIO(path=str(tmp_path / "a.rec")).encoded(0)) == BODIES[1]


def test_the_writer_refuses_what_the_format_cannot_say(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "a.rec")
    with pytest.raises(ValueError, match=r"no images to write to .*a\.rec"):
        writer.finish()
    with pytest.raises(ValueError, match=r"float32, which cannot hold 16777217"):
        writer.write(b"x", 2**24 + 1)
    writer.write(b"x", 1)
    writer.write(b"x", 2)
    with pytest.raises(ValueError, match=r"images of label 1 do not follow one another"):
        writer.write(b"x", 1)
    writer.close()


# -- labels ----------------------------------------------------------------------------------------


def test_labels_beyond_float32_are_counted_and_said(tmp_path: Path) -> None:
    labels = [float(np.float32(x)) for x in (5, 2**24 - 1, 2**24, 2**24 + 1, 2**24 + 2)]
    source = RecordIO(path=str(im2rec(tmp_path / "a.rec", labels, BODIES[:5])))
    assert source.num_classes == 4, "2^24 + 1 was rounded to its neighbour when it was written"
    assert source.people == ["5", "16777215", "16777216", "16777218"]
    assert source.notes[0] == (
        "3 images have labels from 16777216 on, where the float32 of RecordIO leaves numbers out: "
        "some people may be counted as one"
    )


def test_a_record_0_that_announces_endlessly_many_images(tmp_path: Path) -> None:
    records = [payload([float("inf"), 3.0], b""), *(payload(0.0, body) for body in BODIES[:2])]
    assert len(RecordIO(path=str(write_rec(tmp_path / "a.rec", records)))) == 2


def test_unknown_people_and_wrong_labels(tmp_path: Path) -> None:
    source = RecordIO(path=str(im2rec(tmp_path / "a.rec", [4.0, -1.0, 6.0], BODIES[:3])))
    assert source.labels.tolist() == [0, -1, 1]
    assert source.people == ["4", "6"]
    for wrong, message in (
        (0.5, r"a\.rec, key 1: the label 0\.5 is not a whole number"),
        (float("nan"), r"key 1: the label nan is not a whole number"),
        (float("inf"), r"key 1: the label inf is not a whole number from -1 to 2\^63 - 1"),
        (1e30, r"key 1: the label 1.*e\+30 is not a whole number from -1 to 2\^63 - 1"),
        (-3.0, r"a\.rec, key 1: the label is -3; labels start from 0"),
    ):
        path = im2rec(tmp_path / "a.rec", [0.0, wrong], BODIES[:2])
        with pytest.raises(ValueError, match=message):
            RecordIO(path=str(path))


def test_counts_come_from_the_images_and_not_from_record_0(tmp_path: Path) -> None:
    records = [payload([9, 20], b""), payload(0.0, BODIES[0]), payload(1.0, BODIES[1])]
    source = RecordIO(path=str(write_rec(tmp_path / "a.rec", records)))
    assert len(source) == 2
    assert source.num_classes == 2
    assert source.notes == ("record 0 announces 8 images, but there are 2",)


def test_record_0_may_stand_at_the_end(tmp_path: Path) -> None:
    images = [payload(float(k // 2), BODIES[k], number=k + 1) for k in range(4)]
    ranges = [payload([1, 3], b"", number=5), payload([3, 5], b"", number=6)]
    records = [*images, *ranges, payload([5, 7], b"", number=0)]
    path = write_rec(tmp_path / "a.rec", records, keys=[1, 2, 3, 4, 5, 6, 0])
    for _ in range(2):
        source = RecordIO(path=str(path))
        assert [bytes(source.encoded(index)) for index in range(len(source))] == BODIES[:4]
        assert source.labels.tolist() == [0, 0, 1, 1]
        assert source.location(0).endswith("key 1")
        assert source.notes == ()
        path.with_suffix(".idx").unlink(missing_ok=True)


def test_an_index_may_leave_records_out_and_be_in_any_order(tmp_path: Path) -> None:
    path = im2rec(tmp_path / "a.rec", LABELS, BODIES)
    lines = path.with_suffix(".idx").read_text().splitlines()
    path.with_suffix(".idx").write_text("\r\n".join([lines[4], lines[1], lines[3]]))
    source = RecordIO(path=str(path))
    assert [bytes(source.encoded(index)) for index in range(3)] == [
        BODIES[1],
        BODIES[3],
        BODIES[4],
    ]
    assert source.people == ["0", "3", "7"]
    assert source.location(2).endswith("key 4")


# -- threads and processes -------------------------------------------------------------------------


def red(source: RecordIO, index: int) -> int:
    return int(source[index][0][0, 0, 0])


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_read_the_same(tmp_path: Path, method: str) -> None:
    source = RecordIO(path=str(im2rec(tmp_path / "a.rec", LABELS, BODIES)))
    source.prepare()
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.starmap(red, [(source, index) for index in range(6)])
    assert found == [0, 5, 10, 15, 20, 25]


def test_a_pickle_holds_no_images_and_threads_open_it_together(tmp_path: Path) -> None:
    source = RecordIO(path=str(im2rec(tmp_path / "a.rec", LABELS * 50, BODIES * 50)))
    copy = pickle.dumps(source)
    assert BODIES[1] not in copy
    opened = pickle.loads(copy)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: red(opened, i), range(300))) == [0, 5, 10, 15, 20, 25] * 50


def test_the_table_builds_it(tmp_path: Path) -> None:
    path = im2rec(tmp_path / "a.rec", LABELS, BODIES)
    source = build("data", SOURCES, "recordio", path=str(path), image_size=8, on_bad_image="skip")
    assert source[0][0].shape == (8, 8, 3)
    with pytest.raises(ValueError, match=r"data.on_bad_image: must be 'stop' or 'skip', got"):
        build("data", SOURCES, "recordio", path=str(path), on_bad_image="skp")


def test_an_empty_image_at_the_end_is_a_bad_image(tmp_path: Path) -> None:
    path = im2rec(tmp_path / "a.rec", LABELS, [*BODIES[:5], b""])
    source = RecordIO(path=str(path), on_bad_image="skip")
    source.prepare()
    assert [bad.index for bad in source.bad] == [5]
    assert bytes(source.encoded(5)) == b""
    assert red(source, 5) == red(source, 4)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data.path: there is no file .*none\.rec"):
        RecordIO(path=str(tmp_path / "none.rec"))
    im2rec(tmp_path / "train.rec", LABELS, BODIES)
    with pytest.raises(ValueError, match=r"is a folder; give the \.rec file, such as .*train\.rec"):
        RecordIO(path=str(tmp_path))


def test_a_file_that_is_cut_while_it_is_read_is_named_and_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "faces.rec"
    with RecordWriter(path) as writer:
        for number in range(40):
            noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
            writer.write(cv2.imencode(".png", noise)[1].tobytes(), number // 10)
    source = RecordIO(path=str(path))
    source.prepare()
    source[39]
    with path.open("r+b") as file:
        file.truncate(4096)
    for read in (source.__getitem__, source.encoded, source.quick_pixels):
        with pytest.raises(OSError, match=r"faces\.rec has been cut while it is read"):
            read(39)
