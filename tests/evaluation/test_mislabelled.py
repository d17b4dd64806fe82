"""Likely label errors, on made-up people whose errors are known."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sphereface2.evaluation import class_centres
from sphereface2.evaluation.class_centres import (
    centre_and_spread,
    chance_below,
    nearest_others,
    right_below,
    trimmed_centres,
    unit_rows,
    within_false_alarms,
)
from sphereface2.evaluation.mislabelled import BELONGS, OUTLIER, find_mislabelled, two_parts, unity

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


def crowd(
    people: int = 30, images: int = 12, dim: int = 24, scatter: float = 0.13, seed: int = 0
) -> tuple[Floats, Integers]:
    """Embeddings of people around centres of their own, of any length."""
    generator = np.random.default_rng(seed)
    centres = unit_rows(generator.normal(size=(people, dim)))
    labels = np.repeat(np.arange(people), images)
    noise = generator.normal(size=(len(labels), dim)) * scatter
    lengths = generator.uniform(0.5, 20, (len(labels), 1))
    return ((centres[labels] + noise) * lengths).astype(np.float32), labels


def naive_own(embeddings: Floats, labels: Integers, kept: npt.NDArray[np.bool_]) -> list[float]:
    """The cosine of each image with the sum of the kept others of its label."""
    unit = [row / np.linalg.norm(row) for row in embeddings.astype(np.float64)]
    found = []
    for i, label in enumerate(labels):
        others = [unit[j] for j in range(len(labels)) if labels[j] == label and kept[j] and j != i]
        centre = np.sum(others, axis=0)
        found.append(float(unit[i] @ centre / np.linalg.norm(centre)))
    return found


def test_own_similarity_is_that_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_centres, "_BLOCK", 7)
    embeddings, labels = crowd(people=5, images=9)
    order = np.random.default_rng(1).permutation(len(labels))
    embeddings, labels = embeddings[order], labels[order]
    centres = trimmed_centres(embeddings, labels)
    # The least typical ninth//5 = 1 image of each person does not count.
    kept = np.ones(len(labels), np.bool_)
    for _ in range(2):
        own = np.array(naive_own(embeddings, labels, kept))
        kept = np.ones(len(labels), np.bool_)
        for label in range(5):
            members = np.flatnonzero(labels == label)
            kept[members[np.argmin(own[members])]] = False
    np.testing.assert_array_equal(centres.kept, kept)
    own = np.array(naive_own(embeddings, labels, kept))
    # Scaled to a centre of very many images: by the length that chance adds to a mean of few.
    rho = np.median(
        [
            np.mean([a @ b for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j])
            for label in range(5)
            for rows in [unit_rows(embeddings[(labels == label) & kept]).astype(np.float64)]
        ]
    )
    others = 8 - kept
    scale = np.sqrt((rho + (1 - rho) / others) / rho)
    np.testing.assert_allclose(centres.own, np.minimum(own * scale, 1), atol=1e-5)
    assert centres.count.tolist() == [8] * 5


def test_nearest_other_is_that_of_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, labels = crowd(people=11, images=4)
    labels = labels.copy()
    labels[3] = -1
    centres = trimmed_centres(embeddings, labels)
    cosine = unit_rows(embeddings) @ centres.direction.T
    cosine[np.flatnonzero(labels >= 0), labels[labels >= 0]] = -2
    monkeypatch.setattr(class_centres, "_BLOCK", 5)
    monkeypatch.setattr(class_centres, "_CLASSES", 3)
    steps: list[tuple[int, int]] = []
    similarity, label = nearest_others(
        embeddings, labels, centres, progress=lambda done, total: steps.append((done, total))
    )
    np.testing.assert_allclose(similarity, cosine.max(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(label, cosine.argmax(axis=1))
    assert steps[-1] == (44, 44)


def test_benjamini_hochberg_against_the_definition() -> None:
    chances = np.random.default_rng(0).uniform(size=200) ** 3
    for share in (0.01, 0.1, 0.5):
        order = sorted(range(200), key=lambda i: chances[i])
        count = max(
            (k for k in range(1, 201) if chances[order[k - 1]] <= share * k / 200), default=0
        )
        assert set(np.flatnonzero(within_false_alarms(chances, share))) == set(order[:count])
    assert not within_false_alarms(np.ones(5), 0.1).any()


def test_centre_and_spread_of_normal_values() -> None:
    values = np.random.default_rng(0).normal(3, 2, 100_000)
    median, spread = centre_and_spread(values)
    assert [median, spread] == pytest.approx([3, 2], abs=0.05)
    assert chance_below(np.array([3.0, 3 - 1.96 * 2]), 3, 2) == pytest.approx(
        [0.5, 0.025], abs=1e-3
    )


def test_swapped_images_and_strangers_are_found() -> None:
    embeddings, labels = crowd()
    wrong = {5: 20, 100: 3, 200: 0}  # image: the label it gets
    true = {index: int(labels[index]) for index in wrong}
    given = labels.copy()
    for index, label in wrong.items():
        given[index] = label
    strangers = [50, 300]
    embeddings[strangers] = np.random.default_rng(9).normal(size=(2, 24))
    result = find_mislabelled(embeddings, given, false_alarms=0.01)
    found = {suspect.index: suspect for suspect in result.suspects}
    assert set(found) == {*wrong, *strangers}
    assert all(found[index].kind == BELONGS for index in wrong)
    assert all(found[index].other_label == true[index] for index in wrong)
    assert all(found[index].kind == OUTLIER for index in strangers)
    scores = [suspect.score for suspect in result.suspects]
    assert scores == sorted(scores, reverse=True)
    for suspect in result.suspects:
        assert suspect.index not in suspect.examples
        assert all(given[index] == suspect.label for index in suspect.examples)
        assert all(given[index] == suspect.other_label for index in suspect.other_examples)


def test_clean_labels_have_few_suspects_and_a_weak_model_names_none() -> None:
    embeddings, labels = crowd(people=60)
    clean = find_mislabelled(embeddings, labels, false_alarms=0.05)
    assert len(clean.suspects) <= 5
    assert clean.confused < 0.02
    noise = np.random.default_rng(0).normal(size=embeddings.shape).astype(np.float32)
    weak = find_mislabelled(noise, labels, false_alarms=0.05)
    assert len(weak.suspects) <= 5
    assert weak.confused > 0.5


def test_what_is_most_like_its_own_person_is_never_suspected() -> None:
    embeddings, labels = crowd(people=40, images=20, scatter=0.2)
    given = labels.copy()
    wrong = np.random.default_rng(3).choice(len(labels), 160, replace=False)
    given[wrong] = (given[wrong] + 7) % 40
    result = find_mislabelled(embeddings, given, false_alarms=0.3)
    assert len(result.suspects) > 80
    assert all(suspect.own <= suspect.other for suspect in result.suspects)


def test_a_threshold_of_the_users_own() -> None:
    embeddings, labels = crowd(scatter=0.2)
    result = find_mislabelled(embeddings, labels, threshold=0.1)
    assert result.suspects
    assert all(suspect.own - suspect.other < 0.1 for suspect in result.suspects)
    assert find_mislabelled(embeddings, labels, threshold=-1.5).suspects == ()
    assert result.threshold == 0.1


def test_people_with_two_images_are_not_judged() -> None:
    embeddings, labels = crowd(people=8, images=6)
    labels = labels.copy()
    labels[labels == 7] = [7, 7, -1, -1, -1, -1]
    embeddings[42] = -embeddings[42]  # the first of the two
    result = find_mislabelled(embeddings, labels, threshold=3)
    assert result.judged == 42
    assert {suspect.index for suspect in result.suspects} == set(range(42))


def test_one_person_under_two_labels_and_two_under_one() -> None:
    embeddings, labels = crowd(people=40, images=12)
    given = labels.copy()
    given[(labels == 4) & (np.arange(len(labels)) % 2 == 0)] = 40  # half of person 4
    given[labels == 31] = 30  # two people in one
    result = find_mislabelled(embeddings, given)
    assert [(pair.first, pair.second) for pair in result.alike] == [(4, 40)]
    assert [(each.label, each.images, len(each.part)) for each in result.split] == [(30, 24, 12)]
    assert len(set(labels[list(result.split[0].part)])) == 1


def test_unity_is_that_of_all_pairs() -> None:
    embeddings, labels = crowd(people=2, images=6, scatter=0.3)
    unit = unit_rows(embeddings)
    part = labels == 0
    within: list[float] = []
    between: list[float] = []
    for i in range(12):
        for j in range(12):
            if i != j:
                (within if part[i] == part[j] else between).append(float(unit[i] @ unit[j]))
    assert unity(unit, part) == pytest.approx(np.mean(between) / np.mean(within), rel=1e-4)
    found = two_parts(unit)
    assert (found == part).all() or (found == ~part).all()


def test_names() -> None:
    embeddings, labels = crowd()
    labels = labels.copy()
    labels[0] = 9
    result = find_mislabelled(embeddings, labels, false_alarms=0.001).named(
        [f"p{label}" for label in range(30)], lambda index: f"{index}.jpg"
    )
    suspect = result.suspects[0]
    assert (suspect.image, suspect.person, suspect.other_person) == ("0.jpg", "p9", "p0")


def test_mistakes() -> None:
    embeddings, labels = crowd(people=3, images=4)
    with pytest.raises(ValueError, match="all images are of one person"):
        find_mislabelled(embeddings, np.zeros_like(labels))
    with pytest.raises(ValueError, match="no person has 3 images"):
        find_mislabelled(embeddings, np.arange(12) // 2)
    with pytest.raises(ValueError, match="12 labels"):
        find_mislabelled(embeddings[:5], labels)
    with pytest.raises(ValueError, match="between 0 and 1"):
        find_mislabelled(embeddings, labels, false_alarms=1.5)


# -- whether the stated share of false alarms holds, on people whose errors are known --------------

HARD: dict[str, dict[str, Any]] = {
    "easy": {},
    "heavy tails": {"heavy": True},
    "hard images": {"hard": 0.05},
    "blurred beyond recognition": {"hard": 0.1, "least": 0.0},
    "few images": {"hard": 0.05, "few": True},
    "two looks": {"two_looks": 0.5},
    "two unlike looks": {"two_looks": 0.5, "unlike": True},
}


def gallery(
    generator: np.random.Generator,
    *,
    scatter: float,
    hard: float = 0.0,
    least: float = 0.2,
    few: bool = False,
    heavy: bool = False,
    two_looks: float = 0.0,
    unlike: bool = False,
) -> tuple[Floats, Integers]:
    """People of two sexes; some images have less of their person in them, some another look."""
    people, dim = 150, 64
    sex = generator.normal(size=(2, dim))[generator.integers(0, 2, people)]
    centres = unit_rows(generator.normal(size=(people, dim)) + 0.7 * sex)
    labels = np.repeat(np.arange(people), generator.integers(*(3, 7) if few else (8, 20), people))
    count = len(labels)
    other_look = unit_rows(generator.normal(size=(people, dim)))
    mixed = unit_rows((0.35 if unlike else 0.6) * (centres - other_look) + other_look)
    turned = (generator.random(people) < two_looks)[labels] & (generator.random(count) < 0.3)
    faces = np.where(turned[:, None], mixed[labels], centres[labels])
    share = np.where(generator.random(count) < hard, generator.uniform(least, 0.8, count), 1)
    noise = generator.normal(size=(count, dim)) * scatter
    if heavy:  # Student's t with four degrees of freedom
        noise /= np.sqrt(generator.chisquare(4, count) / 4)[:, None]
    return (faces * share[:, None] + noise).astype(np.float32), labels


def spoiled(
    generator: np.random.Generator, embeddings: Floats, labels: Integers, rate: float
) -> tuple[Floats, Integers, Integers, Integers]:
    """Half of the wrong labels are exchanged, half are under images of strangers: which."""
    wrong = generator.choice(len(labels), round(rate * len(labels)), replace=False)
    exchanged, strangers = wrong[::2], wrong[1::2]
    people = int(labels.max()) + 1
    given = labels.copy()
    given[exchanged] = (labels[exchanged] + generator.integers(1, people, len(exchanged))) % people
    changed = embeddings.copy()
    new = unit_rows(generator.normal(size=(len(strangers), embeddings.shape[1])))
    changed[strangers] = new + 0.08 * generator.normal(size=new.shape)
    return changed, given, exchanged, strangers


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("rate", [0.0, 0.02, 0.1])
def test_the_share_of_false_alarms_holds(case: str, rate: float) -> None:
    false = named = found = exchanged_in_all = 0
    for seed in range(3):
        generator = np.random.default_rng(seed)
        images = gallery(generator, scatter=0.08, **HARD[case])
        embeddings, labels, exchanged, strangers = spoiled(generator, *images, rate)
        result = find_mislabelled(embeddings, labels, false_alarms=0.1)
        suspects = {suspect.index for suspect in result.suspects}
        false += len(suspects - {*exchanged.tolist(), *strangers.tolist()})
        named += len(suspects)
        found += len(suspects & set(exchanged.tolist()))
        exchanged_in_all += len(exchanged)
    assert false <= 0.1 * named + 3
    if case == "easy":
        assert found == exchanged_in_all
    if case != "few images":  # so few that ten suspects of a kind may not be there
        assert found >= 0.85 * exchanged_in_all


@pytest.mark.parametrize("scatter", [0.16, 0.3, 0.6])
def test_a_weaker_model_names_fewer_not_worse(scatter: float) -> None:
    for case in ("easy", "heavy tails", "hard images"):
        generator = np.random.default_rng(0)
        images = gallery(generator, scatter=scatter, **HARD[case])
        embeddings, labels, exchanged, strangers = spoiled(generator, *images, 0.04)
        result = find_mislabelled(embeddings, labels, false_alarms=0.1)
        wrong = {*exchanged.tolist(), *strangers.tolist()}
        named = {suspect.index for suspect in result.suspects}
        assert len(named - wrong) <= 0.1 * len(named)
        if scatter < 0.2:
            assert len(named & set(exchanged.tolist())) >= 0.35 * len(exchanged)
        if scatter > 0.5:
            assert not result.is_able
            assert not named


def test_strangers_are_named_where_no_image_is_hard() -> None:
    generator = np.random.default_rng(0)
    images = gallery(generator, scatter=0.08)
    embeddings, labels, _, strangers = spoiled(generator, *images, 0.04)
    found = {s.index: s for s in find_mislabelled(embeddings, labels, false_alarms=0.1).suspects}
    missed = set(strangers.tolist()) - set(found)
    assert len(missed) <= 1
    assert all(found[index].kind == OUTLIER for index in set(strangers.tolist()) - missed)


def test_the_chance_of_a_suspect_is_the_share_that_names_it() -> None:
    generator = np.random.default_rng(0)
    embeddings, labels, *_ = spoiled(generator, *gallery(generator, scatter=0.08, hard=0.05), 0.1)
    for share in (0.01, 0.1, 0.5):
        named = find_mislabelled(embeddings, labels, false_alarms=share).suspects
        assert named
        assert max(suspect.chance for suspect in named) <= share
    assert len(named) > len(find_mislabelled(embeddings, labels, false_alarms=0.1).suspects)


def test_one_person_under_two_labels_is_not_suspected_image_by_image() -> None:
    embeddings, labels = crowd(people=40, images=12)
    given = labels.copy()
    given[(labels == 4) & (np.arange(len(labels)) % 2 == 0)] = 40
    result = find_mislabelled(embeddings, given)
    assert [(pair.first, pair.second) for pair in result.alike] == [(4, 40)]
    assert not {suspect.label for suspect in result.suspects} & {4, 40}
    centres = trimmed_centres(embeddings, given)
    _, nearest = nearest_others(embeddings, given, centres, alike=[(4, 40)])
    assert not np.isin(nearest[np.isin(given, [4, 40])], [4, 40]).any()


def test_right_below_continues_an_exponential_and_counts_hard_images() -> None:
    generator = np.random.default_rng(0)
    # Margins whose density grows as exp(x / 0.05): a share of exp(-x / 0.05) lies x below the top.
    margins = 0.3 - generator.exponential(0.05, 100_000)
    expected = right_below(margins, -0.5)
    assert expected is not None
    for value in (0.0, -0.05):
        assert expected(np.array([value]))[0] == pytest.approx((margins < value).sum(), rel=0.1)
    hard = generator.uniform(-0.5, 0.2, 7_000)  # 1,000 on every tenth
    mixed = right_below(np.concatenate([margins, hard]), -0.5)
    assert mixed is not None
    assert mixed(np.array([-0.1]))[0] == pytest.approx(4_000, rel=0.25)  # so many are there
    assert right_below(generator.normal(-0.1, 0.2, 10_000), -0.5) is None
    assert right_below(margins[:30], -0.5) is None
