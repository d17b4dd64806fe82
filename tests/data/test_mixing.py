"""Noise in labels and strangers in batches: which images and labels a training gets."""

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.data.loader.loader import BatchPlan, Loader, MixedPlan
from sphereface2.data.mixing import NoisyLabels, WithStrangers, plan_batches
from sphereface2.data.sources.folder import ImageFolder, LooseImages
from sphereface2.data.sources.source import bad_images
from sphereface2.workers import Progress, unseen
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

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        self.prepared = workers


UNEVEN = [0] * 10 + [1] * 7 + [2] * 3 + [-1] * 5 + [3] + [0] * 2


def noisy(labels: list[int], **options: Any) -> NoisyLabels:
    return NoisyLabels(Labelled(labels), **options)


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.5, 0.6, 0.8, 1.0])
def test_exactly_the_rounded_share_of_each_persons_images_is_wrong(rate: float) -> None:
    for seed in range(5):
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
def test_a_rate_that_is_not_a_share_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"label_noise\.rate must be above 0 and at most 1"):
        noisy([0, 1], rate=rate)


def test_one_person_has_nobody_to_be_taken_for() -> None:
    with pytest.raises(ValueError, match="label_noise needs at least 2 people"):
        noisy([0, 0], rate=0.5)


class Shades:
    """Images of one shade each, counted up from the first one."""

    image_size: int | None = 8

    def __init__(self, labels: list[int], *, first: int = 0) -> None:
        self.labels: NDArray[np.int64] = np.array(labels, np.int64)
        self.num_classes = 1 + max(labels)
        self.first = first

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        return np.full((8, 8, 3), self.first + index, np.uint8), int(self.labels[index])

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        progress(5, 10)
        progress(10, 10)


def mixed(known: int = 40, strangers: int = 30, *, share: float = 0.25) -> WithStrangers:
    return WithStrangers(
        Shades([i % 4 for i in range(known)]),
        Shades(list(range(strangers)), first=100),  # their own labels are of no matter
        share=share,
    )


def plan_of(
    source: WithStrangers, *, batch_size: int = 8, images: int = 1, seed: int = 0
) -> MixedPlan:
    plan = plan_batches(source, batch_size=batch_size, images_per_person=images, seed=seed)
    assert isinstance(plan, MixedPlan)
    return plan


def test_strangers_stand_behind_the_known_with_label_minus_one() -> None:
    source = mixed(40, 30)
    assert (len(source), source.num_classes, source.image_size) == (70, 4, 8)
    assert source.labels.tolist() == [i % 4 for i in range(40)] + [-1] * 30
    image, label = source[39]
    assert (image[0, 0, 0], label) == (39, 3)
    image, label = source[40]
    assert (image[0, 0, 0], label) == (100, -1)


@pytest.mark.parametrize(
    ("share", "batch_size", "expected"), [(0.25, 8, 2), (0.2, 8, 2), (0.1, 8, 1), (0.9, 10, 9)]
)
def test_every_batch_has_the_same_number_of_strangers(
    share: float, batch_size: int, expected: int
) -> None:
    source = mixed(share=share)
    plan = plan_of(source, batch_size=batch_size)
    for epoch in range(4):
        batches = plan.epoch(epoch)
        assert batches.shape == (plan.steps_per_epoch, batch_size)
        assert ((batches >= 40).sum(axis=1) == expected).all()


def test_the_known_come_in_the_order_that_they_have_without_strangers() -> None:
    source = mixed()
    alone = BatchPlan(source.source.labels, batch_size=6, seed=5)
    plan = plan_of(source, seed=5)
    assert plan.steps_per_epoch == alone.steps_per_epoch == 40 // 6
    for epoch in range(3):
        batches = plan.epoch(epoch)
        assert (batches[batches < 40].reshape(-1, 6) == alone.epoch(epoch)).all()


@pytest.mark.parametrize("strangers", [3, 12, 30, 500])
def test_strangers_come_up_equally_often_whether_there_are_few_or_many(strangers: int) -> None:
    plan = plan_of(mixed(40, strangers))
    shown: Counter[int] = Counter(dict.fromkeys(range(40, 40 + strangers), 0))
    for epoch in range(9):
        batches = plan.epoch(epoch)
        shown.update(batches[batches >= 40].tolist())
        assert max(shown.values()) - min(shown.values()) <= 1
    assert sum(shown.values()) == 9 * 6 * 2


def test_each_epoch_takes_others_in_an_order_of_the_seed() -> None:
    plan, again, other = (plan_of(mixed(40, 300), seed=seed) for seed in (1, 1, 2))
    assert (plan.epoch(3) == again.epoch(3)).all()
    assert (plan.epoch(3) != other.epoch(3)).any()
    first, second = (set(plan.epoch(epoch).ravel().tolist()) - set(range(40)) for epoch in (0, 1))
    assert not first & second


