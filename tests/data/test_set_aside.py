"""People set aside: whom the training does not see, and whose pairs choose its step."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sphereface2.config.schema import load_config
from sphereface2.data.mixing import NoisyLabels, WithStrangers, build_training_source, set_aside_of
from sphereface2.data.pairs.drawn import SetAside
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.source import BadImage
from tests.data.numbered_images import Numbers

LABELS = [-1, *np.repeat(np.arange(20), 3).tolist(), -1]


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
        aside = set_aside_of(source)
        assert aside is not None
        assert source.num_classes == aside.num_classes == 6
        assert source.source.manifest().count(".png") == 6
        assert set_aside_of(aside.source) is None
