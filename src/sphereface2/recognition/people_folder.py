"""A folder with a folder for each person, enrolled photo by photo; it can be interrupted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sphereface2.data.sources.folder import find_images
from sphereface2.files import printable
from sphereface2.galleries.gallery import Gallery, check_name
from sphereface2.progress import Progress
from sphereface2.recognition.enrolment import Enrolment
from sphereface2.recognition.gate import Gate
from sphereface2.recognition.recognizer import Recognizer


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


def enroll_folder(
    recognizer: Recognizer,
    people: Mapping[str, Sequence[Path]],
    gallery: Gallery,
    *,
    gate: Gate | None = None,
    keep_crops: bool = True,
    progress: Progress | None = None,
) -> list[Enrolment]:
    """Enrol everybody; photos that an earlier, interrupted run has added are passed over."""
    total = sum(len(photos) for photos in people.values())
    done: list[Enrolment] = []
    count = 0
    for person, photos in people.items():
        done.append(
            recognizer.enroll(person, list(photos), gallery, gate=gate, keep_crops=keep_crops)
        )
        count += len(photos)
        if progress is not None:
            progress(count, total)
    return done
