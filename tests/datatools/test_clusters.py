"""Average linkage under constraints, against a loop that tries every pair of people."""

from fractions import Fraction

import numpy as np
import pytest

from benchmarks.clustering import judge_groups
from sphereface2.datatools.group.clusters import SCALE, Apart, Side, cluster, whole_rows
from sphereface2.models.embedder import Float32, unit_rows


def faces(seed: int, people: int = 6, each: int = 5, spread: float = 0.5) -> Float32:
    generator = np.random.default_rng(seed)
    centres = np.repeat(generator.normal(size=(people, 16)), each, axis=0)
    noise = spread * generator.normal(size=centres.shape)
    return unit_rows((centres + noise).astype(np.float32), source="test")


def free(count: int) -> Apart:
    return Apart(np.arange(count))


def naive(unit: Float32, threshold: float, apart: Apart, start: list[list[int]]) -> list[list[int]]:
    """Join the two people with the highest mean cosine, as long as it reaches the threshold."""
    rows = whole_rows(unit).astype(int).tolist()
    cosine = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in rows] for x in rows]
    held = {face for group in start for face in group}
    groups = [sorted(group) for group in start]
    groups += [[face] for face in range(len(rows)) if face not in held]
    while True:
        best: tuple[Fraction, int, int, int, int] | None = None
        groups.sort()
        for i, one in enumerate(groups):
            for j in range(i + 1, len(groups)):
                other = groups[j]
                if any(_apart(a, b, apart) for a in one for b in other):
                    continue
                total = sum(cosine[a][b] for a in one for b in other)
                mean = Fraction(total, len(one) * len(other) * SCALE**2)
                key = (mean, -one[0], -other[0], i, j)
                if mean >= Fraction(threshold) and (best is None or key > best):
                    best = key
        if best is None:
            return groups
        _, _, _, i, j = best
        groups[i] = sorted(groups[i] + groups.pop(j))


def _apart(a: int, b: int, apart: Apart) -> bool:
    names = (-1, -1) if apart.names is None else (apart.names[a], apart.names[b])
    sides = apart.sides.get(a, frozenset()), apart.sides.get(b, frozenset())
    return bool(
        apart.photos[a] == apart.photos[b]
        or (min(names) >= 0 and names[0] != names[1])
        or any((number, 1 - side) in sides[1] for number, side in sides[0])
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threshold", [0.2, 0.55, 0.8])
def test_people_are_those_of_the_loop(seed: int, threshold: float) -> None:
    unit = faces(seed)
    generator = np.random.default_rng(seed)
    sides: dict[int, frozenset[Side]] = {3: frozenset({(0, 0)}), 4: frozenset({(0, 1), (1, 0)})}
    sides[17] = frozenset({(1, 1)})
    apart = Apart(
        photos=generator.integers(0, 20, len(unit)),
        names=np.where(np.arange(len(unit)) % 7 == 0, np.arange(len(unit)) % 2, -1),
        sides=sides,
    )
    start = [[1, 2], [28, 5, 11]]
    apart.photos[[1, 2, 5, 11, 28]] = [30, 31, 32, 33, 34]
    assert cluster(unit, threshold, free(len(unit))) == naive(unit, threshold, free(len(unit)), [])
    assert cluster(unit, threshold, apart, start=start) == naive(unit, threshold, apart, start)


def test_equal_scores_join_in_the_order_of_the_rows() -> None:
    unit = faces(0, people=3, each=1)[[0, 0, 0, 1, 1, 2]]
    photos = Apart(np.array([0, 0, 1, 2, 2, 3]))
    assert cluster(unit, 0.9, photos) == naive(unit, 0.9, photos, [])
    assert cluster(unit, 0.9, photos) == [[0, 2], [1], [3], [4], [5]]


def test_one_look_alike_chains_nobody() -> None:
    generator = np.random.default_rng(0)
    one, other = np.linalg.qr(generator.normal(size=(16, 2)))[0].T
    crowd = [one + 0.1 * generator.normal(size=16) for _ in range(5)]
    crowd += [other + 0.1 * generator.normal(size=16) for _ in range(5)] + [one + other]
    unit = unit_rows(np.array(crowd, np.float32), source="test")
    assert float(unit[10] @ unit[0]) > 0.5 < float(unit[10] @ unit[5])  # connected, at 0.5
    found = cluster(unit, 0.5, free(11))
    assert sorted(map(len, found)) == [5, 6]


def test_faces_shuffled_and_in_other_company_give_the_same_people() -> None:
    unit = faces(3, people=40, each=4, spread=0.8)
    expected = cluster(unit, 0.45, free(len(unit)))
    assert 10 < len(expected) < 120
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(unit))
        found = cluster(unit[order], 0.45, free(len(unit)))
        back = sorted(sorted(order[group].tolist()) for group in found)
        assert back == expected


def test_few_neighbours_are_enough_for_many_faces() -> None:
    unit = faces(1, people=3, each=60, spread=0.4)
    people = np.repeat(np.arange(3), 60)
    found = cluster(unit, 0.5, free(len(unit)), neighbours=8)
    groups = np.empty(len(unit), int)
    for number, group in enumerate(found):
        groups[group] = number
    assert judge_groups(groups, people).bcubed.f1 > 0.99


def test_progress_and_nobody() -> None:
    seen: list[tuple[int, int]] = []
    cluster(faces(0), 0.5, free(30), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (30, 30)
    assert cluster(np.empty((0, 16), np.float32), 0.5, free(0)) == []
