"""The doctor for training data: what a source holds, and what looks wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.source import BadImage
from sphereface2.datatools.inspect.duplicates import (
    NEAR_IDENTICAL,
    SAME_BYTES,
    DuplicateGroup,
    find_duplicates,
)
from sphereface2.datatools.inspect.faces import (
    SIDE,
    AlignmentCheck,
    ColourCheck,
    check_alignment,
    check_colours,
)
from sphereface2.datatools.inspect.image_facts import ImageFacts
from sphereface2.evaluation.mislabelled import MislabelledResult
from sphereface2.files import JsonResult, printable
from sphereface2.workers import Progress, unseen

KEPT = 200
"""How many people or groups a result names; the counts are of all."""


@dataclass(frozen=True)
class PeopleCount:
    """How many images the people have; bin i of the histogram is edges[i] to edges[i+1] - 1."""

    people: int
    fewest: int
    median: float
    most: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]
    single: int
    single_names: tuple[str, ...]
    unlabelled_images: int


@dataclass(frozen=True)
class SizeCount:
    """How many images have one width and height."""

    width: int
    height: int
    images: int


@dataclass(frozen=True)
class NamedGroup:
    """Copies of one image with the names of image and person; at most ten are named."""

    kind: str
    copies: int
    across_people: bool
    indices: tuple[int, ...]
    images: tuple[str, ...]
    people: tuple[str, ...]


@dataclass(frozen=True)
class DuplicateCount:
    """Copies: groups, images that could go, groups across people; the first groups by name."""

    kind: str
    groups: int
    surplus_images: int
    across_people: int
    named: tuple[NamedGroup, ...]


@dataclass(frozen=True)
class Inspection:
    """What an inspection without a model found; it round-trips through JSON."""

    path: str
    images: int
    readable: int
    people: PeopleCount
    unreadable: tuple[BadImage, ...]
    sizes: tuple[SizeCount, ...]
    other_sizes: int
    """Images of sizes that are not listed in `sizes`."""
    duplicates: tuple[DuplicateCount, ...]
    colour: ColourCheck
    alignment: AlignmentCheck
    notes: tuple[str, ...] = ()

    def copies(self, kind: str) -> DuplicateCount:
        return next(count for count in self.duplicates if count.kind == kind)


def inspect_images(
    source: EncodedImages, facts: ImageFacts, *, progress: Progress = unseen
) -> tuple[Inspection, tuple[DuplicateGroup, ...]]:
    """Sum up what `examine` found; also gives all groups of copies."""
    readable = facts.readable
    if not readable.any():
        first = facts.bad[0]
        raise ValueError(
            f"none of the {len(source):,} images of {printable(source.path)} can be read, the "
            f"first ({first.location}) because {first.reason}"
        )
    groups = find_duplicates(source, facts, progress=progress)
    sizes, other_sizes = _count_sizes(facts.size[readable])
    inspection = Inspection(
        path=printable(source.path),
        images=len(source),
        readable=int(readable.sum()),
        people=_count_people(source.labels[readable], source.people),
        unreadable=facts.bad,
        sizes=sizes,
        other_sizes=other_sizes,
        duplicates=tuple(
            _count_duplicates(source, kind, [group for group in groups if group.kind == kind])
            for kind in (SAME_BYTES, NEAR_IDENTICAL)
        ),
        colour=check_colours(facts.redness[readable], source.labels[readable], source.people),
        alignment=check_alignment(facts.average),
        notes=tuple(source.notes),
    )
    return inspection, groups


def aligned_size(inspection: Inspection) -> int:
    """How many images have the size of aligned crops, 112 × 112."""
    return sum(s.images for s in inspection.sizes if (s.width, s.height) == (SIDE, SIDE))


def _count_people(labels: NDArray[np.int64], names: list[str]) -> PeopleCount:
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    present = counts[counts > 0]
    single = np.flatnonzero(counts == 1)
    if not len(present):
        return PeopleCount(0, 0, 0.0, 0, (0, 1), (0,), 0, (), int((labels < 0).sum()))
    edges = _edges(int(present.min()), int(present.max()))
    return PeopleCount(
        people=len(present),
        fewest=int(present.min()),
        median=float(np.median(present)),
        most=int(present.max()),
        edges=tuple(edges.tolist()),
        counts=tuple(np.histogram(present, edges)[0].tolist()),
        single=len(single),
        single_names=tuple(names[label] for label in single[:KEPT]),
        unlabelled_images=int((labels < 0).sum()),
    )


def _edges(low: int, high: int) -> NDArray[np.int64]:
    """Some thirty whole numbers from `low` to beyond `high`; steps grow where the span is wide."""
    if high - low < 32:
        return np.arange(low, high + 2)
    if high < 20 * low:
        step = -(-(high + 1 - low) // 30)
        return np.arange(low, high + step + 1, step)
    return np.unique(np.rint(np.geomspace(low, high + 1, 31)).astype(np.int64))


def _count_sizes(sizes: NDArray[np.int32]) -> tuple[tuple[SizeCount, ...], int]:
    values, counts = np.unique(sizes, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:KEPT]
    listed = tuple(
        SizeCount(int(values[i, 0]), int(values[i, 1]), int(counts[i])) for i in order.tolist()
    )
    return listed, len(sizes) - sum(size.images for size in listed)


def _count_duplicates(
    source: EncodedImages, kind: str, groups: Iterable[DuplicateGroup]
) -> DuplicateCount:
    groups = list(groups)
    return DuplicateCount(
        kind=kind,
        groups=len(groups),
        surplus_images=sum(len(group.images) - 1 for group in groups),
        across_people=sum(group.across_people for group in groups),
        named=tuple(_named(source, group) for group in groups[:KEPT]),
    )


def _named(source: EncodedImages, group: DuplicateGroup) -> NamedGroup:
    shown = group.images[:10]
    return NamedGroup(
        kind=group.kind,
        copies=len(group.images),
        across_people=group.across_people,
        indices=shown,
        images=tuple(printable(source.name(index)) for index in shown),
        people=tuple(source.person(index) for index in shown),
    )


# The whole result of an inspection: of the data, and of the labels where a model was given.


@dataclass(frozen=True)
class Inspected(JsonResult):
    """What `sphereface2 inspect` found."""

    IS: ClassVar[str] = "the result of an inspection"
    WRITTEN_BY: ClassVar[str] = "sphereface2 inspect DATA"

    title: str
    data: Inspection
    model: str | None = None
    labels: MislabelledResult | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
