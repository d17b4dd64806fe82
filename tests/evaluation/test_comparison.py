"""Comparisons on the same pairs: against scipy, against brute force, and under no difference."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from sphereface2.evaluation.comparison import (
    bootstrap_p_value,
    compare,
    compare_seeds,
    holm,
    mcnemar,
)
from sphereface2.evaluation.pair_scores import COMBINED, PairScores, load_scores, save_scores
from sphereface2.evaluation.verification import decided_right, measure


def scored(seed: int, *, noise: float, name: str = "plain", pairs: int = 600) -> PairScores:
    """The same pairs for every noise: a part that all models share, and a model's own."""
    shared = np.random.default_rng(seed)
    people = shared.integers(0, 60, (pairs, 2))
    same = np.arange(pairs) % 2 == 0
    people[same, 1] = people[same, 0]
    apart = ~same & (people[:, 0] == people[:, 1])
    people[apart, 1] = (people[apart, 1] + 1) % 60
    difficulty = 0.4 * shared.normal(size=pairs)
    own = np.random.default_rng((seed, round(1000 * noise))).normal(size=pairs)
    return PairScores(
        name=name,
        scores=np.tanh(same + difficulty + noise * own),
        pairs=np.stack([np.arange(pairs), np.arange(pairs) + pairs], axis=1),
        same=same,
        folds=np.arange(pairs) * 10 // pairs,
        sources=np.full(pairs, name),
        positions=np.arange(pairs),
        people=people.astype(np.int64),
        images=f"pictures of {name}",
    )


@pytest.mark.parametrize(
    ("first", "second"), [(0, 0), (1, 0), (0, 9), (5, 5), (6, 5), (3, 17), (400, 330), (9000, 9300)]
)
def test_mcnemar_is_the_exact_binomial_test(first: int, second: int) -> None:
    expected = 1.0
    if first + second:
        expected = binomtest(first, first + second, 0.5).pvalue
    assert mcnemar(first, second) == pytest.approx(expected, rel=1e-6)


def test_holm_against_its_definition() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_the_p_value_of_replicates_counts_the_rarer_side() -> None:
    differences = np.array([-1.0] * 4 + [0.0] + [1.0] * 94)
    assert bootstrap_p_value(differences) == pytest.approx(2 * 6 / 100)
    assert bootstrap_p_value(np.zeros(99)) == 1.0
    assert bootstrap_p_value(np.ones(99)) == pytest.approx(2 / 100)


def test_numbers_of_a_comparison_are_those_of_the_models() -> None:
    parts = {"first": [scored(0, noise=0.3)], "second": [scored(0, noise=0.8)]}
    comparison = compare(list(parts.items()), replicates=100)
    assert comparison.models == ("first", "second")
    assert comparison.sets == ("plain",)
    (found,) = comparison.comparisons
    results = [measure(sets[0], model=label, replicates=0) for label, sets in parts.items()]
    assert [result.accuracy for result in comparison.results] == [r.accuracy for r in results]
    names = [difference.measure for difference in found.differences]
    # 300 impostor pairs: one in a thousand is not resolved, and is not compared.
    assert names == ["accuracy", "EER", "AUC", "TAR@FAR 10%", "TAR@FAR 1%"]
    for difference, value in zip(
        found.differences, ("accuracy", "eer", "auc", None, None), strict=True
    ):
        assert difference.difference == difference.value - difference.baseline
        assert difference.interval.low <= difference.difference <= difference.interval.high
        if value is not None:
            pair = (difference.baseline, difference.value)
            assert pair == tuple(getattr(result, value) for result in results)
    right = [decided_right(sets[0]) for sets in parts.values()]
    assert found.only_model == sum(b and not a for a, b in zip(*right, strict=True))
    assert found.only_baseline == sum(a and not b for a, b in zip(*right, strict=True))
    assert found.mcnemar == mcnemar(found.only_model, found.only_baseline)
    assert found.accuracy.p_value >= found.mcnemar


def test_a_real_difference_is_resolved_and_said_so() -> None:
    models = [("good", [scored(0, noise=0.1)]), ("bad", [scored(0, noise=1.5)])]
    (found,) = compare(models, replicates=200).comparisons
    assert found.accuracy.is_resolved
    assert found.accuracy.interval.high < 0
    assert found.sentence.startswith("plain: bad is worse than good by ")
    assert "600 pairs of 60 people resolve that" in found.sentence
    (other,) = compare(models[::-1], replicates=200).comparisons
    assert "good is better than bad" in other.sentence
    assert other.accuracy.difference == -found.accuracy.difference


def test_no_difference_is_not_resolved() -> None:
    false_alarms = 0
    for seed in range(25):
        models = [
            ("one", [scored(seed, noise=0.5)]),
            ("other", [replace(scored(seed, noise=0.5), scores=scored(seed, noise=0.501).scores)]),
        ]
        (found,) = compare(models, replicates=60).comparisons
        false_alarms += found.accuracy.is_resolved
    assert false_alarms <= 4  # of 25 at 5 %: more in less than one case in a hundred
    same = [("one", [scored(0, noise=0.5)]), ("copy", [scored(0, noise=0.5)])]
    (equal,) = compare(same, replicates=50).comparisons
    assert (equal.only_model, equal.only_baseline, equal.mcnemar) == (0, 0, 1.0)
    assert (
        equal.sentence
        == "plain: copy and one are equally accurate on these 600 pairs of 60 people."
    )


