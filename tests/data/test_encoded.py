"""What all sources of encoded images share: the start-up check, and what bad images do to each."""

import os
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from sphereface2.data.sources.encoded import EncodedImages, OnBadImage, file_name
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.image_list import ImageList
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.data.sources.source import BadImage
from tests.data.test_folder import write_image
from tests.data.test_image_file import encode, picture, png_of_size, saved
from tests.data.test_recordio import BODIES, LABELS, im2rec, insightface


def numbered(index: int) -> bytes:
    """A picture whose grey says which one it is."""
    return cv2.imencode(".png", np.full((8, 8, 3), index, np.uint8))[1].tobytes()


DAMAGED = bytearray(cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes())
DAMAGED[45:50] = bytes(5)  # the header is good, the content is not


class Memory(EncodedImages):
    """Images in memory; `empty` and `damaged` name the bad ones."""

    def __init__(
        self,
        labels: Sequence[int],
        *,
        empty: Sequence[int] = (),
        damaged: Sequence[int] = (),
        image_size: int | None = None,
        on_bad_image: OnBadImage = "stop",
    ) -> None:
        self.stored = [numbered(index % 256) for index in range(len(labels))]
        for index in empty:
            self.stored[index] = b""
        for index in damaged:
            self.stored[index] = bytes(DAMAGED)
        self.reads = 0
        super().__init__(
            path=Path("some/data"),
            labels=np.array(labels, np.int64),
            people=[f"p{label}" for label in range(max(labels) + 1)],
            image_size=image_size,
            on_bad_image=on_bad_image,
        )

    def encoded(self, index: int, /) -> bytes:
        self.reads += 1
        return self.stored[index]

    def location(self, index: int, /) -> str:
        return f"image {index}"

    def name(self, index: int, /) -> str:
        return file_name(self.person(index), f"{index}.png")


def shown(source: EncodedImages, index: int) -> tuple[int, int]:
    """Which picture stands at an index, and its label."""
    image, label = source[index]
    return int(image[0, 0, 0]), label


def test_images_labels_people_and_size() -> None:
    source = Memory([0, 0, 1, -1], image_size=5)
    assert len(source) == 4
    assert source.num_classes == 2
    assert [shown(source, index) for index in range(4)] == [(0, 0), (1, 0), (2, 1), (3, -1)]
    assert source[0][0].shape == (5, 5, 3)
    assert [source.person(index) for index in range(4)] == ["p0", "p0", "p1", "unknown"]
    assert shown(source, -1) == (3, -1)
    with pytest.raises(IndexError, match=r"image 4 of 4"):
        source[4]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_check_reads_everything_once_and_reports_how_far_it_is(workers: int) -> None:
    source = Memory([0] * 1000)
    calls: list[tuple[int, int]] = []
    source.prepare(workers=workers, progress=lambda done, total: calls.append((done, total)))
    assert source.reads == 1000
    assert calls == [(256, 1000), (512, 1000), (768, 1000), (1000, 1000)]
    assert source.bad == ()
    source.prepare(workers=workers)
    assert source.reads == 1000, "checked a second time"


@pytest.mark.parametrize("workers", [1, 3])
def test_stop_names_the_count_and_the_first_five(workers: int) -> None:
    source = Memory([0] * 900, empty=range(100, 700, 100))
    with pytest.raises(ValueError, match=r".") as error:
        source.prepare(workers=workers)
    assert str(error.value) == (
        "6 of the 900 images cannot be used: image 100 (it is empty), image 200 (it is empty), "
        "image 300 (it is empty), image 400 (it is empty), image 500 (it is empty), ...; "
        "'sphereface2 inspect some/data' lists all, and data.on_bad_image=skip trains without them"
    )
    assert [bad.index for bad in source.bad] == [100, 200, 300, 400, 500, 600]
    assert source.bad[0] == BadImage(100, "image 100", "it is empty")


def naive_stand_in(labels: Sequence[int], bad: set[int], index: int) -> int:
    following: list[int] = [*range(index, len(labels)), *range(index)]
    good = [each for each in following if each not in bad]
    return next((each for each in good if labels[each] == labels[index]), good[0])


def test_skip_takes_the_next_readable_image_of_the_person_or_else_of_anyone() -> None:
    labels = [0, 1, 0, 1, 2, 0, -1, 2, 3, -1, 0]
    bad = {2, 3, 4, 6, 7, 10}
    source = Memory(labels, empty=sorted(bad), on_bad_image="skip")
    source.prepare(workers=2)
    assert {each.index for each in source.bad} == bad
    assert len(source) == len(labels)
    for index in range(len(labels)):
        stand_in = naive_stand_in(labels, bad, index)
        assert shown(source, index) == (stand_in, labels[stand_in]), index
    assert source.labels.tolist() == labels


