"""From photos to people of a gallery: which were taken, and why the others were not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import read_file
from sphereface2.galleries.gallery import Gallery, NewPhoto, knows
from sphereface2.progress import counted
from sphereface2.recognition.gate import NO_FACE, UNREADABLE, Gate, Quality, Reason
from sphereface2.recognition.photos import (
    FaceFinder,
    FoundFace,
    NoFaceError,
    Photo,
    as_array,
    photo_name,
)


@dataclass(frozen=True)
class PhotoOutcome:
    """One photo: its id in the gallery, or the reasons why it was left out.

    again: the very same photo of this person was there already, and is under `id`
    """

    photo: str
    id: str | None = None
    reasons: tuple[Reason, ...] = ()
    quality: Quality | None = None
    again: bool = False

    @property
    def accepted(self) -> bool:
        return self.id is not None

    def words(self) -> str:
        """What became of it, in a sentence."""
        if self.again:
            return f"{self.photo}: it is there already"
        if self.accepted:
            return f"{self.photo}: enrolled"
        said = "; ".join(each.words for each in self.reasons)
        return said if self.photo in said else f"{self.photo}: {said}"

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "photo": self.photo,
            "accepted": self.accepted,
            "again": self.again,
            "id": self.id,
            "reasons": [each.to_mapping() for each in self.reasons],
            "quality": None if self.quality is None else self.quality.to_mapping(),
        }


@dataclass(frozen=True)
class Enrolment:
    """What became of a person's photos; notes: what could not be checked."""

    person: str
    photos: tuple[PhotoOutcome, ...]
    gallery: str
    model: str
    notes: tuple[str, ...] = ()

    @property
    def added(self) -> int:
        return sum(each.accepted and not each.again for each in self.photos)

    @property
    def refused(self) -> list[PhotoOutcome]:
        return [each for each in self.photos if not each.accepted]

    def sentences(self) -> list[str]:
        """What was done in words: a summary, then each photo that was left out."""
        again = sum(each.again for each in self.photos)
        said = f"{self.person}: {counted(self.added, 'photo')} enrolled"
        said += f", {again} there already" if again else ""
        said += f", {len(self.refused)} left out" if self.refused else ""
        return [said, *(each.words() for each in self.refused), *self.notes]

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "person": self.person,
            "added": self.added,
            "photos": [each.to_mapping() for each in self.photos],
            "notes": list(self.notes),
            "gallery": self.gallery,
            "model": self.model,
        }


@dataclass(frozen=True)
class Looked:
    """Photos by their numbers: what is decided already, and the faces to compare."""

    outcomes: dict[int, PhotoOutcome]
    digests: dict[int, str]
    faces: dict[int, FoundFace]
    qualities: dict[int, Quality]


def look_at(
    photos: Sequence[Photo], finder: FaceFinder, gate: Gate, there: Mapping[str, str]
) -> Looked:
    """Find the face of each photo and judge it by itself; `there`: digests that are enrolled."""
    looked = Looked({}, {}, {}, {})
    for number, photo in enumerate(photos):
        name = photo_name(photo, number + 1)

        def refuse(
            *reasons: Reason, quality: Quality | None = None, number: int = number, name: str = name
        ) -> None:
            looked.outcomes[number] = PhotoOutcome(name, None, reasons, quality)

        try:
            digest = photo_digest(photo, name)
            if digest in there:
                looked.outcomes[number] = PhotoOutcome(name, there[digest], again=True)
                continue
            if digest in looked.digests.values():
                refuse(Reason("twice", "it is given twice"))
                continue
            looked.digests[number] = digest
            face = finder.find(photo, number=number + 1)
        except NoFaceError as error:
            refuse(Reason(NO_FACE, str(error)))
            continue
        except (ValueError, OSError) as error:
            refuse(Reason(UNREADABLE, str(error)))
            continue
        quality = Quality.of(face)
        if reasons := gate.look(quality):
            refuse(*reasons, quality=quality)
        else:
            looked.faces[number], looked.qualities[number] = face, quality
    return looked


def add_once(
    gallery: Gallery,
    person: str,
    photos: Sequence[NewPhoto],
    *,
    metadata: Mapping[str, Any] | None,
    key: str | None,
    own_key: str,
) -> list[str]:
    """Add photos; the same request made twice at once adds them once.

    key: the user's, which holds for ever; own_key: holds as long as the photos are there
    """
    if key is not None:
        return gallery.add(person, photos, metadata=metadata, key=key)
    ids = gallery.add(person, photos, metadata=metadata, key=own_key)
    if knows(gallery, person) and set(ids) <= {each.id for each in gallery.photos(person)}:
        return ids
    # The request was made before and its photos were removed since.
    return gallery.add(person, photos, metadata=metadata)


def photo_digest(photo: Photo, name: str) -> str:
    """Stands for a photo: the bytes of its file, or its pixels."""
    if isinstance(photo, str | Path):
        return hashlib.sha256(read_file(photo)).hexdigest()
    pixels = as_array(photo, name)
    return hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()


def request_key(person: str, digests: Sequence[str]) -> str:
    """The same for a repeated request: these photos for this person."""
    return hashlib.sha256("\n".join(["enroll", person, *digests]).encode()).hexdigest()


def as_png(crop: NDArray[np.uint8]) -> bytes:
    """An RGB crop as a gallery keeps it and as it travels."""
    return bytes(cv2.imencode(".png", crop[..., ::-1])[1].tobytes())
