"""Labels made wrong on purpose: how many, which, and what is written down about them."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.data.loader.batch_plan import BatchPlan
from sphereface2.data.mixing import NoisyLabels
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.progress import Progress
from tests.data.test_folder import write_image


class Labelled:
    """Images of one pixel that holds their index, with given labels."""

    image_size: int | None = 1

    def __init__(self, labels: list[int]) -> None:
        self.labels: NDArray[np.int64] = np.array(labels, np.int64)
        self.num_classes = 1 + max(labels)
        self.prepared = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        return np.full((1, 1, 3), index % 256, np.uint8), int(self.labels[index])

    def name(self, index: int) -> str:
        return f"person {self.labels[index]}/{index}.jpg"

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        self.prepared = workers


UNEVEN = [0] * 10 + [1] * 7 + [2] * 3 + [-1] * 5 + [3] + [0] * 2


def noisy(labels: list[int], **options: Any) -> NoisyLabels:
    return NoisyLabels(Labelled(labels), **options)


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.5, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_exactly_the_rounded_share_of_each_persons_images_is_wrong(rate: float, seed: int) -> None:
    source = noisy(UNEVEN, rate=rate, seed=seed)
    for person in range(4):
        own = source.true_labels == person
        wrong = (source.labels[own] != person).sum()
        assert wrong == round(rate * own.sum())
    assert source.labels.min() == -1
    assert source.labels.max() <= 3
    assert (source.labels[source.true_labels == -1] == -1).all()
    expected = sum(round(rate * count) for count in (12, 7, 3, 1))
    assert source.realised_rate == expected / 23
    assert len(source.drawn) == expected


def test_each_of_the_others_is_equally_likely_and_each_image_equally_often_wrong() -> None:
    given = np.zeros((4, 4))
    chosen = np.zeros(80)
    for seed in range(500):
        source = noisy([0, 1, 2, 3] * 20, rate=0.4, seed=seed)
        wrong = source.labels != source.true_labels
        np.add.at(given, (source.true_labels[wrong], source.labels[wrong]), 1)
        chosen += wrong
    assert (np.diag(given) == 0).all()
    others = given[~np.eye(4, dtype=bool)]
    # 500 draws of 8 images of each person, to one of three: 1333 each, five deviations are 149.
    assert abs(others - 4000 / 3).max() < 150
    # A binomial count of 500 draws at 0.4: five deviations are 55.
    assert abs(chosen - 200).max() < 55


@pytest.mark.parametrize("seed", range(3))
def test_resampling_draws_images_by_chance_and_any_label(seed: int) -> None:
    labels = [0, 1, 2, 3, -1] * 2000
    source = noisy(labels, rate=0.4, kind="resample", seed=seed)
    # Eight thousand throws at 0.4 and at 0.4 * 3/4: five deviations are 2.7 %.
    assert abs(len(source.drawn) / 8000 - 0.4) < 0.027
    assert abs(source.realised_rate - 0.3) < 0.027
    assert (source.labels[source.true_labels == -1] == -1).all()
    counts = np.bincount(source.labels[source.drawn], minlength=4)
    assert abs(counts / len(source.drawn) - 0.25).max() < 0.04
    # Unlike flips, the number differs from person to person.
    wrong = source.labels != source.true_labels
    assert len({int(wrong[source.true_labels == person].sum()) for person in range(4)}) > 1


@pytest.mark.parametrize("kind", ["flip", "resample"])
def test_noise_is_a_function_of_labels_and_seed(kind: str) -> None:
    labels = [0, 1, 2, 3, -1] * 40
    one, same, other = (noisy(labels, rate=0.5, kind=kind, seed=seed) for seed in (1, 1, 2))
    assert (one.labels == same.labels).all()
    assert (one.labels != other.labels).any()
    assert one.manifest() == same.manifest() != other.manifest()


@pytest.mark.parametrize("kind", ["flip", "resample"])
def test_wrong_labels_come_up_evenly_in_every_epoch_of_a_run_with_the_same_seed(kind: str) -> None:
    source = noisy([0, 1, 2, 3] * 500, rate=0.5, kind=kind, seed=3)
    wrong = source.labels != source.true_labels
    for number in range(6):
        order = BatchPlan(source.labels, batch_size=8, seed=3).epoch(number).ravel()
        rounds = np.random.default_rng([3, number, 1]).permutation(2000)  # the order of strangers
        for places in (order[:1000], rounds[:1000]):
            # A half of 2000 images: six deviations of the share of wrong labels are 0.07.
            assert abs(wrong[places].mean() - wrong.mean()) < 0.07


def test_it_is_the_source_with_other_labels() -> None:
    source = noisy(UNEVEN, rate=0.5, seed=1)
    before = source.true_labels.copy()
    assert (len(source), source.num_classes, source.image_size) == (len(UNEVEN), 4, 1)
    for index in range(len(source)):
        image, label = source[index]
        assert image[0, 0, 0] == index
        assert label == source.labels[index]
    assert (source.true_labels == before).all()
    source.prepare(workers=3)
    assert isinstance(source.source, Labelled)
    assert source.source.prepared == 3
    assert source.bad == ()
    assert source.notes == ()


def test_a_stand_in_has_the_drawn_label_of_its_place_or_that_of_the_person_it_shows(
    tmp_path: Path,
) -> None:
    """Of four people the second has one bad image, and the third has no other."""
    for number, person in enumerate(("anna", "bert", "cleo", "dora")):
        for image in range(1 if person == "cleo" else 3):
            write_image(tmp_path / person / f"{image}.png", rgb=(10 * number + image, 0, 0))
    (tmp_path / "bert" / "1.png").write_bytes(b"")
    (tmp_path / "cleo" / "0.png").write_bytes(b"")
    seen = set()
    for seed in range(20):
        people = ImageFolder(path=str(tmp_path), on_bad_image="skip")
        source = NoisyLabels(people, rate=1.0, seed=seed)
        source.prepare()
        (bert, bert_label), (dora, dora_label) = source[4], source[6]
        # The next image of the same person takes the place, so that the rate of noise holds.
        assert bert[0, 0, 0] == 12
        assert bert_label == source.labels[4]
        # Nothing was drawn for somebody else in this place: the label is that of the face.
        assert dora[0, 0, 0] == 30
        assert dora_label == 3
        seen.add((int(source.labels[4]), int(source.labels[5]), int(source.labels[6])))
    assert any(place != own for place, own, _ in seen)
    assert any(drawn != 3 for *_, drawn in seen)


@pytest.mark.parametrize("kind", ["flip", "resample"])
def test_the_manifest_lists_every_label_that_was_drawn(kind: str) -> None:
    source = noisy(UNEVEN, rate=0.5, kind=kind, seed=3)
    rows = list(csv.DictReader(io.StringIO(source.manifest())))
    assert [int(row["index"]) for row in rows] == source.drawn.tolist()
    labels = source.true_labels.copy()
    for row in rows:
        index = int(row["index"])
        assert row["name"] == f"person {source.true_labels[index]}/{index}.jpg"
        assert int(row["true_label"]) == source.true_labels[index]
        labels[index] = int(row["given_label"])
    assert (labels == source.labels).all()


def test_a_source_without_names_has_a_manifest_without_names() -> None:
    source = NoisyLabels(noisy([0, 1], rate=1.0), rate=1.0)  # the inner one gives no names
    assert source.manifest().splitlines()[1:] == ["0,,1,0", "1,,0,1"]


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.01, float("nan")])
def test_a_rate_that_is_no_share_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"label_noise\.rate must be above 0 and at most 1"):
        noisy([0, 1], rate=rate)


def test_one_person_has_nobody_to_be_taken_for() -> None:
    with pytest.raises(ValueError, match="label_noise needs at least 2 people"):
        noisy([0, 0], rate=0.5)
