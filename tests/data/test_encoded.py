"""What all sources of encoded images share: the start-up check, and what stands in for bad ones."""

import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.sources.encoded import EncodedImages, OnBadImage, file_name
from sphereface2.data.sources.source import BadImage


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
def test_the_check_reads_everything_once_and_tells_how_far_it_is(workers: int) -> None:
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
    assert not [each for each in threading.enumerate() if each.name.startswith("check")]
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
