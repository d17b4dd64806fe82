"""Centres of people and the rules of what lies too low, against plain loops of the same rules."""

import math

import numpy as np
import numpy.typing as npt
import pytest

import sphereface2.evaluation.class_centres as class_centres
import sphereface2.evaluation.mislabelled as mislabelled
from sphereface2.evaluation.class_centres import (
    Centres,
    centre_and_spread,
    chance_below,
    nearest_others,
    right_below,
    trimmed_centres,
    unit_rows,
)

Doubles = npt.NDArray[np.float64]


def rise_of(mean: float) -> float:
    """The r with ∫x·exp(rx) / ∫exp(rx) = mean over [0, 1], by bisection of the integrals."""
    x = (np.arange(4000) + 0.5) / 4000
    low, high = 1e-6, 500.0
    for _ in range(60):
        middle = (low + high) / 2
        weight = np.exp(middle * (x - 1))
        low, high = (middle, high) if float(weight @ x / weight.sum()) < mean else (low, middle)
    return (low + high) / 2


@pytest.mark.parametrize("mean", [0.52, 0.6, 0.75, 0.9])
def test_the_rise_is_that_of_the_mean(mean: float) -> None:
    assert class_centres._rise(mean) == pytest.approx(rise_of(mean), rel=1e-3)


def test_the_rise_at_its_ends() -> None:
    assert class_centres._rise(0.5) == 1e-6
    assert class_centres._rise(0.4) == 1e-6
    assert class_centres._rise(0.9999) == 500.0


def expected_below(margins: Doubles, lowest: float, at: Doubles) -> Doubles:
    """As the docstring of `right_below` says it, in plain steps."""
    above = margins[margins > 0]
    width = float(np.percentile(above, 25))
    place = above[above <= width] / width
    third = sum(1 for value in place if value < 1 / 3)
    hard = 0.0
    for _ in range(20):
        thinning = len(place) - hard
        rise = rise_of((place.sum() - hard / 2) / thinning)
        below = thinning / (math.exp(rise) - 1)
        hard = 3 * max(third - below * (math.exp(rise / 3) - 1), 0.0)
    return np.array(
        [below * math.exp(rise * v / width) + hard * max(v - lowest, 0) / width for v in at]
    )


@pytest.mark.parametrize("hard", [0, 60])
def test_right_images_below_nought_are_those_that_thin_out_above(hard: int) -> None:
    generator = np.random.default_rng(hard)
    margins = np.concatenate(
        [0.6 - generator.exponential(0.12, 2000), generator.uniform(-0.4, 0.2, hard)]
    )
    at = np.array([0.0, -0.05, -0.2, -0.5])
    found = right_below(margins, -0.3)
    assert found is not None
    np.testing.assert_allclose(found(at), expected_below(margins, -0.3, at), rtol=2e-3, atol=1e-6)


def test_too_few_or_evenly_spread_margins_say_nothing() -> None:
    rising = np.sqrt((np.arange(40) + 1) / 40)
    assert right_below(rising, -0.3) is not None
    assert right_below(rising[:39], -0.3) is None
    assert right_below(np.concatenate([rising[:39], np.zeros(9)]), -0.3) is None
    even = (np.arange(4000) + 0.5) / 4000
    assert right_below(even, -0.3) is None
    # Two standard errors of the mean of the lowest quarter are the least that counts.
    for shift, is_able in ((1.9, False), (2.1, True)):
        mean = 0.5 + shift / math.sqrt(12 * 1000)
        margins = (4 * even) ** (1 / (mean / (1 - mean)))  # of a density x^(p-1), mean p / (p+1)
        assert (right_below(margins, -0.3) is not None) is is_able


def test_spread_is_that_of_the_lower_half() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 100.0])
    median, spread = centre_and_spread(values)
    assert median == 2.0
    assert spread == pytest.approx(1.0 / 0.6744897501960817)
    assert centre_and_spread(np.ones(5)) == (1.0, 1e-9)
    chances = chance_below(np.array([2.0, 2.0 - 1.959964 * spread]), median, spread)
    assert chances.tolist() == pytest.approx([0.5, 0.025], abs=1e-6)


def test_rows_of_noughts_stay() -> None:
    rows = unit_rows(np.array([[0.0, 0.0], [3.0, 4.0], [1e-13, 0.0]]))
    assert rows.dtype == np.float32
    assert rows[0].tolist() == [0.0, 0.0]
    assert rows[1].tolist() == pytest.approx([0.6, 0.8])
    assert rows[2].tolist() == pytest.approx([0.1, 0.0])


def test_similarities_to_small_centres_are_brought_up_to_those_of_large_ones() -> None:
    generator = np.random.default_rng(1)
    labels = np.repeat([0, 1, 2, 3], [6, 5, 2, 4]).astype(np.int64)
    centre = generator.normal(size=(4, 8))
    images = (centre[labels] + 0.6 * generator.normal(size=(17, 8))).astype(np.float32)
    found = trimmed_centres(images, labels)
    unit = images / np.linalg.norm(images, axis=1, keepdims=True)
    kept = found.kept
    assert [int(kept[labels == person].sum()) for person in range(4)] == [5, 4, 2, 4]
    assert found.count.tolist() == [5, 4, 2, 4]
    lengths = []
    for person in (0, 1, 3):  # those with four images and more that count
        rows = unit[(labels == person) & kept]
        count = len(rows)
        lengths.append(((rows.sum(0) ** 2).sum() / count - 1) / (count - 1))
    rho = float(np.median(lengths))
    for row, label in enumerate(labels):
        others = (labels == label) & kept
        others[row] = False
        mean = unit[others].sum(0)
        cosine = float(unit[row] @ mean / np.linalg.norm(mean))
        scale = math.sqrt((rho + (1 - rho) / others.sum()) / rho)
        assert found.own[row] == pytest.approx(min(cosine * scale, 1.0), abs=1e-5)
    none = trimmed_centres(images[:6], np.array([0, 0, 1, 1, 2, -1]))
    assert none.own[4:].tolist() == [0.0, 0.0]  # no other image, and nobody
    assert none.count.tolist() == [2, 2, 1]
    assert len(trimmed_centres(images[:0], labels[:0]).count) == 0