@pytest.mark.parametrize("share", [0.25, 0.5, 0.2, 0.37])
def test_ranks_and_micro_batches_share_the_strangers_evenly(share: float) -> None:
    for parts in [2, 4, 8]:
        plan = plan_of(mixed(400, share=share), batch_size=64)
        for batch in plan.epoch(0):
            counts = [(part >= 400).sum() for part in np.split(batch, parts)]
            assert max(counts) - min(counts) <= 1


def test_groups_of_one_person_stay_whole() -> None:
    source = mixed(share=0.3)
    plan = plan_of(source, batch_size=16, images=4)
    assert plan.per_batch == 4  # 4.8 rounded to a group of four
    for batch in plan.epoch(0):
        for group in source.labels[batch].reshape(-1, 4):
            assert len(set(group.tolist())) == 1


def test_a_source_without_strangers_is_planned_as_ever() -> None:
    source = Shades([0, 1, 2, -1] * 10)
    plan = plan_batches(source, batch_size=8, images_per_person=2, seed=3)
    alone = BatchPlan(source.labels, batch_size=8, images_per_person=2, seed=3)
    assert (plan.epoch(1) == alone.epoch(1)).all()


def test_the_loader_reads_a_mixed_plan_from_any_step_and_for_any_rank() -> None:
    source = mixed()
    plan = plan_of(source)
    whole = list(Loader(source, plan, size=8, workers=0).batches(0, 9))
    for step, batch in enumerate(whole):
        indices = plan.epoch(step // 6)[step % 6]
        assert batch.labels.tolist() == source.labels[indices].tolist()
        shades = [i if i < 40 else 60 + i for i in indices.tolist()]
        assert batch.images[:, 0, 0, 0].tolist() == shades
    rest = list(Loader(source, plan, size=8, workers=2, share=(1, 2)).batches(4, 9))
    for part, batch in zip(rest, whole[4:], strict=True):
        assert (part.images == batch.images[4:]).all()
        assert (part.labels == batch.labels[4:]).all()


def test_shares_and_batches_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"open_set.share must be above 0 and below 1, got 1"):
        mixed(share=1.0)
    sentence = r"share=0.01 leaves no image of strangers in a batch of 8; take a share from 0.125"
    with pytest.raises(ValueError, match=sentence):
        plan_of(mixed(share=0.01))
    with pytest.raises(ValueError, match=r"leaves no group of 4 images of known people"):
        plan_of(mixed(share=0.9), images=4)
    with pytest.raises(ValueError, match=r"batch_size=64 with .*=0.25 takes 48 .* than the 40 of"):
        plan_of(mixed(), batch_size=64)
    with pytest.raises(ValueError, match=r"batch_size=9 is not a multiple of .* take 8 or 10"):
        plan_of(mixed(), batch_size=9, images=2)


def test_both_are_prepared_under_one_count() -> None:
    reported: list[tuple[int, int]] = []
    mixed(40, 60).prepare(progress=lambda done, total: reported.append((done, total)))
    assert reported == [(20, 100), (40, 100), (70, 100), (100, 100)]


# Loose images


def write(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((12, 12, 3), shade, np.uint8))


def test_a_folder_of_strangers_may_have_any_structure(tmp_path: Path) -> None:
    for number, name in enumerate(["b.png", "a.png", "person/c.png", "x/y/z/d.png"]):
        write(tmp_path / name, number)
    write(tmp_path / ".hidden" / "e.png")
    (tmp_path / "notes.txt").write_text("no image")
    source = LooseImages(path=str(tmp_path))
    assert [source.name(i) for i in range(4)] == ["a.png", "b.png", "person/c.png", "x/y/z/d.png"]
    assert (len(source), source.num_classes) == (4, 0)
    assert [int(source[i][0][0, 0, 0]) for i in range(4)] == [1, 0, 2, 3]
    assert {source[i][1] for i in range(4)} == {-1}
    assert source.encoded(0) == (tmp_path / "a.png").read_bytes()
    assert source.location(3) == str(tmp_path / "x/y/z/d.png")


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"open_set.data.path: .*none does not exist"):
        LooseImages(path=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"open_set.data.path: no images below .*\.jpg"):
        LooseImages(path=str(tmp_path))


def test_unreadable_strangers_stop_or_are_counted_behind_the_known(tmp_path: Path) -> None:
    write(tmp_path / "a.png", 7)
    (tmp_path / "b.png").write_bytes(b"")
    known = Shades([0, 1])
    stopping = WithStrangers(known, LooseImages(path=str(tmp_path)), share=0.5)
    with pytest.raises(ValueError, match=r"open_set.data: 1 of .*, and open_set.data.on_bad_image"):
        stopping.prepare()
    skipping = WithStrangers(known, LooseImages(path=str(tmp_path), on_bad_image="skip"), share=0.5)
    skipping.prepare()
    (bad,) = bad_images(skipping)
    assert (bad.index, bad.location) == (3, str(tmp_path / "b.png"))
    assert skipping[3][0][0, 0, 0] == 7
    assert skipping[3][1] == -1
    assert bad_images(known) == ()
