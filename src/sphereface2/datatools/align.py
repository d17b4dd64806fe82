"""A folder of photos to a folder of aligned crops: one face of each photo, resumable."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from sphereface2.data.sources.folder import find_images
from sphereface2.data.sources.image_file import IMAGE_SUFFIXES, encode, read_file, to_pixels
from sphereface2.datatools.photo_journal import UNUSABLE, PhotoJournal, each_photo, reason_of
from sphereface2.faces import DETECTORS
from sphereface2.faces.face import CHOICES, FIRST_LOOK, Detector, Face, align_face, find_faces
from sphereface2.files import csv_text, on_full_disk, printable, reach_disk, write_atomically
from sphereface2.registry import build, look_up
from sphereface2.workers import Progress, unseen

LARGEST_CROP = 1024


@dataclass(frozen=True)
class Aligned:
    """What an alignment has made, earlier runs into the same folder included."""

    target: Path
    photos: int
    aligned: int
    several_faces: int
    """Photos with more than one face, of which one was taken."""
    second_look: int
    """Photos whose face was found only on a second look."""
    without_face: int
    unreadable: int
    new: int
    """Photos that this run has looked at; the others were done."""
    seconds: float
    """How long this run took."""


def align_folder(
    source: Path,
    target: Path,
    *,
    detector: str = "mtcnn",
    options: Mapping[str, Any] | None = None,
    size: int = 112,
    choose: str = "prominent",
    image_format: str = "jpg",
    workers: int = 1,
    progress: Progress = unseen,
) -> Aligned:
    """Write the aligned face of every photo below `source` to the same place below `target`.

    `options` are those of the detector. Beside the crops, `target` gets faces.csv (a row for
    each face found: photo, crop, number of faces, whether it was taken, the look that found it,
    score, box, landmarks), no_face.txt and unreadable.txt (photo, reason). Photos that an earlier
    run with the same settings has finished are not looked at again, except those that it could not
    read.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    aligner = PhotoAligner(
        source, target, detector, dict(options or {}), size, choose, image_format
    )
    aligner.check()
    found = find_images(source)
    photos = found.names
    if not photos and not found.unread:
        raise ValueError(
            f"no photos in {printable(source)}: no file there begins as an image does or "
            f"ends in {', '.join(IMAGE_SUFFIXES)}"
        )
    start = time.perf_counter()
    full_disk = on_full_disk(target, kept="the crops that are there stay")
    with full_disk, AlignJournal(target, aligner.settings()) as journal:
        tasks = _tasks(photos, journal.outcomes, target, ending=image_format)
        done = len(photos) - len(tasks)
        progress(done, len(photos))
        results = each_photo(aligner, tasks, workers=workers, name=lambda task: task[0])
        with closing(results):
            for _, outcome in results:
                journal.add(outcome)
                done += 1
                progress(done, len(photos))
        for photo, reason in found.unread.items():
            if photo not in journal.outcomes:
                journal.add(Outcome(photo, reason=reason))
        reach_disk(target)
        outcomes = list(journal.outcomes.values())
        write_reports(target, outcomes)
    return Aligned(
        target=target,
        photos=len(outcomes),
        aligned=sum(outcome.crop is not None for outcome in outcomes),
        several_faces=sum(len(outcome.faces) > 1 for outcome in outcomes),
        second_look=sum(outcome.look != FIRST_LOOK for outcome in outcomes),
        without_face=sum(outcome.crop is None and outcome.reason is None for outcome in outcomes),
        unreadable=sum(outcome.reason is not None for outcome in outcomes),
        new=len(tasks) + len(found.unread),
        seconds=time.perf_counter() - start,
    )


def _tasks(
    photos: Sequence[str], known: Mapping[str, Outcome], target: Path, *, ending: str
) -> list[Task]:
    """The photos that are not finished, each with a name for its crop that no other has."""
    taken = {outcome.crop for outcome in known.values()}
    taken |= {str(folder) for photo in photos for folder in PurePosixPath(photo).parents}
    tasks = []
    for photo in photos:
        before = known.get(photo)
        if before is not None and _is_finished(before, target):
            continue
        crop = before.crop if before is not None else None
        if crop is None:
            crop = _free_name(photo, taken, ending)
            taken.add(crop)
        tasks.append((photo, crop))
    return tasks


def _is_finished(outcome: Outcome, target: Path) -> bool:
    """Whether there is nothing left to do: a reason may have gone, and a crop may be lost."""
    if outcome.reason is not None:
        return False
    if outcome.crop is None:
        return True
    try:
        return (target / outcome.crop).stat().st_size > 0
    except OSError:
        return False


def _free_name(photo: str, taken: set[str | None], ending: str) -> str:
    """The photo's name with the ending of the crops; a.jpg and a.png must not become one file."""
    numbered = (f"{photo}~{number}" for number in count(2))
    stems = chain([photo.removesuffix(PurePosixPath(photo).suffix), photo], numbered)
    return next(name for stem in stems if (name := f"{stem}.{ending}") not in taken)


# -- what became of each photo, written down one by one, so that a stopped alignment can resume ----