def test_skip_also_replaces_what_fails_only_when_decoded_in_any_order() -> None:
    labels = [0, 1, 0, 0, 1]
    for order in ([0, 1, 2, 3, 4], [2, 0, 4, 3, 1]):
        source = Memory(labels, damaged=[2], empty=[3], on_bad_image="skip")
        source.prepare()
        assert [each.index for each in source.bad] == [3]
        found = {index: shown(source, index) for index in order}
        assert [found[index] for index in range(5)] == [(0, 0), (1, 1), (0, 0), (0, 0), (4, 1)]
        assert [each.index for each in source.bad] == [2, 3]
        assert source.bad[0].reason == "its content is damaged"


def test_stop_raises_for_what_fails_only_when_decoded() -> None:
    source = Memory([0, 0], damaged=[1])
    source.prepare()
    with pytest.raises(
        ValueError, match=r"cannot decode the image image 1: its content is damaged; replace or"
    ):
        source[1]


def test_nothing_readable_is_an_error_also_with_skip() -> None:
    source = Memory([0, 0], empty=[0, 1], on_bad_image="skip")
    expected = "none of the 2 images of some/data can be used, the first (image 0) because it is"
    with pytest.raises(ValueError, match=r".") as error:
        source.prepare()
    assert str(error.value) == f"{expected} empty"
    unprepared = Memory([0, 0], damaged=[0, 1], on_bad_image="skip")
    with pytest.raises(ValueError, match=r"none of the 2 images"):
        unprepared[1]


def test_many_threads_and_a_copy_in_another_process_see_the_same() -> None:
    labels = [index % 7 for index in range(200)]
    source = Memory(labels, damaged=range(0, 200, 9), empty=[5], on_bad_image="skip")
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda index: shown(source, index), range(200)))
    alone = Memory(labels, damaged=range(0, 200, 9), empty=[5], on_bad_image="skip")
    assert together == [shown(alone, index) for index in reversed(range(200))][::-1]
    copy = pickle.loads(pickle.dumps(source))
    assert copy.bad == source.bad
    assert [shown(copy, index) for index in range(200)] == together


def test_an_interrupted_check_ends_its_threads() -> None:
    source = Memory([0] * 5000)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.prepare(workers=2, progress=interrupt)
    assert source.reads < 5000
    assert not [each for each in threading.enumerate() if each.name.startswith("in_threads")]
    source.prepare(workers=2)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"on_bad_image must be 'stop' or 'skip', got 'ignore'"):
        Memory([0], on_bad_image="ignore")  # type: ignore[arg-type]  # the mistake itself
    with pytest.raises(ValueError, match=r"data.image_size must be at least 1, got 0"):
        Memory([0], image_size=0)


@pytest.mark.parametrize(
    ("person", "relative", "expected"),
    [
        ("anna", "anna/1.jpg", "anna/1.jpg"),
        ("anna", "anna/album/1.jpg", "anna/album/1.jpg"),
        ("7", "images/a b.jpg", "7/images/a b.jpg"),
        ("7", "/data/../../etc/1.jpg", "7/data/etc/1.jpg"),
        ("..", "1.jpg", "_../1.jpg"),
        ("a/b", "1.jpg", "a_b/1.jpg"),
        ("", "1.jpg", "_/1.jpg"),
    ],
)
def test_a_name_lies_in_the_folder_of_its_person(person: str, relative: str, expected: str) -> None:
    assert file_name(person, relative) == expected


BAD = {
    "zero bytes": (b"", "it is empty"),
    "a text": (b"no picture, but a note\n", "it is not a JPEG, PNG, BMP, WebP, GIF or TIFF file"),
    "truncated JPEG": (encode(picture())[:-50], "it is cut short"),
    "truncated PNG": (encode(picture(), ".png")[:-50], "it is cut short"),
    "truncated WebP": (encode(picture(), ".webp")[:-10], "it is cut short"),
    "truncated BMP": (encode(picture(), ".bmp")[:-50], "it is cut short"),
    "one pixel": (encode(picture(1, 1)), "it has 1 × 1 pixels, fewer than 8 a side"),
    "huge": (
        png_of_size(30_000, 30_000),
        "it has 30000 × 30000 pixels, more than 100 million",
    ),
    "truncated GIF": (saved(Image.fromarray(picture()), "GIF")[:-40], "it is cut short"),
    "truncated TIFF": (saved(Image.fromarray(picture()), "TIFF")[:-40], "it is cut short"),
    "HEIC": (
        b"\0\0\0\x18ftypheic" + bytes(40),
        "it is of the kind HEIC, which is not read; convert it to JPEG or PNG",
    ),
}
COLOUR = Image.fromarray(np.full((16, 16, 3), (200, 10, 20), np.uint8))
GOOD = {
    "16 bit": encode(picture().astype(np.uint16) * 257, ".png"),
    "CMYK": saved(COLOUR.convert("CMYK"), "JPEG"),
    "grey": encode(picture()[:, :, 0]),
    "palette": saved(COLOUR.convert("P"), "PNG"),
    "a PNG called .jpg": encode(picture(), ".png"),
}


