"""What is odd about a verification set: its pairs, and people whom the training knows already."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.verification_set import NamedPairs, VerificationSet
from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.recordio import names_of_people, people_file
from sphereface2.data.sources.source import Source, layer_of
from sphereface2.files import printable

_SHOWN = 3


def notes_on_pairs(each: VerificationSet | NamedPairs) -> list[str]:
    """Mistakes in a list of pairs that no accuracy shows, a sentence each; usually none."""
    originals = each.originals if isinstance(each, VerificationSet) else None
    images = np.arange(len(each.images)) if originals is None else originals
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
    return [] if trained is None else _notes(trained.path, names_of_people(trained), sets)


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
            shown = ", ".join(printable(name) for name in known[:_SHOWN])
            more = ", ..." if len(known) > _SHOWN else ""
            notes.append(
                f"set {each.name}: {len(known):,} of its {len(each.names):,} people have the names "
                f"of people trained on ({shown}{more}); if they are the same, its accuracy says "
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