_POINTS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")
_COLUMNS = (
    ["photo", "crop", "faces", "taken", "look", "score", "left", "top", "right", "bottom"]
    + [f"{point}_{axis}" for point in _POINTS for axis in "xy"]
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one photo: a crop of the chosen face, no face, or a reason why not."""

    photo: str
    """Below the source, with / between the folders; so is `crop` below the target."""
    crop: str | None = None
    faces: tuple[Face, ...] = ()
    taken: int = 0
    """Which of the faces the crop shows."""
    look: str = FIRST_LOOK
    """The look that found the faces."""
    reason: str | None = None
    """Why the photo could not be read."""

    def to_line(self) -> dict[str, Any]:
        faces = [[face.box, face.landmarks.tolist(), face.score] for face in self.faces]
        return {**vars(self), "faces": faces}

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Outcome:
        faces = tuple(
            Face.of(np.array(box), np.array(landmarks, np.float64), score)
            for box, landmarks, score in line["faces"]
        )
        return cls(**{**line, "faces": faces})


class AlignJournal(PhotoJournal):
    """What became of each photo, and half-written crops."""

    COMMAND = "align"
    VERSION = 2
    NEWS = ", which finds and chooses faces differently"

    @property
    def remedy(self) -> str:
        return "remove it to align everything again"

    def take_up(self, lines: Sequence[Any]) -> None:
        outcomes = [Outcome.from_line(line) for line in lines]
        self.outcomes = {outcome.photo: outcome for outcome in outcomes}
        for half_written in self.folder.glob("*.part"):
            half_written.unlink()

    def add(self, outcome: Outcome) -> None:
        """Write down what became of a photo; what was known about it before counts no more."""
        self._lines.add(outcome.to_line())
        self.outcomes[outcome.photo] = outcome


def write_reports(target: Path, outcomes: Iterable[Outcome]) -> None:
    """faces.csv, no_face.txt and unreadable.txt of the target, in the order of the photos."""
    in_order = sorted(outcomes, key=lambda outcome: outcome.photo)
    rows: list[list[Any]] = []
    lists: dict[str, list[str]] = {"no_face.txt": [], "unreadable.txt": []}
    for each in in_order:
        for number, face in enumerate(each.faces):
            taken = number == each.taken
            places = [*face.box, *face.landmarks.ravel().tolist()]
            numbers = [f"{face.score:.4f}", *(f"{place:.2f}" for place in places)]
            found = [each.crop if taken else "", len(each.faces), int(taken), each.look]
            rows.append([each.photo, *found, *numbers])
        one_line = each.photo.replace("\n", "\\n").replace("\r", "\\r")
        if each.reason is not None:
            lists["unreadable.txt"].append(f"{one_line}\t{each.reason}\n")
        elif each.crop is None:
            lists["no_face.txt"].append(f"{one_line}\n")
    for name, lines in lists.items():
        write_atomically(target / name, "".join(lines))
    write_atomically(target / "faces.csv", csv_text(_COLUMNS, rows))


# -- one photo to one crop: what each worker process does ------------------------------------------

Task = tuple[str, str]
"""A photo below the source, and the name of its crop below the target."""

QUALITIES = {"jpg": 95, "png": None}


@dataclass(frozen=True)
class PhotoAligner:
    """Finds the face in a photo and writes its crop; a process builds its detector once."""

    source: Path
    target: Path
    detector: str
    options: dict[str, Any]
    size: int
    choose: str
    image_format: str

    def check(self) -> None:
        """Say what cannot be done before anything is written."""
        source, target = self.source, self.target
        if not source.is_dir():
            kind = "is not a folder" if source.exists() else "does not exist"
            raise FileNotFoundError(f"{printable(source)} {kind}; give the folder with the photos")
        if target.exists() and not target.is_dir():
            raise ValueError(f"{printable(target)} is not a folder; give a folder for the crops")
        inside = target.resolve()
        if source.resolve() in (inside, *inside.parents):
            raise ValueError(
                f"{printable(target)} lies in the folder of the photos, which would be aligned "
                "again with them; give a folder outside"
            )
        look_up("choice", CHOICES, self.choose)
        look_up("format", QUALITIES, self.image_format)
        if not 16 <= self.size <= LARGEST_CROP:
            raise ValueError(f"size must be from 16 to {LARGEST_CROP} pixels, got {self.size}")
        self._build_detector()

    def settings(self) -> dict[str, Any]:
        """What all crops of a folder have in common."""
        return {
            "source": str(self.source.resolve()),
            "detector": self.detector,
            "options": self.options,
            "size": self.size,
            "choose": self.choose,
            "format": self.image_format,
        }

    def _build_detector(self) -> Detector:
        return build("detector", DETECTORS, self.detector, **self.options)

    @cached_property
    def _detector(self) -> Detector:
        return self._build_detector()

    def __call__(self, task: Task) -> Outcome:
        """What becomes of a photo; an OSError if its crop cannot be written."""
        photo, crop = task
        detector = self._detector
        try:
            image = to_pixels(read_file(self.source / photo))
            faces, look = find_faces(detector, image, min_face=self.options.get("min_face"))
            if not faces:
                return Outcome(photo)
            height, width = image.shape[:2]
            face = look_up("choice", CHOICES, self.choose)(faces, width, height)
            aligned = align_face(image, face.landmarks, size=self.size)
        except UNUSABLE as error:
            return Outcome(photo, reason=reason_of(error))
        encoded = encode(aligned, f".{self.image_format}", quality=QUALITIES[self.image_format])
        place = self.target / crop
        partial = self.target / f".{AlignJournal.COMMAND}" / f"{os.getpid()}.part"
        try:
            write_atomically(place, encoded, by=partial, durable=False)
        except OSError as error:
            raise OSError(error.errno, error.strerror, printable(place)) from None
        return Outcome(photo, crop, tuple(faces), taken=faces.index(face), look=look)
