"""A folder of photos to a folder of aligned crops: one face of each photo, resumable."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from sphereface2.data.sources.folder import find_images
from sphereface2.data.sources.image_file import IMAGE_SUFFIXES
from sphereface2.datatools.align.journal import AlignJournal, Outcome, write_reports
from sphereface2.datatools.align.photo import ENCODINGS, PhotoAligner, Task
from sphereface2.faces import CHOICES
from sphereface2.faces.detector import FIRST_LOOK
from sphereface2.files import on_full_disk, printable
from sphereface2.progress import Progress
from sphereface2.registry import look_up
from sphereface2.workers import LostWorkerError, in_processes, one_opencv_thread

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
    """Photos whose face was found at a second look only."""
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
    progress: Progress | None = None,
) -> Aligned:
    """Write the aligned face of every photo below `source` to the same place below `target`.

    `options` are those of the detector. Beside the crops, `target` gets faces.csv (a row for
    each face found: photo, crop, number of faces, whether it was taken, the look that found it,
    score, box, landmarks), no_face.txt and unreadable.txt (photo, reason). Photos that an earlier
    run with the same settings has finished are not looked at again, except those that it could not
    read.
    """
    _check(source, target, size=size, choose=choose, image_format=image_format, workers=workers)
    aligner = PhotoAligner(
        source, target, detector, dict(options or {}), size, choose, image_format
    )
    aligner.build_detector()  # what it lacks is said before anything is written
    found = find_images(source)
    photos = found.names
    if not photos and not found.unread:
        raise ValueError(
            f"no photos in {printable(source)}: no file there begins as an image does or "
            f"ends in {', '.join(IMAGE_SUFFIXES)}"
        )
    settings = {
        "source": str(source.resolve()),
        "detector": detector,
        "options": aligner.options,
        "size": size,
        "choose": choose,
        "format": image_format,
    }
    start = time.perf_counter()
    full_disk = on_full_disk(target, kept="the crops that are there stay")
    with full_disk, AlignJournal(target, settings) as journal:
        tasks = _tasks(photos, journal.outcomes, target, ending=image_format)
        done = len(photos) - len(tasks)
        if progress is not None:
            progress(done, len(photos))
        results = in_processes(
            aligner, tasks, workers=min(workers, len(tasks)), start=one_opencv_thread
        )
        try:
            with closing(results):
                for _, outcome in results:
                    journal.add(outcome)
                    done += 1
                    if progress is not None:
                        progress(done, len(photos))
        except LostWorkerError as error:
            photo, _ = cast(Task, error.task)
            raise OSError(
                f"a worker process died at the photo {printable(photo)}, perhaps for want "
                "of memory; run the same command with fewer --workers to resume"
            ) from None
        for photo, reason in found.unread.items():
            if photo not in journal.outcomes:
                journal.add(Outcome(photo, reason=reason))
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


def _check(
    source: Path, target: Path, *, size: int, choose: str, image_format: str, workers: int
) -> None:
    if not source.is_dir():
        kind = "is not a folder" if source.exists() else "does not exist"
        raise FileNotFoundError(f"{printable(source)} {kind}; give the folder with the photos")
    if target.exists() and not target.is_dir():
        raise ValueError(f"{printable(target)} is not a folder; give a folder for the crops")
    inside = target.resolve()
    if source.resolve() in (inside, *inside.parents):
        raise ValueError(
            f"{printable(target)} lies in the folder of the photos, which would be aligned again "
            "with them; give a folder outside"
        )
    look_up("choice", CHOICES, choose)
    look_up("format", ENCODINGS, image_format)
    if not 16 <= size <= LARGEST_CROP:
        raise ValueError(f"size must be from 16 to {LARGEST_CROP} pixels, got {size}")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")


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
    candidate = f"{photo.removesuffix(PurePosixPath(photo).suffix)}.{ending}"
    stem, number = photo, 2
    while candidate in taken:
        candidate = f"{stem}.{ending}"
        stem, number = f"{photo}~{number}", number + 1
    return candidate
