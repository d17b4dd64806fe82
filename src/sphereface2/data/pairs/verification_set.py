"""What verification is measured on: images, the pairs of them, and what is odd about a set."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import EncodedImages, people_file
from sphereface2.data.sources.image_file import decode, is_image_file, read_file
from sphereface2.data.sources.source import PreparedImages, Source, layer_of
from sphereface2.files import printable
from sphereface2.workers import Progress, first_of, unseen

FOLDS = 10
Missing = Literal["error", "skip"]
"""What an image that is not there or cannot be read is: a mistake, or left out with its pairs."""


@dataclass(frozen=True, eq=False)
class VerificationSet:
    """Pairs of images, each marked as one person or two and given to one of the folds."""

    name: str
    images: PreparedImages
    pairs: NDArray[np.int64]
    """(pairs, 2): two indices into ``images``."""
    same: NDArray[np.bool_]
    """(pairs,): whether both images show one person."""
    folds: NDArray[np.int64]
    """(pairs,): the fold of each pair, 0 to 9."""
    people: NDArray[np.int64] | None = None
    """(images,): who each image shows, where that is known."""
    names: Sequence[str] = ()
    """The names of the people that the images show, where they are known."""
    originals: NDArray[np.int64] | None = None
    """(images,): the first image with the same content, where that is known."""
    attributes: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    """Of each attribute, such as the age gap, its value for every pair in words, "" if unknown."""
    missing: Missing = "error"

    def __post_init__(self) -> None:
        pairs, images = len(self.pairs), len(self.images)
        wrong = ""
        if self.pairs.shape != (pairs, 2):
            wrong = f"pairs have shape {self.pairs.shape}, not (n, 2)"
        elif self.same.shape != (pairs,) or self.folds.shape != (pairs,):
            answers, folds = self.same.shape[0], self.folds.shape[0]
            wrong = f"{pairs} pairs, but {answers} answers and {folds} folds"
        elif pairs and (self.pairs.min() < 0 or self.pairs.max() >= images):
            wrong = f"a pair points outside the {images} images"
        elif self.people is not None and self.people.shape != (images,):
            wrong = f"{images} images, but {self.people.shape[0]} people given"
        for attribute, values in self.attributes.items():
            if values.shape != (pairs,):
                wrong = f"{pairs} pairs, but {len(values)} values of the attribute {attribute!r}"
        if wrong:
            raise ValueError(f"verification set {self.name!r}: {wrong}.")


@dataclass(frozen=True, eq=False)
class NamedPairs:
    """Pairs of images that are known by name and need not be there.

    images: the names, each once; pairs: (n, 2) numbers of them; same, folds: (n,)
    people, names: as those of `VerificationSet`; originals: never known, without the images
    """

    name: str
    images: Sequence[str]
    pairs: NDArray[np.int64]
    same: NDArray[np.bool_]
    folds: NDArray[np.int64]
    people: NDArray[np.int64] | None = None
    names: Sequence[str] = ()
    originals: ClassVar[None] = None


class PairFormat:
    """One way to keep pairs: called with the options of a config, it builds the sets.

    build: gives the sets; its keyword arguments are the options, its docstring explains them
    sniff: whether a file or folder is of this format; None for sets that are not in files
    read: the pairs of a list by the names of its images, which lie elsewhere and need not be
    there; None where the file holds the images itself
    draws: whether the pairs are drawn from labelled images, so that a file of it holds no pairs
    """

    def __init__(
        self,
        build: Callable[..., list[VerificationSet]],
        *,
        sniff: Callable[[Path], bool] | None = None,
        read: Callable[[Path], NamedPairs] | None = None,
        draws: bool = False,
    ) -> None:
        update_wrapper(self, build)  # with its signature and docstring, which the registry reads
        self._build = build
        self.sniff = sniff
        self.read = read
        self.draws = draws

    def __call__(self, **options: Any) -> list[VerificationSet]:
        return self._build(**options)


def by_ending(*endings: str, folders: bool = False) -> Callable[[Path], bool]:
    """A `sniff` for formats that are recognised by the ending of a file, or are any folder."""
    return lambda path: (
        (folders and path.is_dir()) or (path.is_file() and path.suffix.lower() in endings)
    )


def ten_folds(same: NDArray[np.bool_], where: object) -> NDArray[np.int64]:
    """The fold of each pair of a set that names no folds: ten blocks in order, as LFW's are.

    Where such a block would hold pairs of one kind only (all genuine pairs first, say), the
    genuine and the impostor pairs are cut into ten blocks each, so that every fold has both.
    `where` names the set in messages.
    """
    genuine, impostor = np.flatnonzero(same), np.flatnonzero(~same)
    if min(len(genuine), len(impostor)) < FOLDS:
        raise ValueError(
            f"{where} has {len(genuine)} genuine and {len(impostor)} impostor pairs; "
            f"{FOLDS} folds need at least {FOLDS} of each"
        )
    folds = _blocks(len(same))
    if any(len(np.unique(same[folds == fold])) < 2 for fold in range(FOLDS)):
        folds[genuine] = _blocks(len(genuine))
        folds[impostor] = _blocks(len(impostor))
    return folds


def _blocks(count: int) -> NDArray[np.int64]:
    """0 0 … 1 1 … 9 9: ten blocks whose sizes differ by one at most."""
    return np.arange(count, dtype=np.int64) * FOLDS // count


class StoredImages(ABC):
    """Images that are kept encoded, as those of every set in files are, and decoded when asked."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encoded(self, index: int, /) -> bytes:
        """The image as it is stored."""

    @abstractmethod
    def location(self, index: int, /) -> str:
        """The image's place, for messages."""

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        return decode(self.encoded(index), self.location(index))

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:  # noqa: B027
        """Nothing to do: images are decoded as they are asked for."""


