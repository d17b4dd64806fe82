"""Pairs drawn from labelled images, and the people whom a training sets aside for them."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.config.schema import load_config
from sphereface2.data.mixing import NoisyLabels, WithStrangers, build_training_source
from sphereface2.data.pairs.drawn import SetAside, draw_pairs, drawn_pairs
from sphereface2.data.pairs.verification_set import VerificationSet
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.source import BadImage, Faces, layer_of
from sphereface2.workers import unseen
from tests.data.numbered_images import Numbers


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
    found.images.prepare(workers=1, progress=unseen)
    assert found.images[2].shape == (12, 12, 3)
    assert int(found.images[2][0, 0, 0]) == 20


LABELS = [-1, *np.repeat(np.arange(20), 3).tolist(), -1]


def test_impostors_may_be_many_more_than_genuine_pairs(tmp_path: Path) -> None:
    folder = people(tmp_path / "faces", [6] * 40)
    (found,) = drawn_pairs(path=str(folder), pairs=200, impostors=2000)
    owners = whose(found)
    np.testing.assert_array_equal(owners[:, 0] == owners[:, 1], found.same)
    assert found.same.sum() == 100
    # A fold of four people with six images has 216 impostor pairs.
    assert np.bincount(found.folds[~found.same]).tolist() == [200] * 10
    assert len({tuple(sorted(pair)) for pair in found.pairs.tolist()}) == 2100
    with pytest.raises(ValueError, match="impostors must be at least 10, got 9"):
        drawn_pairs(path=str(folder), impostors=9)


def test_one_person_with_most_of_the_images_does_not_cost_impostors() -> None:
    labels = np.array([0] * 400 + [1 + number // 4 for number in range(23 * 4)])
    images = Faces(Numbers(labels.tolist()))
    found = draw_pairs(images, labels, name="album", where="album", pairs=100, impostors=1000)
    assert found.people is not None
    for fold in range(10):
        members = np.unique(found.people[found.pairs[found.folds == fold]])
        counts = np.bincount(labels)[members]
        possible = (counts.sum() ** 2 - (counts**2).sum()) // 2
        assert (~found.same[found.folds == fold]).sum() == min(100, possible)


def test_two_halves_share_nobody_and_are_everybody(tmp_path: Path) -> None:
    folder = people(tmp_path / "faces", [3] * 25)
    (first,) = drawn_pairs(path=str(folder), half="first")
    (second,) = drawn_pairs(path=str(folder), half="second")
    assert set(whose(first).ravel()) == set(range(13))
    assert set(whose(second).ravel()) == set(range(13, 25))
    assert (len(first.images), len(second.images)) == (39, 36)
    names = [second.images.name(index) for index in range(36)]  # type: ignore[attr-defined]  # named
    assert names[0].startswith("p13")
    assert names[-1].startswith("p24")


def numbers_of(source: SetAside) -> list[int]:
    return [int(source[index][0][0, 0, 0]) for index in range(len(source))]


def test_people_are_seen_in_the_training_or_set_aside_never_both() -> None:
    source = SetAside(Numbers(LABELS), share=0.25, seed=4)
    seen = {LABELS[number] for number in numbers_of(source)}
    aside = source.verification_set()
    held = {LABELS[int(image[0, 0, 0])] for image in (aside.images[i] for i in range(15))}
    assert len(aside.images) == 15
    assert (len(held), source.num_classes) == (5, 15)
    assert held | seen == {-1, *range(20)}
    assert not held & seen
    # Labels without gaps, one for each person; nobody known stays nobody known.
    assert sorted(set(source.labels.tolist())) == [-1, *range(15)]
    given = [source[index][1] for index in range(len(source))]
    assert given == source.labels.tolist()
    pairs = {
        (LABELS[number], label) for number, label in zip(numbers_of(source), given, strict=True)
    }
    assert len(pairs) == 16


def test_the_seed_decides_who_is_set_aside() -> None:
    chosen = [numbers_of(SetAside(Numbers(LABELS), share=0.25, seed=seed)) for seed in (4, 4, 5)]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize(("share", "people"), [(0.1, 2), (0.95, 19)])
def test_a_share_that_leaves_too_few_is_refused(share: float, people: int) -> None:
    with pytest.raises(ValueError, match=rf"set_aside={share} takes {people} of 20 people"):
        SetAside(Numbers(LABELS), share=share, seed=0)


class TestFiles:
    @pytest.fixture
    def crops(self, tmp_path: Path) -> Path:
        for person in range(12):
            (tmp_path / f"{person:02}").mkdir()
            for number in range(2):
                image = np.full((8, 8, 3), 20 * person + number, np.uint8)
                cv2.imwrite(str(tmp_path / f"{person:02}" / f"{number}.png"), image)
        return tmp_path

    def people_aside(self, source: SetAside) -> set[int]:
        images = source.verification_set().images
        return {int(images[i][0, 0, 0]) // 20 for i in range(len(images))}

    def test_bad_images_keep_their_places_and_no_one_set_aside_stands_in(self, crops: Path) -> None:
        whole = ImageFolder(path=str(crops), on_bad_image="skip")
        source = SetAside(whole, share=0.4, seed=1)
        aside = self.people_aside(source)
        # Both images of a person before somebody who is set aside: the stand-in would be theirs.
        person = next(p for p in range(11) if p not in aside and p + 1 in aside)
        places = [i for i in range(len(source)) if source[i][0][0, 0, 0] // 20 == person]
        source.exclude([BadImage(i, "there", "broken") for i in places])
        assert [bad.index for bad in source.bad] == places
        assert [bad.index for bad in whole.bad] == [2 * person, 2 * person + 1]
        for place in places:
            image, label = source[place]
            shown = int(image[0, 0, 0]) // 20
            assert shown not in {*aside, person}
            first = next(i for i in range(len(source)) if whole.people[shown] in source.name(i))
            assert label == source.labels[first]

    def test_bad_images_are_in_no_pair(self, crops: Path) -> None:
        whole = ImageFolder(path=str(crops), on_bad_image="skip")
        source = SetAside(whole, share=0.5, seed=1)
        person = min(self.people_aside(source))
        whole.exclude([BadImage(2 * person, "there", "broken")])
        assert source.bad == ()
        images = source.verification_set().images
        assert 20 * person not in {int(images[i][0, 0, 0]) for i in range(len(images))}

    def test_noise_and_strangers_come_on_top(self, crops: Path) -> None:
        config = load_config(
            "own-faces",
            [
                f"data.path={crops}",
                "evaluation.set_aside=0.5",
                "label_noise.rate=0.5",
                "open_set={share: 0.5, data: {name: synthetic, people: 3}}",
            ],
        )
        source = build_training_source(config)
        assert isinstance(source, WithStrangers)
        assert isinstance(source.source, NoisyLabels)
        aside = layer_of(source, SetAside)
        assert aside is not None
        assert source.num_classes == aside.num_classes == 6
        assert source.source.manifest().count(".png") == 6
        assert layer_of(aside.source, SetAside) is None
