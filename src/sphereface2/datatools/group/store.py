"""The faces of a folder of photos: found and embedded once, kept, and resumed after a kill.

Three files only grow: the embeddings (a row per face), the crops (JPEGs in a row), and a line per
photo, which is added last. What has no line was not finished and is made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.data.sources.folder import find_images
from sphereface2.data.sources.image_file import encode
from sphereface2.data.transforms import fit_within
from sphereface2.datatools.photo_journal import UNUSABLE, PhotoJournal, each_photo, reason_of
from sphereface2.evaluation.embedding_files import SavedEmbeddings
from sphereface2.files import on_full_disk, printable
from sphereface2.models.embedder import Float32, absent_rows, fold_mirror, unit_rows
from sphereface2.recognition.photos import FaceFinder
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.workers import Progress, unseen

BATCH = 32
"""Faces that are embedded at once. A batch is filled up: some networks compute an image a
little differently in batches of another size, and a face must keep its embedding."""

_CROP_SIDE = 112
_QUALITY = 88
_CROPS, _EMBEDDINGS = "crops.bin", "embeddings.f32"
_ROWS = 16_384  # of saved embeddings at once
Stamp = list[int | str]
"""By which a photo is known to be as it was: size and time of its file, or nothing."""


@dataclass(frozen=True)
class StoredFace:
    """A face: its number, which no other ever has, and where it is.

    box, score: in the photo, and how sure the detector is; None for crops and saved embeddings
    crop: place and length of its JPEG
    """

    number: int
    photo: str
    box: tuple[float, float, float, float] | None
    score: float | None
    crop: tuple[int, int]


@dataclass(frozen=True)
class StoredPhoto:
    """A photo that was looked at; reason: why it could not be read."""

    photo: str
    stamp: Stamp
    faces: tuple[StoredFace, ...]
    reason: str | None = None

    def to_line(self) -> dict[str, Any]:
        faces = [[each.number, each.box, each.score, each.crop] for each in self.faces]
        return {"photo": self.photo, "stamp": self.stamp, "faces": faces, "reason": self.reason}

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> StoredPhoto:
        photo = line["photo"]
        faces = [
            StoredFace(number, photo, None if box is None else tuple(box), score, tuple(crop))
            for number, box, score, crop in line["faces"]
        ]
        return cls(photo, line["stamp"], tuple(faces), line["reason"])


class FaceStore(PhotoJournal):
    """What OUT/.group keeps: what the faces were made with, the faces, their embeddings and crops.

    settings: None for an OUT that is there
    """

    COMMAND = "group"
    VERSION = 1
    JOURNAL = "photos.jsonl"
    DURABLE = True

    def __init__(self, out: Path, settings: Mapping[str, Any] | None = None) -> None:
        if settings is None and not (out / f".{self.COMMAND}" / self.JOURNAL).is_file():
            raise FileNotFoundError(
                f"{printable(out)} holds no groups; `sphereface2 group PHOTOS OUT --model MODEL` "
                "makes them"
            )
        if out.exists() and not out.is_dir():
            raise ValueError(f"{printable(out)} is not a folder; give a folder for the groups")
        super().__init__(out, settings)
        faces = [face for photo in self.photos.values() for face in photo.faces]
        self.count = max((face.number for face in faces), default=0)
        crops = max((sum(face.crop) for face in faces), default=0)
        with self._held as held:
            self._embeddings = held.enter_context((self.folder / _EMBEDDINGS).open("a+b"))
            self._crops = held.enter_context((self.folder / _CROPS).open("a+b"))
            # What a kill has left behind the last line.
            for file, size in ((self._embeddings, 4 * self.dim * self.count), (self._crops, crops)):
                if file.seek(0, os.SEEK_END) < size:
                    raise ValueError(
                        f"{printable(Path(file.name))} is damaged: it is cut short; {self.remedy}"
                    )
                file.truncate(size)
            self._held = held.pop_all()

    @property
    def dim(self) -> int:
        return int(self.settings["dim"])

    @property
    def remedy(self) -> str:
        return f"remove {printable(self.out)} and group again"

    def take_up(self, lines: Sequence[Any]) -> None:
        if self.dim < 1:
            raise ValueError("dim")
        photos = [StoredPhoto.from_line(line) for line in lines]
        self.photos = {photo.photo: photo for photo in photos}

    def differing(self, key: str) -> str:
        return "another model" if key in ("model", "dim", "flip") else f"other {key}"

    def unit(self, faces: Sequence[StoredFace]) -> Float32:
        """The embeddings of faces, rows of length 1."""
        if not self.count:
            return np.empty((0, self.dim), np.float32)
        self._embeddings.flush()
        table = np.memmap(self.folder / _EMBEDDINGS, np.float32, "r", shape=(self.count, self.dim))
        return np.array(table[[face.number - 1 for face in faces]])

    def faces(self, photos: Iterable[str]) -> list[StoredFace]:
        """All faces of these photos, in the order of the photos' names."""
        known = [self.photos[name] for name in sorted(photos) if name in self.photos]
        return [face for photo in known for face in photo.faces]

    def _add(self, photos: Sequence[FoundPhoto], embeddings: Float32) -> None:
        """Write down photos with their faces: all bytes first, then the lines."""
        lines, number, place = [], self.count, self._crops.seek(0, os.SEEK_END)
        for photo in photos:
            faces = []
            for box, score, jpeg in photo.faces:
                number += 1
                faces.append(StoredFace(number, photo.photo, box, score, (place, len(jpeg))))
                self._crops.write(jpeg)
                place += len(jpeg)
            lines.append(StoredPhoto(photo.photo, photo.stamp, tuple(faces), photo.reason))
        assert number - self.count == len(embeddings)
        self._embeddings.write(np.ascontiguousarray(embeddings, np.float32).tobytes())
        for file in (self._embeddings, self._crops):
            file.flush()
            os.fsync(file.fileno())
        self._lines.add(*(line.to_line() for line in lines))
        self.photos |= {line.photo: line for line in lines}
        self.count = number

    # -- faces of photos ---------------------------------------------------------------------------

    def add_photos(
        self,
        source: Path,
        recognizer: Recognizer,
        finder: FaceFinder,
        *,
        workers: int = 1,
        progress: Progress = unseen,
    ) -> list[str]:
        """Find and embed the faces of all photos below `source` that are new; all photos there.

        A photo whose file has changed, or which could not be read, is looked at again.
        """
        found = find_images(source)
        names = sorted([*found.names, *found.unread])
        if not names:
            raise ValueError(
                f"no photos in {printable(source)}: no file there begins as an image does"
            )
        if self.photos and not set(self.photos) & set(names):
            raise ValueError(
                f"none of the {len(self.photos):,} photos that {printable(self.out)} knows is in "
                f"{printable(source)}; give the folder that it was made of, or a new OUT"
            )
        open_names = [name for name in names if not self._is_done(source, name)]
        done = len(names) - len(open_names)
        progress(done, len(names))
        if not open_names:
            return names
        look = partial(_look, source, finder)
        results = each_photo(look, open_names, workers=workers, name=str)
        waiting: list[FoundPhoto] = []
        full_disk = on_full_disk(self.out, kept="the faces that were found stay")
        with full_disk, closing(results):
            for photo in _in_order(open_names, results):
                waiting.append(photo)
                done += 1
                if sum(len(each.crops) for each in waiting) >= BATCH:
                    self._embed(waiting, recognizer)
                progress(done, len(names))
            self._embed(waiting, recognizer)
        return names

    def _is_done(self, source: Path, name: str) -> bool:
        known = self.photos.get(name)
        if known is None or known.reason is not None:
            return False
        return known.stamp == _stamp(source / name)

    def _embed(self, photos: list[FoundPhoto], recognizer: Recognizer) -> None:
        crops = [crop for photo in photos for crop in photo.crops]
        parts = [np.empty((0, self.dim), np.float32)]
        for start in range(0, len(crops), BATCH):
            batch = crops[start : start + BATCH]
            filled = batch + [batch[-1]] * (BATCH - len(batch))
            parts.append(recognizer.model.embed(filled, flip=recognizer.flip)[: len(batch)])
        self._add(photos, np.concatenate(parts))
        photos.clear()

    # -- saved embeddings --------------------------------------------------------------------------

    def add_saved(self, saved: SavedEmbeddings, *, progress: Progress = unseen) -> list[str]:
        """Take over saved embeddings, whose names are the photos; all names.

        A name that occurs several times is a photo of several faces. Names whose embeddings have
        changed are taken again.
        """
        total = len(saved.vectors)
        names = (
            list(saved.names)
            if saved.names is not None
            else [f"row {number:0{len(str(total))}}" for number in range(1, total + 1)]
        )
        rows: dict[str, list[int]] = {}
        absent = absent_rows(saved.vectors)
        for number, name in enumerate(names):
            faces = rows.setdefault(name, [])
            if not absent[number]:
                faces.append(number)
        order = sorted(rows)
        for start in range(0, len(order), _ROWS):
            part = order[start : start + _ROWS]
            self._take(part, rows, saved)
            progress(start + len(part), len(order))
        return order

    def _take(
        self, names: Sequence[str], rows: Mapping[str, list[int]], saved: SavedEmbeddings
    ) -> None:
        numbers = [row for name in names for row in rows[name]]
        folded = fold_mirror(np.asarray(saved.vectors[numbers]), saved.mirror)
        unit = unit_rows(folded, source=saved.source)
        new, kept, place = [], [np.empty((0, self.dim), np.float32)], 0
        for name in names:
            part = unit[place : place + len(rows[name])]
            place += len(part)
            known = self.photos.get(name)
            if known is not None and np.array_equal(self.unit(known.faces), part):
                continue
            new.append(FoundPhoto(name, [], [(None, None, b"")] * len(part), []))
            kept.append(part)
        self._add(new, np.concatenate(kept))


