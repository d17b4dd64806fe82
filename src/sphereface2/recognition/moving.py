"""People on their way: to another model, to plain files, from one name to another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sphereface2.data.sources.image_file import decode
from sphereface2.files import csv_text, replacing, require_writable
from sphereface2.galleries.gallery import Gallery, NewPhoto, photos_of
from sphereface2.recognition.photos import FoundFace
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.workers import Progress, counted, unseen

_MIGRATED = "migrated_from"  # the fact that names the photo in the gallery before


@dataclass(frozen=True)
class Migration:
    """What a migration has done.

    photos: how many are in the new gallery, of all runs; added: by this one
    without_crops: people with photos that could not be embedded again, and how many each
    negatives: faces kept as not somebody, which have no crops and stay behind
    """

    people: int
    photos: int
    added: int
    without_crops: dict[str, int]
    negatives: int
    source: str
    target: str

    def sentences(self) -> list[str]:
        """What was done, and what was left behind."""
        said = [
            f"{counted(self.photos, 'photo')} of {counted(self.people, 'person', 'people')} are in "
            f"{self.target}, counted after the work; {self.added:,} were added now"
        ]
        if self.without_crops:
            names = ", ".join(f"{name} ({count})" for name, count in self.without_crops.items())
            said.append(
                f"{counted(sum(self.without_crops.values()), 'photo')} stayed behind, because no "
                f"crop was kept: {names}; enrol these people again from their photos"
            )
        if self.negatives:
            said.append(
                f"{counted(self.negatives, 'face')} kept as 'not this person' or as a stranger "
                "stayed behind: their pictures are not kept; mark them again"
            )
        return said

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "words": self.sentences()}


def migrate(
    old: Gallery, new: Gallery, recognizer: Recognizer, *, progress: Progress = unseen
) -> Migration:
    """Embed all people of a gallery by another model, from the crops that were kept.

    Interrupted, it resumes: what is in the new gallery is not embedded again. The old one is not
    touched.
    """
    if new.model != recognizer.fingerprint:
        raise ValueError(f"the gallery {new.name} is not one of the model {recognizer.folder}")
    people = old.people()
    total = sum(person.photos for person in people)
    done = added = 0
    without: dict[str, int] = {}
    wanted: dict[str, int] = {}
    negatives = len(old.negatives(None))
    for person in people:
        negatives += len(old.negatives(person.name))
        there = {photo.facts.get(_MIGRATED) for photo in photos_of(new, person.name)}
        kept = old.photos(person.name)
        left = [(photo, old.crop(photo.id)) for photo in kept if photo.id not in there]
        fresh = [(photo, crop) for photo, crop in left if crop]
        if len(fresh) < len(left):
            without[person.name] = len(left) - len(fresh)
        if fresh:
            faces = [FoundFace(one.id, decode(crop, one.id), aligned=True) for one, crop in fresh]
            photos = [
                NewPhoto(row, crop, photo.source, {**photo.facts, _MIGRATED: photo.id})
                for (photo, crop), row in zip(fresh, recognizer.embed_faces(faces), strict=True)
            ]
            # In one step: a run that is killed has moved all of a person's photos or none.
            new.add(person.name, photos, metadata=person.metadata)
        added += len(fresh)
        done += len(kept)
        if more := len(kept) - without.get(person.name, 0):
            wanted[person.name] = more
        progress(done, total)
    for name, count in wanted.items():
        moved = [photo for photo in new.photos(name) if _MIGRATED in photo.facts]
        if len(moved) != count:
            raise ValueError(
                f"{name} has {len(moved)} migrated photos in {new.name}, {count} were expected; "
                "was it changed meanwhile? Run the same command again"
            )
    return Migration(
        len(wanted), sum(wanted.values()), added, without, negatives, old.name, new.name
    )


def merge(gallery: Gallery, person: str, into: str) -> int:
    """Give all photos of a person to another, and remove the first; how many they were."""
    person, into = gallery.person(person).name, gallery.person(into).name
    if person == into:
        raise ValueError(f"{person} cannot be merged with themselves")
    kept = gallery.photos(person)
    if kept:
        # Killed before the removal, the same command adds nothing twice.
        moved = hashlib.sha256("".join(photo.id for photo in kept).encode()).hexdigest()
        rows = gallery.embeddings([photo.id for photo in kept])
        gallery.add(
            into,
            [
                NewPhoto(row, gallery.crop(photo.id), photo.source, dict(photo.facts))
                for photo, row in zip(kept, rows, strict=True)
            ],
            key=f"merge {moved}",
        )
    for negative in gallery.negatives(person):
        gallery.add_negative(into, negative.embedding, source=negative.source)
    gallery.remove(person)
    return len(kept)


COLUMNS = ("photo", "person", "source", "added", "crop", "facts", "metadata")


def export(gallery: Gallery, folder: Path, *, progress: Progress = unseen) -> int:
    """Write embeddings.npz, people.csv and crops/ into a new folder; how many photos.

    `embeddings.npz` has the rows of `people.csv` in its order, and is read by `evaluation.
    embedding_files.read_embeddings`. No name of a person becomes the name of a file.
    """
    if folder.exists():
        raise ValueError(f"{folder} already exists; give a new folder")
    require_writable(folder)
    people = {person.name: person for person in gallery.people()}
    with replacing(folder) as made:
        (made / "crops").mkdir(parents=True)
        rows = []
        kept = gallery.photos()
        for number, photo in enumerate(kept):
            crop = gallery.crop(photo.id)
            name = f"crops/{number:06}.png" if crop else ""
            if crop:
                (made / name).write_bytes(crop)
            facts, metadata = (
                json.dumps(dict(each), ensure_ascii=False)
                for each in (photo.facts, people[photo.person].metadata)
            )
            rows.append([photo.id, photo.person, photo.source, photo.added, name, facts, metadata])
            progress(number + 1, len(kept))
        table = csv_text(COLUMNS, rows, end="\r\n")
        (made / "people.csv").write_text(table, encoding="utf-8", newline="")
        np.savez(
            made / "embeddings.npz",
            embeddings=gallery.embeddings([photo.id for photo in kept]),
            names=np.array([photo.id for photo in kept], dtype=np.str_),
            people=np.array([photo.person for photo in kept], dtype=np.str_),
            model=np.array(gallery.model),
        )
    return len(kept)
