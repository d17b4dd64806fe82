"""Likely label errors, from embeddings and labels: images far from their person, near another.

Every image is compared with the centre of its own person, made of the other images of that person
without the least typical ones, and with the centres of all other people. Suspects have a negative
margin (own less best other similarity). How many rightly labelled images have one as low is
estimated from the data for each of the two kinds of suspects, and as many are named as keep the
share of false alarms:

- nobody here: unlike its own person and unlike all others. Hard images (profile, blur, age) look
  like that, too, so they are counted: how right images thin out towards a margin of 0 is continued
  below it (`right_below`).
- belongs to another: as like another person as images are to their own. A right image that looks
  like two people is at least as often nearer to its own, so of those with a margin below -t no more
  are right than have one above t. A model that finds several such people for an image breaks this
  rule; then as many count as a normal scatter of all margins would have there, twice over. Hard
  images, which make that scatter heavier, are of the other kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.class_centres import (
    Centres,
    centre_and_spread,
    chance_below,
    nearest_others,
    right_below,
    trimmed_centres,
    unit_rows,
    within_false_alarms,
)
from sphereface2.workers import Progress, unseen

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

BELONGS = "belongs to another"
OUTLIER = "nobody here"

_LIKE_NONE = 97
"""This percentage of the right images is less similar to the nearest other person."""

_AT_HOME_TWICE = 0.1
"""If more right images than this share look like another person's, some look like several."""

_HEAVIER = 2.0
"""How many times as many right images as a normal scatter has may belong to another, it seems."""

_LEAST_ALIKE = 3  # images of a centre that is compared with others
_LEAST_PART = 3
_LEAST_SHARE = 0.2
_ROUNDS = 10
_UNITED = 0.7  # parts of one person are at least so alike, even if others' are more alike still

MIN_IMAGES = 3
"""A person with fewer images is not judged: of two that differ nobody can say which is wrong."""


@dataclass(frozen=True)
class Suspect:
    """An image whose label is likely wrong.

    own, other: similarity to its own person's centre and to the nearest other one's
    chance: that the label is right, of this image and those of its kind that are clearer, together
    examples, other_examples: typical images of its own and of the other person
    """

    index: int
    label: int
    kind: str
    own: float
    other: float
    other_label: int
    chance: float
    examples: tuple[int, ...] = ()
    other_examples: tuple[int, ...] = ()
    image: str = ""
    person: str = ""
    other_person: str = ""

    @property
    def score(self) -> float:
        """How much nearer the other person is; the higher, the more suspicious."""
        return self.other - self.own


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
    unity: similarity between the two parts over that within them, 1 if they do not differ
    """

    label: int
    images: int
    part: tuple[int, ...]
    unity: float
    person: str = ""


@dataclass(frozen=True)
class MarginHistogram:
    """How many judged images have which margin; bin i is edges[i] to edges[i+1]."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class MislabelledResult:
    """Suspects, the most suspicious first, and how they stand out from the rest.

    threshold: the largest margin of a suspect, or that which was asked for
    false_alarms: the share of the suspects whose label may be right after all
    confused: the share of judged images that are nearer to another person than to their own
    is_able: whether the model separates people well enough for images of nobody here to be named
    """

    images: int
    judged: int
    people: int
    false_alarms: float
    confused: float
    is_able: bool
    threshold: float | None
    suspects: tuple[Suspect, ...]
    alike: tuple[AlikePeople, ...]
    split: tuple[SplitPerson, ...]
    histogram: MarginHistogram

    def named(self, people: Sequence[str], image_name: Callable[[int], str]) -> "MislabelledResult":
        """The same with the names of images and people."""
        return replace(
            self,
            suspects=tuple(
                replace(
                    suspect,
                    image=image_name(suspect.index),
                    person=people[suspect.label],
                    other_person=people[suspect.other_label],
                )
                for suspect in self.suspects
            ),
            alike=tuple(
                replace(pair, first_person=people[pair.first], second_person=people[pair.second])
                for pair in self.alike
            ),
            split=tuple(replace(each, person=people[each.label]) for each in self.split),
        )


