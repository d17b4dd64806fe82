"""Pairwise and BCubed scores, against loops over pairs and over images."""

from itertools import combinations

import numpy as np
import pytest

from benchmarks.clustering import Agreement, judge_groups


def naive_pairwise(groups: list[int], people: list[int]) -> Agreement:
    pairs = list(combinations(range(len(groups)), 2))
    together = [(i, j) for i, j in pairs if groups[i] == groups[j]]
    belong = [(i, j) for i, j in pairs if people[i] == people[j]]
    right = len(set(together) & set(belong))
    return Agreement(
        right / len(together) if together else 1.0, right / len(belong) if belong else 1.0
    )


def naive_bcubed(groups: list[int], people: list[int]) -> Agreement:
    precision, recall = [], []
    for i in range(len(groups)):
        group = {j for j in range(len(groups)) if groups[j] == groups[i]}
        person = {j for j in range(len(groups)) if people[j] == people[i]}
        precision.append(len(group & person) / len(group))
        recall.append(len(group & person) / len(person))
    return Agreement(float(np.mean(precision)), float(np.mean(recall)))


@pytest.mark.parametrize("seed", range(8))
def test_scores_are_those_of_loops(seed: int) -> None:
    generator = np.random.default_rng(seed)
    groups = generator.integers(0, 1 + seed, size=40).tolist()
    people = generator.integers(0, 9, size=40).tolist()
    found = judge_groups(groups, people)
    for one, naive in ((found.pairwise, naive_pairwise), (found.bcubed, naive_bcubed)):
        expected = naive(groups, people)
        assert one.precision == pytest.approx(expected.precision, abs=1e-12)
        assert one.recall == pytest.approx(expected.recall, abs=1e-12)
        assert one.f1 == pytest.approx(expected.f1, abs=1e-12)


def test_the_ends() -> None:
    people = ["a", "a", "b", "b"]
    exact = judge_groups([7, 7, 3, 3], people)
    assert (exact.pairwise.f1, exact.bcubed.f1) == (1, 1)
    alone = judge_groups([1, 2, 3, 4], people)
    assert (alone.pairwise.precision, alone.pairwise.recall, alone.pairwise.f1) == (1, 0, 0)
    assert alone.bcubed == Agreement(1, 0.5)
    assert judge_groups([1, 1, 1, 1], people).bcubed == Agreement(0.5, 1)
    assert Agreement(0, 0).f1 == 0
    with pytest.raises(ValueError, match="two lists of one length"):
        judge_groups([1, 2], ["a"])
