"""Likely label errors, from embeddings and labels: images far from their person, near another.

Every image is compared with the centre of its own person, made of the other images of that person
without the least typical ones, and with the centres of all other people. The margin (own less best
other similarity) of correctly labelled images scatters around its median; how far an image lies
below it is turned into a chance, and as many suspects are named as keep the expected share of false
alarms (Benjamini and Hochberg 1995).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.class_centres import nearest_others, trimmed_centres
from sphereface2.evaluation.doubtful_people import (
    AlikePeople,
    SplitPerson,
    alike_people,
    split_people,
)
from sphereface2.evaluation.outlying import centre_and_spread, chance_below, within_false_alarms

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

BELONGS = "belongs to another"
OUTLIER = "nobody here"

MIN_IMAGES = 3
"""A person with fewer images is not judged: of two that differ nobody can say which is wrong."""


@dataclass(frozen=True)
class Suspect:
    """An image whose label is likely wrong.

    own, other: similarity to its own person's centre and to the nearest other one's
    chance: that a correctly labelled image lies as low, by the scatter of all margins
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
class MarginHistogram:
    """How many judged images have which margin; bin i is edges[i] to edges[i+1]."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class MislabelledResult:
    """Suspects, the most suspicious first, and how they were told from the rest.

    threshold: images with a margin below it are suspects; None if there is no suspect
    median, spread: of the margins; the spread is that of the lower half, as a standard deviation
    false_alarms: the share of the suspects that would be right if margins scattered normally
    confused: the share of judged images that are nearer to another person than to their own
    """

    images: int
    judged: int
    people: int
    false_alarms: float
    confused: float
    threshold: float | None
    median: float
    spread: float
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
    progress: Progress | None = None,
) -> MislabelledResult:
    """The likely label errors among images with these embeddings (N, D) and labels.

    `false_alarms` is the share of the suspects that would be right after all if margins scattered
    normally; hard images come on top. `threshold` sets a margin instead. Labels of -1 are left
    out. The embeddings may be a memory map; they are read in blocks, and no matrix of images ×
    people is made.
    """
    labels = np.asarray(labels, np.int64)
    _check(embeddings, labels, false_alarms)
    centres = trimmed_centres(embeddings, labels)
    other, other_label = nearest_others(embeddings, labels, centres, progress=progress)
    size = np.bincount(labels[labels >= 0], minlength=len(centres.count))
    judged = (labels >= 0) & (size[np.maximum(labels, 0)] >= MIN_IMAGES)
    if not judged.any():
        raise ValueError(
            f"no person has {MIN_IMAGES} images or more, so no image can be compared with the "
            "others of its person"
        )
    margin = centres.own - other
    median, spread = centre_and_spread(margin[judged])
    chance = np.ones(len(labels))
    chance[judged] = chance_below(margin[judged], median, spread)
    suspect = np.zeros(len(labels), np.bool_)
    if threshold is None:
        suspect[judged] = within_false_alarms(chance[judged], false_alarms)
    else:
        suspect[judged] = margin[judged] < threshold
    sound = judged & ~suspect
    # At home with another person: as similar as all but the least typical images of a person.
    typical = float(np.percentile(centres.own[sound], 10)) if sound.any() else np.inf
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
        threshold=threshold,
        median=median,
        spread=spread,
        suspects=tuple(
            Suspect(
                index=i,
                label=int(labels[i]),
                kind=BELONGS if other[i] >= typical else OUTLIER,
                own=float(centres.own[i]),
                other=float(other[i]),
                other_label=int(other_label[i]),
                chance=float(chance[i]),
                examples=examples.of(int(labels[i])),
                other_examples=examples.of(int(other_label[i])),
            )
            for i in chosen[np.argsort(margin[chosen], kind="stable")].tolist()
        ),
        alike=alike_people(centres, false_alarms=false_alarms),
        split=split_people(embeddings, labels, false_alarms=false_alarms),
        histogram=MarginHistogram(tuple(edges.tolist()), tuple(counts.tolist())),
    )


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
