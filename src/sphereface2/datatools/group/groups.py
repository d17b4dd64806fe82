"""The people that were found, and what is written of them: tables, and folders of photos."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.datatools.group.clusters import SCALE, whole_rows
from sphereface2.datatools.group.people import PEOPLE, Journal, People, label
from sphereface2.datatools.group.store import FaceStore, StoredFace, read_crop
from sphereface2.files import csv_text, printable, remove, replacing, write_atomically
from sphereface2.models.embedder import Float32

FACES = "faces.csv"
FOLDERS = "people"
FOLDER_KINDS = ("link", "copy")
ONCE = "seen-once"
_COLUMNS = (
    "photo", "face", "left", "top", "right", "bottom", "person", "name", "score", "detector_score"
)  # fmt: skip
_BLOCK = 1 << 24  # scores at once


@dataclass(frozen=True)
class Threshold:
    """The mean cosine that the faces of a person reach, and where it is from, in words."""

    value: float
    words: str
    false_accepts: float | None = None


@dataclass(frozen=True)
class Person:
    """A person of a group of photos.

    faces: the most typical first; scores: the mean cosine of each with the others, in that order
    nearest: who is most like them and in no photo with them, with the mean cosine
    """

    number: int
    name: str
    faces: tuple[StoredFace, ...]
    scores: tuple[float, ...]
    nearest: tuple[int, float] | None = None

    @property
    def called(self) -> str:
        return self.name or label(self.number)

    @property
    def photos(self) -> list[str]:
        return sorted({face.photo for face in self.faces})

    @property
    def score(self) -> float | None:
        return float(np.mean(self.scores)) if self.scores else None


@dataclass(frozen=True)
class Groups:
    """Who is in a folder of photos; people with many faces first."""

    out: Path
    people: tuple[Person, ...]
    photos: int
    without_face: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...]
    gone: int
    """Photos that were there once: their faces are kept, but not shown."""
    threshold: Threshold
    said: tuple[str, ...] = ()
    """What this run has changed, in words."""

    def crop(self, face: StoredFace) -> bytes:
        """The JPEG of a face; empty if there is none."""
        return read_crop(self.out, face)

    @property
    def faces(self) -> int:
        return sum(len(person.faces) for person in self.people)

    @property
    def several(self) -> tuple[Person, ...]:
        """Those with more than one face."""
        return tuple(person for person in self.people if len(person.faces) > 1)

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values, without the faces, which faces.csv has."""
        return {
            "photos": self.photos,
            "faces": self.faces,
            "threshold": self.threshold.value,
            "false_accepts": self.threshold.false_accepts,
            "words": self.threshold.words,
            "said": list(self.said),
            "without_face": [printable(name) for name in self.without_face],
            "unreadable": [[printable(name), why] for name, why in self.unreadable],
            "gone": self.gone,
            "people": [_person_facts(person) for person in self.people],
        }


def present(store: FaceStore, journal: Journal) -> tuple[list[str], list[StoredFace]]:
    """The photos that are there now, and their faces."""
    last = journal.last_group()
    assert last is not None
    source, names = Path(last["source"]), sorted(store.photos)
    if source.is_dir():  # else saved embeddings, or a drive that is not mounted: what is known
        names = [name for name in names if (source / name).is_file()]
    return names, store.faces(names)


def publish(store: FaceStore, journal: Journal, said: Sequence[str]) -> Groups:
    """Write the tables, and the folders where they are wanted."""
    last = journal.last_group()
    assert last is not None
    names, faces = present(store, journal)
    photos = [store.photos[name] for name in names]
    groups = Groups(
        out=store.out,
        people=tuple(_people(faces, store.unit(faces), journal.people)),
        photos=len(photos),
        without_face=tuple(p.photo for p in photos if not p.faces and p.reason is None),
        unreadable=tuple((p.photo, p.reason) for p in photos if p.reason is not None),
        gone=len(store.photos) - len(names),
        threshold=Threshold(last["threshold"], last["words"], last["false_accepts"]),
        said=tuple(said),
    )
    write_atomically(store.out / FACES, _table(groups))
    facts = {"journal": len(journal.entries), **groups.to_mapping()}
    text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    if last["folders"] is not None:
        _write_folders(groups, Path(last["source"]), last["folders"])
    write_atomically(store.out / PEOPLE, text)
    return groups


