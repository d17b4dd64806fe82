"""Training images in a text file: `path label`, or the .lst files of im2rec and InsightFace."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import OnBadImage, file_name
from sphereface2.data.sources.folder import NamedFiles, PackedNames
from sphereface2.data.sources.image_file import is_image_file, read_image
from sphereface2.data.sources.source import classes_of_texts
from sphereface2.faces.face import align_face
from sphereface2.files import printable
from sphereface2.registry import DataPath
from sphereface2.workers import Progress, counted, unseen

LIST_SUFFIXES = (".txt", ".lst", ".csv", ".tsv")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# What the first line of a .csv may call its columns.
_PATH_TITLES = ("path", "image", "file", "filename", "file_name")
_LABEL_TITLES = ("label", "person", "name", "identity", "id")


class ImageList(NamedFiles):
    """The images that a list names, with the person of each: a number or a name.

    A line is `path label`, separated by a tab (or by a comma in a .csv), or else by the last blank;
    or `number label path`, as im2rec has it; or `aligned path label` and perhaps a box and
    landmarks, as InsightFace has it, these two separated by tabs. Empty lines and lines that begin
    with # are passed over. Paths are relative to `root`, or else to the folder of the list. A
    label of -1 is a person who is not known.
    """

    def __init__(
        self,
        *,
        path: DataPath,
        root: DataPath | None = None,
        image_size: int | None = None,
        on_bad_image: OnBadImage = "stop",
    ) -> None:
        list_file = Path(path)
        if not list_file.is_file():
            kind = "is a folder" if list_file.is_dir() else "does not exist"
            raise FileNotFoundError(f"data.path: the list {printable(list_file)} {kind}")
        folder = list_file.parent if root is None else Path(root)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"data.root: there is no folder {printable(folder)} with the images of "
                f"{printable(list_file)}"
            )
        self.root = str(folder)
        files: list[str] = []
        texts: list[str] = []
        for file, label in _entries(list_file):
            files.append(file)
            texts.append(label)
        if not texts:
            raise ValueError(f"{printable(list_file)} names no images; expected 'path label' lines")
        _require_first(files, folder)
        self.files = PackedNames(files)
        labels, people = classes_of_texts(texts, lambda index: _place(list_file, index))
        super().__init__(
            path=list_file,
            labels=labels,
            people=[printable(person) for person in people],
            image_size=image_size,
            on_bad_image=on_bad_image,
        )

    def name(self, index: int, /) -> str:
        return file_name(self.person(index), self.files[index])


def _require_first(files: list[str], root: Path) -> None:
    # If paths start from elsewhere, that is one mistake and not one for each image. Whether every
    # file is there is for the start-up check, which opens them all.
    if not any((root / file).is_file() for file in files[:100]):
        raise FileNotFoundError(
            f"there is no image {printable(root / files[0])}; set data.root to the folder that the "
            f"paths start from (now {printable(root)})"
        )


def _entries(list_file: Path) -> Iterator[tuple[str, str]]:
    """The path and the label of each line."""
    rows = _rows(list_file)
    layout: tuple[int, int] | None = None
    count = 0
    for number, fields in rows:
        if layout is None:
            titled = _titles(fields)
            layout, count = titled or _layout(fields), max(len(fields), 2)
            if titled:
                continue
        expected = "number label path" if layout[0] < 0 else "path label"
        if len(fields) != count or not (fields[layout[0]] and fields[layout[1]]):
            raise ValueError(
                f"{printable(list_file)}, line {number}: expected '{expected}' in {count} fields, "
                f"got {printable(' '.join(fields))!r} in {len(fields)}"
            )
        label = fields[layout[1]]
        if layout[0] < 0 and not (_is_number(label) and float(label).is_integer()):
            raise ValueError(
                f"{printable(list_file)}, line {number}: the label {printable(label)!r} is not a "
                "whole number; labels are the numbers of people"
            )
        yield fields[layout[0]], label


def _place(list_file: Path, index: int) -> str:
    """The line of an image, found by reading the list again, which only a mistake needs."""
    rows = list(_rows(list_file))
    number, _ = rows[index + (_titles(rows[0][1]) is not None)]
    return f"{printable(list_file)}, line {number}"


def _rows(list_file: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the fields of each line that has any."""
    with list_file.open("rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise ValueError(f"the list {printable(list_file)} is in UTF-16; save it as UTF-8")
    # A name that is not UTF-8 is kept byte by byte, as the file system has it.
    with list_file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        for number, line in enumerate(text, start=1):
            line = line.rstrip("\r\n")
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if "\0" in line:
                raise ValueError(f"the list {printable(list_file)} is not a text file")
            if "\t" in line:
                fields = line.split("\t")
            elif list_file.suffix.lower() == ".csv":
                fields = next(csv.reader([line]))
            else:
                fields = line.rsplit(maxsplit=1)
            yield number, [field.strip() for field in fields]


def _titles(fields: list[str]) -> tuple[int, int] | None:
    """The columns of path and label if this is a line of titles."""
    titles = [field.lower() for field in fields]
    path = next((titles.index(title) for title in _PATH_TITLES if title in titles), None)
    label = next((titles.index(title) for title in _LABEL_TITLES if title in titles), None)
    return None if path is None or label is None else (path, label)


def _layout(fields: list[str]) -> tuple[int, int]:
    """Which fields are path and label, decided by the first line."""
    if len(fields) < 3:
        return 0, 1
    second, last = fields[1], fields[-1]
    # im2rec: number, label (or several, of which the first counts), path.
    if is_image_file(Path(last).name) or (_is_number(second) and not _is_number(last)):
        return -1, 1
    return 1, 2  # InsightFace: aligned, path, label, and perhaps a box and landmarks


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


_SHOWN = 3


class AlignedFiles:
    """The faces of `folder`/NAME, brought onto the template by (n, 5, 2) landmarks."""

    def __init__(self, folder: Path, names: Sequence[str], landmarks: NDArray[np.floating]) -> None:
        if landmarks.shape != (len(names), 5, 2):
            raise ValueError(
                f"{len(names)} images need landmarks of the shape ({len(names)}, 5, 2), got "
                f"{landmarks.shape}"
            )
        _require_faces(folder, names, landmarks)
        self.folder = folder
        self.names = names
        self.landmarks = landmarks

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        image = read_image(f"{self.folder}/{self.names[index]}")
        return align_face(image, self.landmarks[index].astype(np.float64))

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:
        """Check that every file is there: lists and images are often downloaded apart."""
        require_images(self.folder, self.names, progress=progress)


def require_images(
    folder: Path, names: Sequence[str], *, progress: Progress = unseen, every: int = 5_000
) -> None:
    """Refuse a list whose images are not all in `folder`: how many are missing, and the first."""
    missing = []
    for number, name in enumerate(names, start=1):
        if not Path(folder, name).is_file():
            missing.append(name)
        if number % every == 0 or number == len(names):
            progress(number, len(names))
    if missing:
        first = ", ".join(printable(name) for name in missing[:_SHOWN])
        are = "is" if len(missing) == 1 else "are"
        raise FileNotFoundError(
            f"{len(missing):,} of the {counted(len(names), 'image')} of the list {are} missing in "
            f"{printable(folder)}, such as {first}"
        )


def _require_faces(folder: Path, names: Sequence[str], landmarks: NDArray[np.floating]) -> None:
    finite = np.isfinite(landmarks).all(axis=(1, 2))
    faulty = np.flatnonzero(~finite | (np.ptp(landmarks, axis=1) == 0).all(axis=1))
    if faulty.size:
        first = ", ".join(printable(names[number]) for number in faulty[:_SHOWN])
        raise ValueError(
            f"{faulty.size:,} of the {len(names):,} faces of {printable(folder)} have landmarks "
            f"that are not finite or all one point, such as those of {first}"
        )