def message(call: object, *arguments: object) -> str:
    assert callable(call)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        call(*arguments)
    text = str(error.value)
    assert "\n" not in text
    text.encode("utf-8")
    return text


def folder_with(tmp_path: Path, content: bytes) -> Path:
    for number in range(3):
        write_image(tmp_path / "data" / "anna" / f"{number}.png", rgb=(10 * number, 0, 0))
    write_image(tmp_path / "data" / "ben" / "1.png", rgb=(90, 0, 0))
    (tmp_path / "data" / "anna" / "1.jpg").write_bytes(content)
    return tmp_path / "data"


def sources(tmp_path: Path, content: bytes) -> dict[str, EncodedImages]:
    """The same images from each kind of source that the standard installation has."""
    folder = folder_with(tmp_path, content)
    files = ["anna/0.png", "anna/1.jpg", "anna/1.png", "anna/2.png", "ben/1.png"]
    (folder / "list.txt").write_text("".join(f"{f}\t{f.split('/')[0]}\n" for f in files))
    bodies = [(folder / file).read_bytes() for file in files]
    rec = insightface(tmp_path / "train.rec", [0.0, 0.0, 0.0, 0.0, 1.0], bodies)
    made: list[EncodedImages] = [
        ImageFolder(path=str(folder), on_bad_image="skip"),
        ImageList(path=str(folder / "list.txt"), on_bad_image="skip"),
        RecordIO(path=str(rec), on_bad_image="skip"),
    ]
    return {source.location(1): source for source in made}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_image_stops_with_its_place_and_reason(tmp_path: Path, kind: str) -> None:
    content, reason = BAD[kind]
    folder = folder_with(tmp_path, content)
    source = ImageFolder(path=str(folder))
    assert message(lambda: source.prepare(workers=2)) == (
        f"1 of the 5 images cannot be used: {folder}/anna/1.jpg ({reason}); "
        f"'sphereface2 inspect {folder}' lists all, and data.on_bad_image=skip trains without them"
    )
    assert message(lambda: source[1]) == (
        f"cannot decode the image {folder}/anna/1.jpg: {reason}; replace or remove it"
    )


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_image_is_skipped_by_every_source(tmp_path: Path, kind: str) -> None:
    content, reason = BAD[kind]
    for location, source in sources(tmp_path, content).items():
        source.prepare(workers=2)
        (bad,) = source.bad
        assert (bad.index, bad.location, bad.reason) == (1, location, reason)
        reds = [int(source[index][0][0, 0, 0]) for index in range(5)]
        assert reds == [0, 10, 10, 20, 90], location
        assert [source[index][1] for index in range(5)] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("kind", GOOD)
def test_unusual_images_are_read_by_every_source(tmp_path: Path, kind: str) -> None:
    for source in sources(tmp_path, GOOD[kind]).values():
        source.prepare()
        assert source.bad == ()
        image, label = source[1]
        assert image.dtype == np.uint8
        assert image.ndim == 3
        assert image.shape[2] == 3
        assert label == 0
        assert bytes(source.encoded(1)) == GOOD[kind], "stored bytes are given as they are"


def test_people_whose_names_are_not_utf8(tmp_path: Path) -> None:
    write_image(tmp_path / "person" / "1.png", rgb=(70, 0, 0))
    write_image(tmp_path / "zoe" / "1.png")
    os.rename(  # noqa: PTH104 - a name in bytes
        os.fsencode(tmp_path / "person"), os.fsencode(tmp_path) + b"/caf\xe9"
    )
    source = ImageFolder(path=str(tmp_path))
    assert source.people == [r"caf\xe9", "zoe"]
    assert source[0][0][0, 0].tolist() == [70, 0, 0]
    source.prepare()
    source.image_path(0).write_bytes(b"")
    again = ImageFolder(path=str(tmp_path))
    assert rf"{tmp_path}/caf\xe9/1.png (it is empty)" in message(lambda: again.prepare())
    assert message(lambda: again[0]) == (
        rf"cannot decode the image {tmp_path}/caf\xe9/1.png: it is empty; replace or remove it"
    )
    inside = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    assert message(lambda: ImageFolder(path=str(inside))) == (
        rf"data.path: no images in the folders of {tmp_path}/caf\xe9; expected PERSON/IMAGE with "
        "one of the endings .jpg, .jpeg, .png, .bmp, .webp, .jfif, .jpe, .tif, .tiff, .gif"
    )


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "notes.txt").touch()
    write_image(tmp_path / "only_at_the_top.png")
    assert message(lambda: ImageFolder(path=str(tmp_path))) == (
        f"data.path: no images in the folders of {tmp_path}; expected PERSON/IMAGE with one of the "
        "endings .jpg, .jpeg, .png, .bmp, .webp, .jfif, .jpe, .tif, .tiff, .gif"
    )


