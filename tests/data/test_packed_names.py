"""Names come back from their packing as they were."""

import pickle

import pytest

from sphereface2.data.sources.folder import PackedNames

NAMES = ["a/1.jpg", "", "Zoë/ü.png", "b/\udcff\udc80.jpg", "\ud800", "a/1.jpg", "日本/顔.webp"]


def test_names_come_back_as_they_were() -> None:
    packed = PackedNames(NAMES)
    assert len(packed) == len(NAMES)
    assert [packed[index] for index in range(len(NAMES))] == NAMES
    assert list(pickle.loads(pickle.dumps(packed))) == NAMES
    assert packed[-1] == NAMES[-1]
    for index in (len(NAMES), -len(NAMES) - 1):
        with pytest.raises(IndexError):
            packed[index]


def test_there_may_be_none() -> None:
    assert len(PackedNames([])) == 0
