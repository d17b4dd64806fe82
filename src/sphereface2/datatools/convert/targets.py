"""The forms that images are written in, each able to resume what an earlier run has begun."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sphereface2.data.sources.encoded import EncodedImages, people_file
from sphereface2.data.sources.folder import NamedFiles
from sphereface2.data.sources.parquet import ROWS_PER_GROUP, ParquetWriter, require_pyarrow
from sphereface2.data.sources.recordio_writer import RecordWriter
from sphereface2.data.sources.source import classes_of_texts
from sphereface2.datatools.convert.conversion import (
    MARK,
    Conversion,
    FileNames,
    Job,
    Written,
)
from sphereface2.files import printable, write_atomically
from sphereface2.workers import Progress, unseen

IMAGES_PER_PART = 2048
"""Of a Parquet file, which cannot be resumed: an interruption costs at most so many."""
_STEP = 64  # images between two reports of progress


@dataclass(frozen=True)
class Target:
    """A form: which places it takes for these images, and how it is written."""

    places: Callable[[Path, EncodedImages], list[Path]]
    write: Callable[[Job, Conversion, Progress], Written]


# -- a folder for each person --------------------------------------------------------------------


def _write_folder(job: Job, work: Conversion, progress: Progress) -> Written:
    made = work.path / "images"
    new, size = copy_images(job, job.file_names(), made, progress)
    notes: tuple[str, ...] = ()
    if job.has_unknown:
        notes = ("images of nobody known are in a folder of their own, which reads as one person",)
    return Written([(made, work.target)], new, size, notes)


def copy_images(job: Job, names: FileNames, folder: Path, progress: Progress) -> tuple[int, int]:
    """Write each image that is not there yet; how many these were, and the bytes of all."""
    folder.mkdir(exist_ok=True)
    mark_folder(folder, len(job))
    new = size = 0
    for done, index in enumerate(job.indices.tolist(), start=1):
        place = f"{folder}/{names[index]}"
        present = _size_of(place)
        if not present:
            encoded = job.encoded(index)
            part = folder.with_name("image.part")
            write_atomically(Path(place), encoded, by=part, durable=False)
            present = len(encoded)
            new += 1
        size += present
        report(progress, done, len(job))
    return new, size


def mark_folder(folder: Path, images: int) -> None:
    """Leave the sign by which a later conversion may replace the folder."""
    mark = f'{{"images": {images}}}\n'
    write_atomically(folder / MARK, mark, by=folder.with_name("mark.part"))


def _size_of(path: str) -> int:
    """The bytes of a file, 0 if there is none (or a power cut has left an empty one)."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 - as above
    except FileNotFoundError:
        return 0


# -- a list --------------------------------------------------------------------------------------


def _list_places(target: Path, images: EncodedImages) -> list[Path]:
    return [target] if isinstance(images, NamedFiles) else [target, _images_of_list(target)]


def _write_list(job: Job, work: Conversion, progress: Progress) -> Written:
    """Files are named where they are; other images are copied beside the list."""
    made = work.path / "list.txt"
    if isinstance(job.images, NamedFiles):
        files = job.images
        base = work.target.parent.resolve()

        def path(index: int) -> str:
            return os.path.relpath(files.image_path(index).resolve(), base)

        write_atomically(made, _list_text(job, path, progress))
        return Written([(made, work.target)], len(job), made.stat().st_size)
    copied = work.path / "images"
    place = _images_of_list(work.target)
    names = job.file_names()
    new, size = copy_images(job, names, copied, progress)
    lines = _list_text(job, lambda index: f"{place.name}/{names[index]}", unseen)
    write_atomically(made, lines)
    return Written([(copied, place), (made, work.target)], new, size)


def _list_text(job: Job, path: Callable[[int], str], progress: Progress) -> str:
    labels = _list_labels(job)
    lines = []
    for done, index in enumerate(job.indices.tolist(), start=1):
        file = path(index)
        if file != file.strip() or any(sign in file for sign in "\t\n\r"):
            raise ValueError(
                f"{printable(file)}: a list cannot hold a name with a tab or a line break, or a "
                "blank at its end; convert to a folder first"
            )
        if file.startswith("#"):
            file = f"./{file}"  # a line that begins with # is a comment
        lines.append(f"{file}\t{labels[job.labels[index]]}\n")  # the last is that of label -1
        report(progress, done, len(job))
    return "".join(lines)


