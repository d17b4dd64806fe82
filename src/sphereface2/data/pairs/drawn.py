"""Verification pairs drawn from labelled images: for users who have people, but no pair list."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.verification_set import FOLDS, PairFormat, VerificationSet
from sphereface2.data.sources import open_images
from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.recordio import names_of_people
from sphereface2.data.sources.source import Faces, PreparedImages
from sphereface2.registry import DataPath

_SUFFIXES = (".rec", ".idx", ".parquet")
_IMAGES = 40  # of one person that genuine pairs are drawn from: 780 pairs are plenty


class _NamedFaces(Faces):
    source: EncodedImages

    def name(self, index: int, /) -> str:
        """The name of the image, by which saved embeddings know it."""
        return self.source.name(index)


def drawn_pairs(
    *,
    path: DataPath,
    root: DataPath | None = None,
    pairs: int = 6000,
    seed: int = 0,
    title: str | None = None,
) -> list[VerificationSet]:
    """Pairs of the people in a folder, list, .rec or .parquet; half of them are genuine.

    The people are shared out over ten folds (fewer, where there are fewer than twenty people), so
    that no person is both in a fold and in those its threshold is chosen on. Within a fold the
    genuine pairs are spread evenly over the people. Where a fold has too few images for its part
    of `pairs`, it gets what there is, as many impostor pairs as genuine ones. Images of nobody
    known (label -1) stay out.
    """
    if pairs < 2 * FOLDS:
        raise ValueError(f"drawn pairs: pairs must be at least {2 * FOLDS}, got {pairs}")
    if seed < 0:
        raise ValueError(f"drawn pairs: seed must not be negative, got {seed}")
    source = open_images(Path(path), root=None if root is None else Path(root))
    name = Path(path).stem if title is None else title
    drawn = draw_pairs(
        _NamedFaces(source), source.labels, name=name, where=path, pairs=pairs, seed=seed
    )
    return [replace(drawn, names=names_of_people(source))]


def draw_pairs(
    images: PreparedImages,
    labels: NDArray[np.int64],
    *,
    name: str,
    where: str,
    pairs: int = 6000,
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
    genuine: list[int] = []
    for fold in range(folds):
        members = dealt[fold::folds]
        wanted = pairs // (2 * folds)
        same = _genuine(members, wanted, rng)
        different = _impostors(members, len(same), rng)
        chosen += [same[: len(different)], different]
        genuine.append(len(different))
    counts = np.array(genuine)
    return VerificationSet(
        name=name,
        images=images,
        pairs=np.concatenate(chosen),
        same=np.concatenate([np.repeat([True, False], count) for count in genuine]),
        folds=np.repeat(np.arange(folds, dtype=np.int64), 2 * counts),
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


def _sniff(path: Path) -> bool:
    """Whether labelled images are there, of which pairs can be drawn."""
    return path.is_dir() or (path.is_file() and path.suffix.lower() in _SUFFIXES)


DRAWN = PairFormat(drawn_pairs, sniff=_sniff)