def test_a_small_difference_is_called_unresolved() -> None:
    models = [("one", [scored(3, noise=0.5)]), ("other", [scored(3, noise=0.52)])]
    (found,) = compare(models, replicates=100).comparisons
    points = f"{abs(100 * found.accuracy.difference):.2f}".rstrip("0").rstrip(".")
    assert f"the difference of {points} point" in found.sentence
    assert "is not resolved by these 600 pairs of 60 people" in found.sentence


def test_several_models_are_corrected_and_several_sets_combined() -> None:
    models = [
        (
            f"m{n}",
            [
                scored(0, noise=noise),
                scored(1, noise=noise, name="cross-age"),
            ],
        )
        for n, noise in enumerate((0.3, 0.5, 0.7))
    ]
    comparison = compare(models, replicates=60)
    assert comparison.sets == ("plain", "cross-age", COMBINED)
    assert [row.model for row in comparison.results] == ["m0"] * 3 + ["m1"] * 3 + ["m2"] * 3
    assert len(comparison.comparisons) == 6
    for name in comparison.sets:
        rows = [each.accuracy for each in comparison.comparisons if each.set_name == name]
        assert [r.p_adjusted for r in rows] == holm([r.p_value for r in rows])
    assert comparison.comparisons[-1].people == 120


class TestRefused:
    def test_other_pairs(self) -> None:
        one, other = scored(0, noise=0.3), scored(0, noise=0.5)
        folds = replace(other, folds=other.folds[::-1].copy())
        with pytest.raises(ValueError, match=r"evaluated on different pairs of .*'plain'"):
            compare([("a", [one]), ("b", [folds])])
        with pytest.raises(ValueError, match="same pairs of the set 'plain' but on other images"):
            compare([("a", [one]), ("b", [replace(other, images="another")])])
        with pytest.raises(ValueError, match=r"different sets \(set 'more' is in one"):
            compare([("a", [one]), ("b", [other, replace(other, name="more")])])

    def test_one_model_or_one_name(self) -> None:
        with pytest.raises(ValueError, match="at least two models, got 1"):
            compare([("a", [scored(0, noise=0.3)])])
        with pytest.raises(ValueError, match="different names, got a, a"):
            compare([("a", [scored(0, noise=0.3)]), ("a", [scored(0, noise=0.5)])])


class TestScoresFile:
    def test_round_trip(self, tmp_path: Path) -> None:
        sets = [scored(0, noise=0.3), replace(scored(1, noise=0.3, name="ünknown"), people=None)]
        save_scores(tmp_path / "scores.npz", sets, model="net")
        model, again = load_scores(tmp_path / "scores.npz")
        assert model == "net"
        for one, other in zip(sets, again, strict=True):
            assert (one.name, one.images, one.digest) == (other.name, other.images, other.digest)
            for field in ("scores", "pairs", "same", "folds", "sources", "positions"):
                np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
        np.testing.assert_array_equal(sets[0].people, again[0].people)
        assert again[1].people is None
        assert [path.name for path in tmp_path.iterdir()] == ["scores.npz"]

    def test_a_missing_or_damaged_file_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "scores.npz"
        with pytest.raises(FileNotFoundError, match=r"holds no scores\.npz: evaluate the run"):
            load_scores(path)
        save_scores(path, [scored(0, noise=0.3)], model="net")
        whole = path.read_bytes()
        np.savez(path, other=np.zeros(3))
        foreign = path.read_bytes()
        for content in (b"", b"no zip", whole[: len(whole) // 2], foreign):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"scores\.npz is damaged .*evaluate the"):
                load_scores(path)

    def test_scores_that_are_not_finite_are_refused(self, tmp_path: Path) -> None:
        broken = scored(0, noise=0.3)
        broken.scores[[3, 5]] = np.nan
        save_scores(tmp_path / "scores.npz", [broken], model="net")
        with pytest.raises(ValueError, match=r"2 of 600 scores are not finite \(number 3, 5\)"):
            load_scores(tmp_path / "scores.npz")


def test_seeds_are_compared_by_their_means() -> None:
    ours = [scored(0, noise=noise) for noise in (0.1, 0.12)]
    theirs = [scored(0, noise=noise) for noise in (0.8, 0.82, 0.84)]
    found = compare_seeds([("ours", ours), ("theirs", theirs)], replicates=200)
    accuracy, *_, tar = found["theirs"]
    expected = [np.mean([measure(each, model="", replicates=0).accuracy for each in some])
                for some in (ours, theirs)]  # fmt: skip
    assert [accuracy.baseline, accuracy.value] == pytest.approx(expected)
    assert accuracy.difference < 0
    assert accuracy.is_resolved
    assert tar.measure == "TAR@FAR 1%"  # 300 impostor pairs resolve no less
    # With one seed each it is the bootstrap of `compare`.
    alone = compare_seeds([("ours", ours[:1]), ("theirs", theirs[:1])], replicates=200)
    usual = compare([("ours", ours[:1]), ("theirs", theirs[:1])], replicates=200)
    for one, other in zip(alone["theirs"], usual.comparisons[0].differences, strict=True):
        assert (one.measure, one.difference, one.interval) == (
            other.measure, other.difference, other.interval,
        )  # fmt: skip
    with pytest.raises(ValueError, match="theirs has no run"):
        compare_seeds([("ours", ours), ("theirs", [])])
    with pytest.raises(ValueError, match="different pairs"):
        compare_seeds([("ours", ours), ("theirs", [scored(1, noise=0.1, pairs=500)])])