def _list_labels(job: Job) -> list[str]:
    """What a list has for each person, and at the end for nobody known: names, or else numbers."""
    names = [" ".join(printable(person).split()) for person in job.people]
    numbers = [str(label) for label in range(len(names))]
    # Among names -1 would be one; 7 and 07 are one number; and an empty name is none.
    if job.has_unknown or not all(names):
        return [*numbers, "-1"]
    try:
        labels, found = classes_of_texts(names, names.__getitem__)
    except ValueError:  # a person called -5, which no list can hold
        return [*numbers, "-1"]
    is_exact = len(found) == len(names) and int(labels.min(initial=0)) >= 0
    return [*(names if is_exact else numbers), "-1"]


def _images_of_list(target: Path) -> Path:
    return target.with_suffix("") if target.suffix else target.with_name(f"{target.name}_images")


# -- RecordIO ------------------------------------------------------------------------------------


def _record_places(target: Path, images: EncodedImages) -> list[Path]:
    if target.suffix != ".rec":
        raise ValueError(f"{printable(target)}: the name of a RecordIO file ends in .rec")
    return [target, target.with_suffix(".idx"), people_file(target)]


def _write_records(job: Job, work: Conversion, progress: Progress) -> Written:
    made = work.path / work.target.name
    # The images of a person follow one another in a .rec.
    order = job.indices[np.argsort(job.labels[job.indices], kind="stable")].tolist()
    new = 0
    if not made.exists():
        with RecordWriter(made, resume=True) as writer:
            there = writer.written
            for done, index in enumerate(order[there:], start=there + 1):
                writer.write(job.encoded(index), int(job.labels[index]))
                new += 1
                report(progress, done, len(job))
    people = [person.replace("\n", "_").replace("\r", "_") for person in job.people]
    write_atomically(people_file(made), "".join(f"{person}\n" for person in people))
    property_place = work.target.with_name("property")
    is_free = not property_place.exists() or work.target.exists()
    products = [
        (made.with_suffix(".idx"), work.target.with_suffix(".idx")),
        (people_file(made), people_file(work.target)),
        *([(made.with_name("property"), property_place)] if is_free else []),
        (made, work.target),
    ]
    notes = () if is_free else (f"{printable(property_place)} is of another .rec and stays",)
    return Written(products, new, made.stat().st_size, notes)


# -- Parquet -------------------------------------------------------------------------------------


def _write_parquet(job: Job, work: Conversion, progress: Progress) -> Written:
    parts = work.path / "images"
    parts.mkdir(exist_ok=True)
    mark_folder(parts, len(job))
    files = []
    new = 0
    for start in range(0, len(job), IMAGES_PER_PART):
        file = parts / f"part-{start // IMAGES_PER_PART:05d}.parquet"
        files.append(file)
        chosen = job.indices[start : start + IMAGES_PER_PART].tolist()
        if file.exists():
            continue
        with ParquetWriter(file) as writer:
            for done, index in enumerate(chosen, start=start + 1):
                writer.write(
                    job.encoded(index),
                    label=int(job.labels[index]),
                    person=job.person(index),
                    name=job.stored_name(index),
                )
                report(progress, done, len(job))
        new += len(chosen)
    size = sum(file.stat().st_size for file in files)
    if work.target.suffix != ".parquet":
        return Written([(parts, work.target)], new, size)
    if len(files) == 1:
        return Written([(files[0], work.target)], new, size)
    joined = work.path / "joined.parquet"
    if not joined.exists():
        _join(files, joined)
    return Written([(joined, work.target)], new, joined.stat().st_size)


def _join(files: list[Path], joined: Path) -> None:
    """One file with the rows of several."""
    parquet = require_pyarrow().parquet
    with ParquetWriter(joined) as writer:
        for file in files:
            with parquet.ParquetFile(file) as source:
                for rows in source.iter_batches(ROWS_PER_GROUP):
                    for row in rows.to_pylist():
                        image, label, person = row["image"], row["label"], row["person"]
                        writer.write(image["bytes"], label=label, person=person, name=image["path"])


def report(progress: Progress, done: int, total: int) -> None:
    """Report progress now and then: a bar redrawn for every image would cost more than it."""
    if done % _STEP == 0 or done == total:
        progress(done, total)


TARGETS = {
    "folder": Target(lambda target, images: [target], _write_folder),
    "list": Target(_list_places, _write_list),
    "recordio": Target(_record_places, _write_records),
    "parquet": Target(lambda target, images: [target], _write_parquet),
}