def find_mislabelled(
    embeddings: Floats,
    labels: Integers,
    *,
    false_alarms: float = 0.1,
    threshold: float | None = None,
    progress: Progress = unseen,
) -> MislabelledResult:
    """The likely label errors among images with these embeddings (N, D) and labels.

    As many are named as keep the expected share of right labels among them at `false_alarms`; a
    model that is too weak names none. `threshold` names all images with a smaller margin instead.
    Labels of -1 are left out. The embeddings may be a memory map; they are read in blocks, and no
    matrix of images × people is made.
    """
    labels = np.asarray(labels, np.int64)
    _check(embeddings, labels, false_alarms)
    centres = trimmed_centres(embeddings, labels)
    alike = alike_people(centres, false_alarms=false_alarms)
    other, other_label = nearest_others(
        embeddings,
        labels,
        centres,
        alike=[(pair.first, pair.second) for pair in alike],
        progress=progress,
    )
    size = np.bincount(labels[labels >= 0], minlength=len(centres.count))
    judged = (labels >= 0) & (size[np.maximum(labels, 0)] >= MIN_IMAGES)
    if not judged.any():
        raise ValueError(
            f"no person has {MIN_IMAGES} images or more, so no image can be compared with the "
            "others of its person"
        )
    margin = centres.own - other
    right = judged & (margin > 0)
    like_none = float(np.percentile(other[right], _LIKE_NONE)) if right.any() else 1.0
    at_home = other >= _own_person_similarity(centres.own[right], like_none)
    expected = right_below(margin[judged], -like_none)
    chance = np.ones(len(labels))
    for kind, has_twins in ((judged & at_home, True), (judged & ~at_home, False)):
        lower = np.flatnonzero(kind & (margin <= 0))
        lower = lower[np.argsort(margin[lower], kind="stable")]
        low = margin[lower].astype(np.float64)
        false = np.full(len(lower), np.inf) if expected is None else expected(low)
        if has_twins and expected is not None:
            scatter = chance_below(low, *centre_and_spread(margin[judged]))
            false = np.minimum(false, _HEAVIER * judged.sum() * scatter)
        if has_twins and np.count_nonzero(right & at_home) <= _AT_HOME_TWICE * right.sum():
            nearer = np.sort(margin[right & at_home])
            # One more than there are: so few suspects that one false alarm is too many stay out.
            false = np.minimum(false, 1 + len(nearer) - np.searchsorted(nearer, -low))
        share = false / np.arange(1, len(lower) + 1)
        # The share of the largest number of suspects that an image is among at its best.
        chance[lower] = np.minimum(np.minimum.accumulate(share[::-1])[::-1], 1)
    suspect = judged & (chance <= false_alarms if threshold is None else margin < threshold)
    sound = judged & ~suspect
    chosen = np.flatnonzero(suspect)
    examples = _Examples(centres.own, labels, sound)
    if threshold is None and len(chosen):
        threshold = float(margin[chosen].max())
    counts, edges = np.histogram(margin[judged], bins=60)
    return MislabelledResult(
        images=len(labels),
        judged=int(judged.sum()),
        people=int((size > 0).sum()),
        false_alarms=false_alarms,
        confused=float((margin[judged] < 0).mean()),
        is_able=expected is not None,
        threshold=threshold,
        suspects=tuple(
            Suspect(
                index=i,
                label=int(labels[i]),
                kind=BELONGS if at_home[i] else OUTLIER,
                own=float(centres.own[i]),
                other=float(other[i]),
                other_label=int(other_label[i]),
                chance=float(chance[i]),
                examples=examples.of(int(labels[i])),
                other_examples=examples.of(int(other_label[i])),
            )
            for i in chosen[np.argsort(margin[chosen], kind="stable")].tolist()
        ),
        alike=alike,
        split=split_people(embeddings, labels, false_alarms=false_alarms),
        histogram=MarginHistogram(tuple(edges.tolist()), tuple(counts.tolist())),
    )


def _own_person_similarity(own: Floats, like_none: float) -> float:
    """The similarity to a centre from which on an image looks like one of that person's.

    That of all but the least typical 2 % of the images with their own person, or up to a tenth of
    them if others' are as similar.
    """
    if not len(own):
        return np.inf
    least, low = np.percentile(own, [2, 10])
    return float(min(low, max(least, like_none)))


class _Examples:
    """Typical images of people: the nearest to the centre, one a quarter down, one halfway down."""

    def __init__(self, own: Floats, labels: Integers, sound: npt.NDArray[np.bool_]) -> None:
        candidates = np.flatnonzero(sound)
        order = np.lexsort((-own[candidates], labels[candidates]))
        self._images = candidates[order]
        self._labels = labels[self._images]

    def of(self, label: int) -> tuple[int, ...]:
        first, last = np.searchsorted(self._labels, [label, label + 1])
        number = int(last - first)
        places = sorted({0, number // 4, number // 2}) if number else []
        return tuple(int(self._images[first + place]) for place in places)


def _check(embeddings: Floats, labels: Integers, false_alarms: float) -> None:
    if embeddings.ndim != 2 or len(embeddings) != len(labels):
        raise ValueError(
            f"embeddings must have the shape (N, D) with N = {len(labels)} labels, got "
            f"{embeddings.shape}"
        )
    if not 0 < false_alarms < 1:
        raise ValueError(f"the share of false alarms must be between 0 and 1, got {false_alarms}")


# Whole people in doubt: two labels that look like one person, one label that looks like two.


def alike_people(centres: Centres, *, false_alarms: float) -> tuple[AlikePeople, ...]:
    """Pairs of people whose centres are nearer than those of two people are by chance."""
    known = np.flatnonzero(centres.count >= _LEAST_ALIKE)
    if len(known) < 3:
        return ()
    rows = replace(centres, direction=centres.direction[known], count=centres.count[known])
    similarity, other = nearest_others(rows.direction, np.arange(len(known)), rows)
    # High is what is sought, so the signs are turned.
    chances = chance_below(-similarity, *centre_and_spread(-similarity))
    pairs: dict[tuple[int, int], float] = {}
    for i in np.flatnonzero(within_false_alarms(chances, false_alarms)).tolist():
        first, second = sorted((int(known[i]), int(known[other[i]])))
        pairs[first, second] = float(similarity[i])
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
    chances = chance_below(values, *centre_and_spread(values))
    named = within_false_alarms(chances, false_alarms) & (values < _UNITED)
    chosen = [found[i] for i in np.flatnonzero(named).tolist()]
    return tuple(sorted(chosen, key=lambda each: (each.unity, each.label)))