def test_gaps_in_labels_leave_no_empty_class(tmp_path: Path) -> None:
    rec = RecordIO(path=str(im2rec(tmp_path / "a.rec", [7.0, 100.0, 7.0], BODIES[:3])))
    assert rec.num_classes == 2
    assert rec.labels.tolist() == [0, 1, 0]
    write_image(tmp_path / "1.png")
    (tmp_path / "list.txt").write_text("1.png 7\n1.png 100\n1.png 7\n")
    assert ImageList(path=str(tmp_path / "list.txt")).labels.tolist() == [0, 1, 0]


# -- damaged RecordIO files ----------------------------------------------------------------------


def test_a_truncated_rec(tmp_path: Path) -> None:
    rec = im2rec(tmp_path / "train.rec", LABELS, BODIES)
    content = rec.read_bytes()
    offsets = [int(line.split()[1]) for line in rec.with_suffix(".idx").read_text().splitlines()]
    rec.write_bytes(content[:-10])
    assert message(lambda: RecordIO(path=str(rec))) == (
        f"{rec} is cut short or damaged in key 5, at byte {offsets[5]} of {len(content) - 10}; "
        "copy it again"
    )
    rec.with_suffix(".idx").unlink()
    assert message(lambda: RecordIO(path=str(rec))) == (
        f"{rec} is cut short or damaged after 5 records, at byte {offsets[5]} of "
        f"{len(content) - 10}; copy it again"
    )
    rec.write_bytes(b"")
    assert message(lambda: RecordIO(path=str(rec))) == f"{rec} is empty; copy it again"


def test_any_truncation_of_a_rec_is_noticed(tmp_path: Path) -> None:
    rec = insightface(tmp_path / "train.rec", LABELS, BODIES)
    content = rec.read_bytes()
    for length in range(1, len(content), 37):
        rec.write_bytes(content[:length])
        said = message(lambda: RecordIO(path=str(rec)))
        assert str(rec) in said
        assert "cut short" in said


def test_an_index_that_points_past_the_end(tmp_path: Path) -> None:
    rec = im2rec(tmp_path / "train.rec", LABELS, BODIES)
    index = rec.with_suffix(".idx")
    size = rec.stat().st_size
    index.write_text(f"{index.read_text()}6\t{size + 400}\n")
    assert message(lambda: RecordIO(path=str(rec))) == (
        f"{index}: key 6 points to byte {size + 400}, but {rec} has {size}; one of them is cut "
        "short or of another data set, so copy both again"
    )


def test_an_index_of_another_rec(tmp_path: Path) -> None:
    rec = im2rec(tmp_path / "train.rec", LABELS, BODIES)
    other = im2rec(tmp_path / "other.rec", [0.0, 0.0], [bytes(24), bytes(24)])
    index = rec.with_suffix(".idx")
    index.write_bytes(other.with_suffix(".idx").read_bytes())
    assert message(lambda: RecordIO(path=str(rec))) == (
        f"{index}: key 1 points to byte 56, where no record of {rec} begins; the .idx is of "
        "another .rec, so take the right one, or remove it and the .rec is read without"
    )
    index.write_text("0\t2\n")
    assert "key 0 points to byte 2, where no record" in message(lambda: RecordIO(path=str(rec)))
    for text in ("", "a\tb\n", "1\n", "0\t0\t0\n"):
        index.write_text(text)
        assert message(lambda: RecordIO(path=str(rec))) == (
            f"{index} is not an index: expected lines of a key, a tab and an offset; remove it, "
            "and the .rec is read without"
        )
    index.unlink()
    assert len(RecordIO(path=str(rec))) == 6


def test_a_file_that_is_not_a_rec_and_a_record_without_room_for_its_labels(tmp_path: Path) -> None:
    rec = tmp_path / "a.rec"
    rec.write_bytes(b"not of RecordIO, a text.")
    assert message(lambda: RecordIO(path=str(rec))) == (
        f"{rec} is cut short or damaged after 0 records, at byte 0 of 24; copy it again"
    )
    im2rec(rec, LABELS, BODIES)
    content = bytearray(rec.read_bytes())
    for flag in (b"\xff\xff\xff\x00", b"\x00\x00\x00\xc0"):  # millions of labels
        content[8:12] = flag
        rec.write_bytes(content)
        assert message(lambda: RecordIO(path=str(rec))) == (
            f"{rec} is cut short or damaged in key 0, at byte 0 of {len(content)}; copy it again"
        )