def made_centres(direction: Doubles, count: list[int]) -> Centres:
    rows = unit_rows(direction)
    return Centres(rows, np.array(count), np.zeros(0, np.float32), np.zeros(0, np.bool_))


def test_a_centre_of_one_image_is_nobody_unless_there_is_nobody_else() -> None:
    direction = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    image, label = np.array([[1.0, 0.05]], np.float32), np.array([0])
    _, other = nearest_others(image, label, made_centres(direction, [2, 1, 2]))
    assert other.tolist() == [2]
    _, other = nearest_others(image, label, made_centres(direction, [2, 1, 1]))
    assert other.tolist() == [1]
    with pytest.raises(ValueError, match="all images are of one person"):
        nearest_others(image, label, made_centres(direction, [3, 0, 0]))
    best, other = nearest_others(image, label, made_centres(direction, [2, 2, 2]), alike=[(1, 0)])
    assert other.tolist() == [2]
    assert best[0] == pytest.approx(0.05 / math.hypot(1.0, 0.05), abs=1e-6)


def test_the_similarity_from_which_on_an_image_is_at_home() -> None:
    own = np.linspace(0, 1, 101).astype(np.float32)
    at_home = mislabelled._own_person_similarity
    assert at_home(own, 0.0) == pytest.approx(0.02)
    assert at_home(own, 0.05) == pytest.approx(0.05)
    assert at_home(own, 0.5) == pytest.approx(0.1)
    assert at_home(own[:0], 0.5) == math.inf


@pytest.mark.parametrize(
    ("number", "places"),
    [(0, []), (1, [0]), (2, [0, 1]), (3, [0, 1]), (4, [0, 1, 2]), (8, [0, 2, 4])],
)
def test_examples_are_the_nearest_one_a_quarter_and_one_half_down(
    number: int, places: list[int]
) -> None:
    labels = np.array([0, 0] + [1] * number + [2, 2], np.int64)
    own = np.linspace(0.1, 0.9, len(labels)).astype(np.float32)
    sound = np.ones(len(labels), np.bool_)
    of = mislabelled._Examples(own, labels, sound).of(1)
    nearest_first = list(range(1 + number, 1, -1))
    assert list(of) == [nearest_first[place] for place in places]
    if number:
        sound[1 + number] = False  # the nearest is a suspect itself
        assert (1 + number) not in mislabelled._Examples(own, labels, sound).of(1)


def people_of(
    sizes: list[tuple[int, int]], *, apart: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """People whose images lie around two ends, so many at each; ends `apart` as tan of angles."""
    generator = np.random.default_rng(0)
    rows, labels = [], []
    for person, counts in enumerate(sizes):
        for end, count in enumerate(counts):
            direction = np.zeros(3 * len(sizes))
            direction[3 * person], direction[3 * person + 1 + end] = 1.0, apart
            rows.append(direction + 0.02 * generator.normal(size=(count, len(direction))))
            labels += [person] * count
    return np.concatenate(rows).astype(np.float32), np.array(labels, np.int64)


def test_a_label_of_two_people_is_found_from_three_images_of_each_on() -> None:
    plain = [(8, 0)] * 30
    for counts, is_found in (((5, 3), True), ((3, 3), True), ((6, 2), False), ((14, 3), False),
                             ((13, 3), False), ((12, 3), True)):  # fmt: skip
        images, labels = people_of([*plain, counts], apart=2.0)
        images[labels < 30, 2::3] = 0
        found = mislabelled.split_people(images, labels, false_alarms=0.1)
        assert (30 in [each.label for each in found]) is is_found, counts
        if is_found:
            (split,) = [each for each in found if each.label == 30]
            assert split.images == sum(counts)
            assert len(split.part) == min(counts)
            if counts[0] != counts[1]:
                assert split.part == tuple(range(240 + counts[0], 240 + sum(counts)))
            assert split.unity < 0.7


def test_people_who_are_alike_are_named_by_how_alike_they_are() -> None:
    directions = np.eye(40)
    directions[1, 0], directions[6, 5], directions[6, 6] = 2.0, 3.0, 1.0
    centres = made_centres(directions, [3] * 39 + [2])
    first, second = mislabelled.alike_people(centres, false_alarms=0.1)
    assert (first.first, first.second) == (5, 6)
    assert (second.first, second.second) == (0, 1)
    assert first.similarity == pytest.approx(3 / math.sqrt(10), abs=1e-6)
    assert second.similarity == pytest.approx(2 / math.sqrt(5), abs=1e-6)
    assert mislabelled.alike_people(made_centres(np.eye(4), [3, 3, 2, 2]), false_alarms=0.1) == ()


def test_three_people_in_two_parts_are_enough_to_compare() -> None:
    split = [mislabelled.SplitPerson(n, 6, (0, 1, 2), unity) for n, unity in enumerate((0.9, 0.9))]
    low = mislabelled.SplitPerson(2, 6, (0, 1, 2), 0.1)
    assert mislabelled._least_united([*split, low], 0.5) == (low,)
    assert mislabelled._least_united([split[0], low], 0.5) == ()
    # However much the others have in common, what has more than that is one person.
    high = mislabelled.SplitPerson(3, 6, (0, 1, 2), 0.7)
    assert mislabelled._least_united([*split, high], 0.5) == ()
