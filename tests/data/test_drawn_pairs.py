"""Pairs drawn from labelled images: fair, disjoint in people, the same for the same seed."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.data.pairs.drawn import drawn_pairs
from sphereface2.data.pairs.verification_set import VerificationSet


def people(folder: Path, counts: list[int]) -> Path:
    for number, count in enumerate(counts):
        (folder / f"p{number:02d}").mkdir(parents=True)
        for image in range(count):
            picture = np.full((12, 12, 3), 10 * image, np.uint8)
            cv2.imwrite(str(folder / f"p{number:02d}" / f"{image}.png"), picture)
    return folder


def draw(folder: Path, *, pairs: int = 6000, seed: int = 0) -> VerificationSet:
    (found,) = drawn_pairs(path=str(folder), pairs=pairs, seed=seed)
    return found


def whose(found: VerificationSet) -> np.ndarray:
    assert found.people is not None
    return found.people[found.pairs]


def test_pairs_are_what_they_say_and_no_person_is_in_two_folds(tmp_path: Path) -> None:
    found = draw(people(tmp_path / "faces", [5] * 24 + [1] * 3), pairs=200)
    owners = whose(found)
    np.testing.assert_array_equal(owners[:, 0] == owners[:, 1], found.same)
    assert (found.pairs[:, 0] != found.pairs[:, 1]).all()
    assert found.same.sum() == (~found.same).sum() == 100
    assert len({tuple(sorted(pair)) for pair in found.pairs.tolist()}) == 200
    assert set(found.folds) == set(range(10))
    for fold in range(10):
        assert not set(owners[found.folds == fold].ravel()) & set(
            owners[found.folds != fold].ravel()
        )


def test_genuine_pairs_are_spread_over_the_people(tmp_path: Path) -> None:
    found = draw(people(tmp_path / "faces", [4] * 20), pairs=80)
    owners = whose(found)[found.same][:, 0]
    assert np.bincount(owners).tolist() == [2] * 20


def test_a_seed_decides(tmp_path: Path) -> None:
    folder = people(tmp_path / "faces", [4] * 20)
    np.testing.assert_array_equal(draw(folder, seed=3).pairs, draw(folder, seed=3).pairs)
    assert not np.array_equal(draw(folder, seed=3).pairs, draw(folder, seed=4).pairs)


def test_few_people_give_fewer_folds_and_what_pairs_there_are(tmp_path: Path) -> None:
    found = draw(people(tmp_path / "faces", [3, 3, 2, 1, 1]), pairs=6000)
    assert set(found.folds) == {0, 1}
    assert found.same.sum() == (~found.same).sum()
    assert found.same.sum() == 7  # 3 + 3 + 1: every genuine pair there is
    assert found.name == "faces"


def test_too_few_people_are_refused(tmp_path: Path) -> None:
    folder = people(tmp_path / "faces", [3, 1, 1, 1])
    with pytest.raises(ValueError, match="has 4 people, 1 of them with more than one image"):
        draw(folder)
    with pytest.raises(ValueError, match="pairs must be at least 20, got 4"):
        draw(folder, pairs=4)


def test_images_are_those_of_the_source(tmp_path: Path) -> None:
    found = draw(people(tmp_path / "faces", [4] * 4))
    found.images.prepare(workers=1, progress=None)
    assert found.images[2].shape == (12, 12, 3)
    assert int(found.images[2][0, 0, 0]) == 20
