"""Training images in a text file: `path label`, or the .lst files of im2rec and InsightFace."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from sphereface2.data.sources.class_labels import classes_of_texts
from sphereface2.data.sources.encoded import OnBadImage, file_name
from sphereface2.data.sources.folder import NamedFiles, PackedNames
from sphereface2.data.sources.image_file import is_image_file
from sphereface2.files import printable
from sphereface2.registry import DataPath

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
        if layout[0] < 0 and not _is_whole(label):
            raise ValueError(
                f"{printable(list_file)}, line {number}: the label {printable(label)!r} is no "
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


def _is_whole(text: str) -> bool:
    return _is_number(text) and float(text).is_integer()
