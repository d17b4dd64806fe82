"""Verification pairs drawn from labelled images, those of people whom a training sets aside too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.verification_set import FOLDS, PairFormat, VerificationSet, by_ending
from sphereface2.data.sources import open_images
from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.source import (
    BadImage,
    DerivedSource,
    Faces,
    PreparedImages,
    Source,
    bad_images,
    exclude,
    notes_on,
)
from sphereface2.files import printable
from sphereface2.registry import DataPath

_TURNS = 2000  # of drawing impostor pairs, before a fold gets what was found
_IMAGES = 40  # of one person that genuine pairs are drawn from: 780 pairs are plenty


class _NamedFaces(Faces):
    source: EncodedImages

    def name(self, index: int, /) -> str:
        """The name of the image, by which saved embeddings know it."""
        return self.source.name(int(self.numbers[index]))


def drawn_pairs(
    *,
    path: DataPath,
    root: DataPath | None = None,
    pairs: int = 6000,
    impostors: int | None = None,
    half: Literal["first", "second"] | None = None,
    seed: int = 0,
    title: str | None = None,
) -> list[VerificationSet]:
    """Pairs of the people in a folder, list, .rec or .parquet; half of them are genuine.

    The people are shared out over ten folds (fewer, where there are fewer than twenty people), so
    that no person is both in a fold and in those its threshold is chosen on. Within a fold the
    genuine pairs are spread evenly over the people. Where a fold has too few images for its part
    of `pairs`, it gets what there is, as many impostor pairs as genuine ones. Images of nobody
    known (label -1) stay out.

    `impostors` is a number of impostor pairs of its own, for rates at a low FAR. `half` takes the
    first or the second half of the people: one to tune on, the other to report.
    """
    if impostors is not None and impostors < FOLDS:
        raise ValueError(f"drawn pairs: impostors must be at least {FOLDS}, got {impostors}")
    if pairs < 2 * FOLDS:
        raise ValueError(f"drawn pairs: pairs must be at least {2 * FOLDS}, got {pairs}")
    if seed < 0:
        raise ValueError(f"drawn pairs: seed must not be negative, got {seed}")
    source = open_images(Path(path), root=None if root is None else Path(root))
    name = printable(Path(path).stem) if title is None else title
    used = np.arange(len(source))
    if half is not None:
        is_late = source.labels >= (source.num_classes + 1) // 2
        used = np.flatnonzero(is_late == (half == "second"))
    drawn = draw_pairs(
        _NamedFaces(source, used),
        source.labels[used],
        name=name,
        where=path,
        pairs=pairs,
        impostors=impostors,
        seed=seed,
    )
    return [replace(drawn, names=source.names_of_people())]


def draw_pairs(
    images: PreparedImages,
    labels: NDArray[np.int64],
    *,
    name: str,
    where: str,
    pairs: int = 6000,
    impostors: int | None = None,
    seed: int = 0,
) -> VerificationSet:
    """As `drawn_pairs`, of images that are open; `where` names them in messages."""
    rng = np.random.default_rng(seed)
    by_person = _by_person(labels, rng)
    several = [images for images in by_person if len(images) > 1]
    if len(by_person) < 4 or len(several) < 2:
        raise ValueError(
            f"{where} has {len(by_person)} people, {len(several)} of them with more than one "
            "image; pairs can be drawn from four people, two of them with several images"
        )
    # Those with several images are dealt out first: every fold needs genuine pairs.
    folds = min(FOLDS, len(several), len(by_person) // 2)
    dealt = sorted(by_person, key=lambda images: len(images) < 2)
    chosen: list[NDArray[np.int64]] = []
    for fold in range(folds):
        members = dealt[fold::folds]
        genuine = _genuine(members, pairs // (2 * folds), rng)
        if impostors is None:
            others = _impostors(members, len(genuine), rng)
            genuine = genuine[: len(others)]
        else:
            others = _many_impostors(members, impostors // folds, rng)
        chosen += [genuine, others]
    counts = [len(each) for each in chosen]
    return VerificationSet(
        name=name,
        images=images,
        pairs=np.concatenate(chosen),
        same=np.repeat(np.tile([True, False], folds), counts),
        folds=np.repeat(np.arange(2 * folds, dtype=np.int64) // 2, counts),
        people=labels,
    )


def _by_person(labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The images of each person, people and images in random order."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    known = order[labels[order] >= 0]
    cuts = np.flatnonzero(np.diff(labels[known])) + 1
    people = np.split(known, cuts) if len(known) else []
    return [people[number] for number in rng.permutation(len(people))]


def _genuine(
    members: list[NDArray[np.int64]], wanted: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """One pair of everybody, then the second of everybody, and so on."""
    own = [rng.permutation(list(combinations(images[:_IMAGES], 2))) for images in members]
    turns = max(len(pairs) for pairs in own)
    found = [pairs[turn] for turn in range(turns) for pairs in own if turn < len(pairs)]
    return np.array(found[:wanted], np.int64).reshape(-1, 2)


def _impostors(
    members: list[NDArray[np.int64]], wanted: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Pairs of two people's images, each pair once, every couple of people as likely."""
    found: dict[tuple[int, int], None] = {}
    # A fold of two people with few images may not have as many pairs as are wanted.
    for _ in range(20 * wanted):
        one, other = rng.choice(len(members), 2, replace=False)
        left, right = rng.choice(members[one]), rng.choice(members[other])
        found.setdefault((int(min(left, right)), int(max(left, right))))
        if len(found) == wanted:
            break
    return np.array(list(found), np.int64).reshape(-1, 2)


