"""The doctor for training data: what a source holds, and what looks wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.source import BadImage
from sphereface2.datatools.inspect.faces import (
    SIDE,
    AlignmentCheck,
    ColourCheck,
    check_alignment,
    check_colours,
)
from sphereface2.datatools.inspect.images import (
    NEAR_IDENTICAL,
    SAME_BYTES,
    DuplicateGroup,
    ImageFacts,
    find_duplicates,
)
from sphereface2.evaluation.mislabelled import MislabelledResult
from sphereface2.files import JsonResult, printable
from sphereface2.workers import Progress, counted, unseen

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
    source: EncodedImages, kind: str, groups: Sequence[DuplicateGroup]
) -> DuplicateCount:
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


# -- what an inspection means in words: each finding with what to do about it ----------------------

GOOD, NOTE, SUSPICION, ERROR = "good", "note", "suspicion", "error"


@dataclass(frozen=True)
class Finding:
    """One thing that is right, to be known, suspected or wrong."""

    level: str
    subject: str
    text: str
    advice: str = ""


def findings(inspection: Inspection) -> tuple[Finding, ...]:
    """All that is to be said, in the order of the page."""
    return (
        _files(inspection),
        _people(inspection),
        _sizes(inspection),
        _colour(inspection),
        _alignment(inspection),
        _copies(inspection),
        *(Finding(NOTE, "Source", note) for note in inspection.notes),
    )


def _files(inspection: Inspection) -> Finding:
    bad = len(inspection.unreadable)
    if not bad:
        return Finding(GOOD, "Files", f"All {counted(inspection.images, 'image')} can be read.")
    text = f"{counted(bad, 'image')} of {inspection.images:,} cannot be read."
    advice = "Replace or remove the files in unreadable.txt, or train with data.on_bad_image=skip."
    return Finding(ERROR, "Files", text, advice)


def _people(inspection: Inspection) -> Finding:
    people = inspection.people
    text = f"{counted(people.people, 'person', 'people')} with "
    if people.fewest == people.most:
        text += f"{counted(people.most, 'image')} each."
    else:
        text += f"{people.fewest:,} to {people.most:,} images, half with {people.median:g} or more."
    if people.people < 2:
        advice = "A model needs at least two people: give the folder that holds a folder for each."
        return Finding(SUSPICION, "People", text, advice)
    if people.single:
        text += f" {counted(people.single, 'person has', 'people have')} one image only."
        advice = (
            "A person with one image teaches who they are not, but not how they vary; "
            "add images or leave them out."
        )
        return Finding(NOTE, "People", text, advice)
    return Finding(GOOD, "People", text)


def _sizes(inspection: Inspection) -> Finding:
    right = sum(s.images for s in inspection.sizes if (s.width, s.height) == (SIDE, SIDE))
    if right == inspection.readable:
        return Finding(GOOD, "Sizes", "All images are 112 × 112.")
    first = inspection.sizes[0]
    if first.images == inspection.readable and first.width == first.height:
        text = f"All images are {first.width} × {first.height}, not 112 × 112."
        return Finding(NOTE, "Sizes", text)
    square = sum(size.images for size in inspection.sizes if size.width == size.height)
    return Finding(
        NOTE if square + inspection.other_sizes == inspection.readable else SUSPICION,
        "Sizes",
        f"{inspection.readable - right:,} of {inspection.readable:,} images are not 112 × 112, "
        f"{inspection.readable - square - inspection.other_sizes:,} not square; most are "
        f"{first.width} × {first.height}.",
        "Pictures that are not square are squeezed in training; "
        "`sphereface2 align IN OUT` makes 112 × 112 crops of photos.",
    )


def _colour(inspection: Inspection) -> Finding:
    colour = inspection.colour
    are = "is" if colour.grey_images == 1 else "are"
    grey = f" {colour.grey_images:,} {are} grey." if colour.grey_images else ""
    text = (
        f"{colour.blue_images:,} of {counted(colour.colour_images, 'colour image')} "
        f"({colour.blue_share:.1%}) are bluer than red in the middle.{grey}"
    )
    if colour.verdict == "swapped":
        text += " Skin is never so blue: red and blue seem to be swapped (BGR saved as RGB)."
        advice = (
            "Find where the files were written and turn the channels there, e.g. cv2.imwrite wants "
            "BGR; a model trained on these is only good for faces of the same kind."
        )
        return Finding(SUSPICION, "Colour", text, advice)
    if colour.verdict == "partly swapped":
        named = ", ".join(colour.blue_people[:3])
        text += " A part of the data may have red and blue swapped"
        text += f", so with {named}." if named else "."
        advice = "Look at these images; in sound data less than one in a hundred is so."
        return Finding(SUSPICION, "Colour", text, advice)
    if colour.verdict == "not judged":
        return Finding(NOTE, "Colour", f"{text} That is too few to judge the order of channels.")
    return Finding(GOOD, "Colour", f"{text} Red and blue are in their places.")


def _alignment(inspection: Inspection) -> Finding:
    check = inspection.alignment
    if check.verdict == "not judged":
        return Finding(NOTE, "Alignment", f"{check.images} images are too few to judge it.")
    if check.verdict == "aligned":
        text = f"Eyes, nose and mouth are within {check.displacement:.1f} pixels of the template."
        return Finding(GOOD, "Alignment", text)
    advice = "Look at the average face, then align the original photos: `sphereface2 align IN OUT`."
    if check.verdict == "scattered":
        text = (
            "Eyes, noses and mouths lie at different places in different images (agreement "
            f"{check.agreement:.2f}; aligned faces have 0.3, profiles 0.16)."
        )
    elif check.verdict == "no face":
        text = (
            f"The average of the images does not look like an upright face (match {check.match:.2f}"
            "; aligned faces have 0.9)."
        )
    else:
        advice += " A model trained on these needs test images cropped in the same way."
        text = (
            f"The faces do not lie where the 112 × 112 template has them: {_displacement(check)}."
        )
    return Finding(SUSPICION, "Alignment", text, advice)


def _displacement(check: AlignmentCheck) -> str:
    parts = []
    if abs(check.right) >= 1.5:
        parts.append(
            f"{abs(check.right):.0f} pixels too far {'right' if check.right > 0 else 'left'}"
        )
    if abs(check.down) >= 1.5:
        parts.append(f"{abs(check.down):.0f} pixels too {'low' if check.down > 0 else 'high'}")
    if abs(check.scale - 1) >= 0.08:
        parts.append(f"{check.scale:.2f} times as large")
    if abs(check.turn) >= 4:
        parts.append(f"turned by {abs(check.turn):.0f}° {'left' if check.turn > 0 else 'right'}")
    return ", ".join(parts) or f"{check.displacement:.0f} pixels off"


def _copies(inspection: Inspection) -> Finding:
    same, near = inspection.copies(SAME_BYTES), inspection.copies(NEAR_IDENTICAL)
    across = same.across_people + near.across_people
    if not same.groups and not near.groups:
        return Finding(GOOD, "Copies", "No image is there twice.")
    text = (
        f"{counted(same.surplus_images, 'image')} the same as another to the byte, "
        f"{near.surplus_images:,} nearly so."
    )
    if across:
        groups = counted(across, "group of copies is", "groups of copies are")
        text += f" {groups} under several people"
        text += ": one label is wrong." if same.across_people else "."
        level = ERROR if same.across_people else SUSPICION
        advice = "See duplicates.csv; keep each image under one person."
        return Finding(level, "Copies", text, advice)
    return Finding(NOTE, "Copies", text, "They do little harm in training; see duplicates.csv.")