def _people(faces: Sequence[StoredFace], unit: Float32, people: People) -> list[Person]:
    rows: dict[int, list[int]] = {}
    for row, face in enumerate(faces):
        if who := people.person.get(face.number, 0):
            rows.setdefault(who, []).append(row)
    whole = whole_rows(unit).astype(np.float64)
    found = []
    for who, theirs in rows.items():
        own = whole[theirs]
        scores = np.empty(0)
        if len(theirs) > 1:
            # The mean cosine with the others: the product with their sum.
            scores = (own @ own.sum(axis=0) - (own * own).sum(axis=1)) / (
                SCALE**2 * (len(theirs) - 1)
            )
            order = np.argsort(-scores, kind="stable").tolist()
            theirs, scores = [theirs[each] for each in order], scores[order]
        found.append(
            Person(
                number=who,
                name=people.names.get(who, ""),
                faces=tuple(faces[row] for row in theirs),
                scores=tuple(scores.tolist()),
            )
        )
    found.sort(key=lambda person: (-len(person.faces), person.number))
    return _with_nearest(found, whole, rows)


def _with_nearest(
    people: list[Person], whole: npt.NDArray[np.float64], rows: Mapping[int, Sequence[int]]
) -> list[Person]:
    """Those of several faces, each with who is most like them and may be the same person."""
    several = [person for person in people if len(person.faces) > 1]
    if len(several) < 2:
        return people
    means = np.stack([whole[rows[each.number]].mean(axis=0) for each in several])
    photos = [set(each.photos) for each in several]
    step = max(1, _BLOCK // len(several))
    nearest: dict[int, tuple[int, float]] = {}
    for first in range(0, len(several), step):
        scores = means[first : first + step] @ means.T / SCALE**2
        for index, line in enumerate(scores, start=first):
            line[index] = -np.inf
            for other in np.argsort(-line, kind="stable")[:8].tolist():
                both_named = several[index].name and several[other].name
                if other != index and not both_named and photos[index].isdisjoint(photos[other]):
                    nearest[several[index].number] = several[other].number, float(line[other])
                    break
    return [replace(each, nearest=nearest.get(each.number)) for each in people]


def _person_facts(person: Person) -> dict[str, Any]:
    near = person.nearest
    return {
        "person": label(person.number),
        "name": person.name,
        "faces": len(person.faces),
        "photos": len(person.photos),
        "score": None if person.score is None else round(person.score, 4),
        "nearest": None if near is None else label(near[0]),
        "nearest_score": None if near is None else round(near[1], 4),
    }


def _table(groups: Groups) -> str:
    rows: list[tuple[str | int, ...]] = []
    for person in groups.people:
        scores = [f"{score:.4f}" for score in person.scores] or [""]
        for face, score in zip(person.faces, scores, strict=True):
            box = ["", "", "", ""] if face.box is None else [f"{side:.1f}" for side in face.box]
            sure = "" if face.score is None else f"{face.score:.4f}"
            who = label(person.number), person.name
            rows.append((face.photo, face.number, *box, *who, score, sure))
    return csv_text(_COLUMNS, sorted(rows))


def _write_folders(groups: Groups, source: Path, kind: str) -> None:
    """PEOPLE/NAME/PHOTO for each person of several photos; one folder for those seen once."""
    place = groups.out / FOLDERS
    taken: set[str] = set()
    with replacing(place) as made:
        made.mkdir()
        for person in groups.people:
            folder = ONCE
            if len(person.faces) > 1:
                folder = _safe(person.called)
                if folder.lower() in taken or folder == ONCE:
                    folder = f"{folder} ({label(person.number)})"
                taken.add(folder.lower())
            (made / folder).mkdir(exist_ok=True)
            for photo in person.photos:
                name = made / folder / photo.replace("/", "__")
                if os.path.lexists(name):
                    continue
                if kind == "copy":
                    shutil.copyfile(source / photo, name)
                else:
                    name.symlink_to(source.resolve() / photo)
    for half_written in groups.out.glob(f".{FOLDERS}.*.part"):
        remove(half_written)


def _safe(name: str) -> str:
    """A name as that of a folder: nothing leads elsewhere, nothing is hidden."""
    plain = re.sub(r'[\\/:*?"<>|\x00-\x1f]', "_", name).strip(" .")
    return plain.encode("utf-8")[:120].decode("utf-8", "ignore") or "_"