def _many_impostors(
    members: list[NDArray[np.int64]], wanted: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """As `_impostors`, for numbers that a loop would be slow for; each image is as likely."""
    images = np.concatenate(members)
    counts = [len(own) for own in members]
    person = np.repeat(np.arange(len(members)), counts)
    possible = (len(images) ** 2 - sum(count**2 for count in counts)) // 2
    found = np.empty(0, np.int64)
    # A fold of few people may not have as many pairs as are wanted; where most images are of one
    # person, few draws are of two people, and many turns are needed.
    for turn in range(_TURNS):
        if turn >= 20 and len(found) == possible:  # not before: a seed gives the pairs it gave
            break
        left, right = rng.integers(len(images), size=(2, 2 * wanted))
        keep = (person[left] != person[right]) & (left < right)
        found = np.union1d(found, left[keep] * len(images) + right[keep])
        if len(found) >= wanted:
            break
    chosen = rng.permutation(found)[:wanted]
    couples: NDArray[np.int64] = images[np.stack(np.divmod(chosen, len(images)), axis=1)]
    return couples


DRAWN = PairFormat(
    drawn_pairs, sniff=by_ending(".rec", ".idx", ".parquet", folders=True), draws=True
)

# People set aside: a share of the training people whom the training never sees. Their pairs serve
# to choose the step to export, without a look at the sets that are reported.

SET_ASIDE = "set aside"
"""What the set of their pairs is called."""


class SetAside(DerivedSource):
    """A source without a share of its people, drawn by the seed; the others are renumbered.

    Images of no known person (label -1) stay in.
    """

    def __init__(self, source: Source, *, share: float, seed: int) -> None:
        people = source.num_classes
        count = round(share * people)
        # A third number, so that this choice is unrelated to the noise and to the order of images.
        drawn = np.random.default_rng([seed, 3]).permutation(people)[:count]
        images = np.bincount(source.labels[source.labels >= 0], minlength=people)
        several = int((images[drawn] > 1).sum())
        if count < 4 or several < 2 or people - count < 2:
            raise ValueError(
                f"evaluation.set_aside={share:g} takes {count} of {people} people, {several} of "
                "them with more than one image; pairs need at least four people, two of them with "
                "several images, and the training two more: set another share, or 0"
            )
        super().__init__(source)
        self._is_aside = np.zeros(people + 1, bool)  # the last one is nobody known, label -1
        self._is_aside[drawn] = True
        self._places = np.flatnonzero(~self._is_aside[source.labels])
        self._labels = np.full(people + 1, -1, np.int64)
        self._labels[np.flatnonzero(~self._is_aside[:people])] = np.arange(people - count)
        self.labels: NDArray[np.int64] = self._labels[source.labels[self._places]]
        self.num_classes = people - count
        self.seed = seed

    @property
    def bad(self) -> tuple[BadImage, ...]:
        found = bad_images(self.source)
        places = np.searchsorted(self._places, [each.index for each in found]).tolist()
        return tuple(
            replace(each, index=place)
            for each, place in zip(found, places, strict=True)
            if place < len(self) and self._places[place] == each.index
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the source has to say about its images, and who is left out."""
        count = self.source.num_classes - self.num_classes
        images = len(self.source) - len(self)
        aside = f"{count:,} people with {images:,} images are set aside, to choose the step by them"
        return (*notes_on(self.source), aside)

    def exclude(self, bad: Sequence[BadImage]) -> None:
        exclude(self.source, [replace(each, index=int(self._places[each.index])) for each in bad])

    def name(self, index: int, /) -> str:
        """The name of an image, where the source has names."""
        name = getattr(self.source, "name", None)
        return "" if name is None else str(name(int(self._places[index])))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        # Somebody who is set aside may stand in for a person without any readable image: that
        # image is passed over in its turn.
        for place in (*range(index, len(self)), *range(index)):
            image, label = self.source[int(self._places[place])]
            if not self._is_aside[label]:
                return image, int(self._labels[label])
        raise IndexError(f"image {index} of {len(self)}")

    def verification_set(self) -> VerificationSet:
        """Pairs of the people who are set aside, without images that are known to be bad."""
        is_used = self._is_aside[self.source.labels]
        is_used[[each.index for each in bad_images(self.source)]] = False
        places = np.flatnonzero(is_used)
        labels = self.source.labels[places]
        where = "what evaluation.set_aside leaves out"
        images = Faces(self.source, places)
        drawn = draw_pairs(images, labels, name=SET_ASIDE, where=where, seed=self.seed)
        # Images in no pair need not be embedded at every evaluation.
        used, pairs = np.unique(drawn.pairs, return_inverse=True)
        return replace(
            drawn,
            images=Faces(self.source, places[used]),
            pairs=pairs.reshape(-1, 2),
            people=labels[used],
        )
