"""Whole people in doubt: two labels that look like one person, one label that looks like two."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.class_centres import (
    Centres,
    centre_and_spread,
    chance_below,
    nearest_others,
    unit_rows,
    within_false_alarms,
)

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_LEAST_ALIKE = 3  # images of a centre that is compared with others
_LEAST_PART = 3
_LEAST_SHARE = 0.2
_ROUNDS = 10
_UNITED = 0.7  # parts of one person are at least so alike, even if others' are more alike still


@dataclass(frozen=True)
class AlikePeople:
    """Two labels that look like one person; `similarity` is that of their centres."""

    first: int
    second: int
    similarity: float
    first_person: str = ""
    second_person: str = ""


@dataclass(frozen=True)
class SplitPerson:
    """A label that looks like two people.

    part: the images of the smaller of the two
    unity: similarity between the two parts over that within them, 1 if they cannot be told apart
    """

    label: int
    images: int
    part: tuple[int, ...]
    unity: float
    person: str = ""


def alike_people(centres: Centres, *, false_alarms: float) -> tuple[AlikePeople, ...]:
    """Pairs of people whose centres are nearer than those of two people are by chance."""
    known = np.flatnonzero(centres.count >= _LEAST_ALIKE)
    if len(known) < 3:
        return ()
    rows = Centres(
        direction=centres.direction[known],
        count=centres.count[known],
        own=np.zeros(len(known), np.float32),
        kept=np.ones(len(known), np.bool_),
    )
    similarity, other = nearest_others(rows.direction, np.arange(len(known)), rows)
    # High is what is sought, so the signs are turned.
    median, spread = centre_and_spread(-similarity)
    named = within_false_alarms(chance_below(-similarity, median, spread), false_alarms)
    pairs = {
        (min(int(known[i]), int(known[other[i]])), max(int(known[i]), int(known[other[i]]))): float(
            similarity[i]
        )
        for i in np.flatnonzero(named).tolist()
    }
    ranked = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    return tuple(AlikePeople(first, second, value) for (first, second), value in ranked)


def split_people(
    embeddings: Floats, labels: Integers, *, false_alarms: float
) -> tuple[SplitPerson, ...]:
    """People whose images fall into two parts that have less in common than parts of others."""
    found: list[SplitPerson] = []
    order = np.argsort(labels, kind="stable")
    for numbers in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        if len(numbers) < 2 * _LEAST_PART or labels[numbers[0]] < 0:
            continue
        images = unit_rows(embeddings[numbers])
        part = two_parts(images)
        smaller = min(int(part.sum()), int((~part).sum()))
        if smaller < max(_LEAST_PART, _LEAST_SHARE * len(numbers)):
            continue
        members = numbers[part if 2 * part.sum() <= len(part) else ~part]
        found.append(
            SplitPerson(
                label=int(labels[numbers[0]]),
                images=len(numbers),
                part=tuple(members.tolist()),
                unity=unity(images, part),
            )
        )
    return _least_united(found, false_alarms)


def two_parts(images: Floats) -> npt.NDArray[np.bool_]:
    """A cut of unit vectors in two by k-means on the sphere, begun along their longest axis."""
    spread = images - images.mean(axis=0)
    _, _, axes = np.linalg.svd(spread, full_matrices=False)
    part = np.asarray(spread @ axes[0] > 0)
    for _ in range(_ROUNDS):
        if part.all() or not part.any():
            break
        ends = unit_rows(np.stack((images[part].sum(axis=0), images[~part].sum(axis=0))))
        similarity = images @ ends.T
        moved = np.asarray(similarity[:, 0] > similarity[:, 1])
        if (moved == part).all():
            break
        part = moved
    return part


def unity(images: Floats, part: npt.NDArray[np.bool_]) -> float:
    """The mean similarity between two parts over the mean similarity of pairs within them."""
    one, two = images[part], images[~part]
    between = float(one.sum(axis=0) @ two.sum(axis=0)) / (len(one) * len(two))
    pairs, total = 0, 0.0
    for each in (one, two):
        pairs += len(each) * (len(each) - 1)
        total += float((each.sum(axis=0) ** 2).sum()) - len(each)
    within = total / pairs if pairs else 1.0
    return between / max(within, 1e-6)


def _least_united(found: Sequence[SplitPerson], false_alarms: float) -> tuple[SplitPerson, ...]:
    if len(found) < 3:
        return ()
    values = np.array([each.unity for each in found])
    median, spread = centre_and_spread(values)
    named = within_false_alarms(chance_below(values, median, spread), false_alarms)
    named &= values < _UNITED
    chosen = [found[i] for i in np.flatnonzero(named).tolist()]
    return tuple(sorted(chosen, key=lambda each: (each.unity, each.label)))
