"""From photos to people of a gallery: which were taken, and why the others were not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sphereface2.data.sources.folder import find_images
from sphereface2.data.sources.image_file import read_file
from sphereface2.files import printable
from sphereface2.galleries.gallery import Gallery, NewPhoto, check_name, photos_of
from sphereface2.recognition.gate import NO_FACE, UNREADABLE, Gate, Quality, Reason
from sphereface2.recognition.photos import (
    FaceFinder,
    FoundFace,
    NoFaceError,
    Photo,
    as_array,
    photo_name,
)
from sphereface2.workers import counted


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
            "reasons": [asdict(each) for each in self.reasons],
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


@dataclass(eq=False)
class Looked:
    """A photo on its way into a gallery; outcome: what becomes of it, as soon as that is known."""

    photo: str
    digest: str = ""
    face: FoundFace | None = None
    quality: Quality | None = None
    outcome: PhotoOutcome | None = None

    def refuse(self, *reasons: Reason) -> None:
        self.outcome = PhotoOutcome(self.photo, None, reasons, self.quality)


def look_at(
    photos: Sequence[Photo], finder: FaceFinder, gate: Gate, there: Mapping[str, str]
) -> list[Looked]:
    """Find the face of each photo and judge it by itself; `there`: digests that are enrolled."""
    looked: list[Looked] = []
    for number, photo in enumerate(photos, start=1):
        each, before = Looked(photo_name(photo, number)), {other.digest for other in looked}
        looked.append(each)
        try:
            each.digest = _digest(photo, each.photo)
            if each.digest in there:
                each.outcome = PhotoOutcome(each.photo, there[each.digest], again=True)
            elif each.digest in before:
                each.refuse(Reason("twice", "it is given twice"))
            else:
                each.face = finder.find(photo, number=number)
                each.quality = Quality.of(each.face)
                if reasons := gate.look(each.quality):
                    each.refuse(*reasons)
        except NoFaceError as error:
            each.refuse(Reason(NO_FACE, str(error)))
        except (ValueError, OSError) as error:
            each.refuse(Reason(UNREADABLE, str(error)))
    return looked


def _digest(photo: Photo, name: str) -> str:
    """Stands for a photo: the bytes of its file, or its pixels."""
    if isinstance(photo, str | Path):
        return hashlib.sha256(read_file(photo)).hexdigest()
    pixels = as_array(photo, name)
    return hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()


def people_of(folder: Path) -> dict[str, list[Path]]:
    """The photos of each person, who is named by a folder; a ValueError if that is not the form."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {printable(folder)}")
    found = find_images(folder)
    people: dict[str, list[Path]] = {}
    # Kinds that are not read are photos, too: what became of each is said.
    for name in sorted([*found.names, *found.unread]):
        person, _, below = name.partition("/")
        if below:
            person = check_name(printable(person), f"the name of the folder {printable(person)}")
            people.setdefault(person, []).append(folder / name)
    if not people:
        raise ValueError(
            f"{printable(folder)} has no photos in folders; it should hold a folder for each "
            "person, with their photos in it"
        )
    return people


def add_once(
    gallery: Gallery,
    person: str,
    photos: Sequence[NewPhoto],
    *,
    metadata: Mapping[str, Any] | None,
    key: str | None,
    digests: Sequence[str],
) -> list[str]:
    """Add photos; the same request made twice at once adds them once.

    key: the user's, which holds forever; one of the digests holds as long as the photos are there
    """
    if key is not None:
        return gallery.add(person, photos, metadata=metadata, key=key)
    own = hashlib.sha256("\n".join(["enroll", person, *digests]).encode()).hexdigest()
    ids = gallery.add(person, photos, metadata=metadata, key=own)
    if set(ids) <= {each.id for each in photos_of(gallery, person)}:
        return ids
    # The request was made before and its photos were removed since.
    return gallery.add(person, photos, metadata=metadata)