def read_crop(out: Path, face: StoredFace) -> bytes:
    """The JPEG of a face; empty if there is none."""
    place, length = face.crop
    if not length:
        return b""
    with (out / f".{FaceStore.COMMAND}" / _CROPS).open("rb") as file:
        file.seek(place)
        return file.read(length)


Found = tuple[tuple[float, float, float, float] | None, float | None, bytes]


@dataclass(frozen=True, eq=False)
class FoundPhoto:
    """What a worker process makes of a photo; faces: box, score and JPEG of each."""

    photo: str
    stamp: Stamp
    faces: list[Found]
    crops: list[npt.NDArray[np.uint8]]
    reason: str | None = None


def _look(source: Path, finder: FaceFinder, photo: str) -> FoundPhoto:
    """Find all faces of a photo; a process builds its detector once."""
    path = source / photo
    stamp: Stamp = []
    try:
        stamp = _stamp(path)
        found = finder.find_all(path)
    except UNUSABLE as error:
        return FoundPhoto(photo, stamp, [], [], reason_of(error))
    # An aligned crop is of one face, even if others are in its corners.
    found = [each for each in found if each.aligned][:1] or found
    found.sort(key=lambda each: () if each.face is None else each.face.box)
    faces: list[Found] = []
    for each in found:
        box = score = None
        if each.face is not None and not each.aligned:
            left, top, right, bottom = (round(side, 1) for side in each.face.box)
            box, score = (left, top, right, bottom), round(each.face.score, 4)
        jpeg = encode(fit_within(each.crop, _CROP_SIDE), ".jpg", quality=_QUALITY)
        faces.append((box, score, jpeg))
    return FoundPhoto(photo, stamp, faces, [each.crop for each in found])


def _stamp(path: Path) -> Stamp:
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns]


def _in_order(
    names: Sequence[str], results: Iterator[tuple[str, FoundPhoto]]
) -> Iterator[FoundPhoto]:
    """What processes finish in any order, in that of the names: faces are numbered by it."""
    early: dict[str, FoundPhoto] = {}
    upcoming = iter(names)
    wanted = next(upcoming)
    for name, found in results:
        early[name] = found
        while wanted in early:
            yield early.pop(wanted)
            wanted = next(upcoming, "")