class ImageFiles(StoredImages):
    """Image files by their paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def encoded(self, index: int, /) -> bytes:
        return read_file(self.paths[index])

    def location(self, index: int, /) -> str:
        return printable(self.paths[index])


def without_ending(name: str) -> str:
    """A name as lists have it that leave out .jpg or the like."""
    return name.rpartition(".")[0] if is_image_file(name) else name


# -- what is odd about a set -----------------------------------------------------------------------


def notes_on_pairs(each: VerificationSet | NamedPairs) -> list[str]:
    """Mistakes in a list of pairs that no accuracy shows, a sentence each; usually none."""
    images = np.arange(len(each.images)) if each.originals is None else each.originals
    pairs = np.sort(images[each.pairs], axis=1)
    notes = []
    with_itself = pairs[:, 0] == pairs[:, 1]
    if with_itself.any():
        notes.append(
            f"set {each.name}: an image is paired with itself {_where(with_itself)}, which any "
            "model gets right; take that out"
        )
    _, number = np.unique(pairs, axis=0, return_inverse=True)
    number = number.ravel()
    contradictory = _differs(number, each.same) & ~with_itself
    if contradictory.any():
        notes.append(
            f"set {each.name}: two images are called one person and two people "
            f"{_where(contradictory)}; correct the list"
        )
    repeated = _differs(number, each.folds) & ~with_itself & ~contradictory
    if repeated.any():
        notes.append(
            f"set {each.name}: two images are a pair of several folds {_where(repeated)}, so that "
            "thresholds are chosen on pairs that they are judged by; keep each pair once"
        )
    return notes


def notes_on_people(source: Source, sets: Sequence[VerificationSet]) -> list[str]:
    """Which sets verify people whom the training images show, by their images or their names."""
    trained = layer_of(source, EncodedImages)  # type: ignore[type-abstract]  # only asked for
    return [] if trained is None else _notes(trained.path, trained.names_of_people(), sets)


def notes_on_trained(path: Path, sets: Sequence[VerificationSet]) -> list[str]:
    """The same for training data at `path`, without opening them: by what is known at a glance."""
    names: list[str] = []
    try:
        if path.is_dir():
            names = [entry.name for entry in os.scandir(path) if entry.is_dir()]
        elif people_file(path).is_file():
            names = people_file(path).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        pass  # moved or closed to us: then nothing is known
    return _notes(path, names, sets)


def _notes(path: Path, people: Sequence[str], sets: Sequence[VerificationSet]) -> list[str]:
    names = {_comparable(name) for name in people} - {""}
    notes = []
    for each in sets:
        shared = _shared_images(path.resolve(), each)
        if shared:
            notes.append(
                f"set {each.name}: {shared:,} of its {len(each.images):,} images are training "
                "images, so its accuracy says nothing about new people; verify on others"
            )
            continue
        known = [name for name in each.names if _comparable(name) in names]
        if known:
            shown = first_of([printable(name) for name in known], shown=3)
            notes.append(
                f"set {each.name}: {len(known):,} of its {len(each.names):,} people have the names "
                f"of people trained on ({shown}); if they are the same, its accuracy says "
                "little about new people"
            )
    return notes


def _where(chosen: NDArray[np.bool_]) -> str:
    first, count = int(np.flatnonzero(chosen)[0]) + 1, int(chosen.sum())
    return f"in pair {first}" if count == 1 else f"in {count:,} pairs, first in pair {first}"


def _differs(
    group: NDArray[np.int64], values: NDArray[np.bool_] | NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether others of the same group have another value."""
    least = np.full(group.max(initial=0) + 1, np.iinfo(np.int64).max)
    most = np.full_like(least, -1)
    np.minimum.at(least, group, values.astype(np.int64))
    np.maximum.at(most, group, values.astype(np.int64))
    return np.asarray(least[group] != most[group])


def _shared_images(place: Path, each: VerificationSet) -> int:
    """How many images of a set are of the training data, as far as their paths show it."""
    drawn_from = getattr(each.images, "source", None)
    if isinstance(drawn_from, EncodedImages) and drawn_from.path.resolve() == place:
        return len(each.images)
    files: Sequence[Path] = getattr(each.images, "paths", ())
    if not place.is_dir():
        return 0
    return sum(file.resolve().is_relative_to(place) for file in files)


def _comparable(name: str) -> str:
    """A name as people spell it alike; nothing for a number, which means another in each list."""
    name = name.strip().casefold().replace(" ", "_")
    return "" if name.lstrip("-").isdigit() else name
