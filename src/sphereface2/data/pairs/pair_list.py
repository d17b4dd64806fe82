"""Verification pairs in a text file: `path1 path2 0|1`, one pair a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.verification_set import Missing, VerificationSet, ten_folds
from sphereface2.data.sources.image_file import read_file, read_image
from sphereface2.files import printable
from sphereface2.progress import Progress, counted
from sphereface2.registry import DataPath


class ImageFiles:
    """Image files, decoded as they are asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        return read_image(self.paths[index])

    def encoded(self, index: int, /) -> bytes:
        """The file as it is."""
        return read_file(self.paths[index])

    def location(self, index: int, /) -> str:
        """The image's place, for messages."""
        return printable(self.paths[index])

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Nothing to do: images are decoded as they are asked for."""


def pair_list(
    *,
    path: DataPath,
    root: DataPath | None = None,
    title: str | None = None,
    missing: Missing = "error",
) -> list[VerificationSet]:
    """The pairs of a list with `path1 path2 0|1` in each line, as one verification set.

    Each line is `path1 path2 0|1` (1: the same person), parted by tabs, or by blanks where no
    path has one; empty lines and lines that begin with # are passed over. Image paths are
    relative to `root`, or else to the folder of the list. The set is called `title`, or else as
    the file is. `missing: skip` leaves out pairs whose images are not there or cannot be read.

    Where the images lie in a folder for each person, and every pair agrees with that, the people
    are known by these folders. Folds as in `ten_folds`.
    """
    list_file = Path(path)
    if not list_file.is_file():
        raise FileNotFoundError(f"there is no pair list {list_file}")
    folder = root_folder(list_file, root)
    named, same = _parse(list_file)
    files = sorted({file for pair in named for file in pair})
    number = {file: index for index, file in enumerate(files)}
    images = [folder / file for file in files]
    if missing == "error":
        require_files(images, list_file, folder)
    pairs = np.array([(number[a], number[b]) for a, b in named], np.int64).reshape(-1, 2)
    answers = np.array(same, np.bool_)
    folds = ten_folds(answers, list_file)
    people, names = _people(files, pairs, answers)
    return [
        VerificationSet(
            name=list_file.stem if title is None else title,
            images=ImageFiles(images),
            pairs=pairs,
            same=answers,
            folds=folds,
            people=people,
            names=names,
            missing=missing,
        )
    ]


def text_lines(path: Path, what: str) -> list[str]:
    """The lines of a list; names that are not UTF-8 keep their bytes, as Python's paths do."""
    content = path.read_bytes()
    if b"\0" in content:
        raise ValueError(f"the {what} {path} is not a text file")
    # Not splitlines(): it also cuts at characters that a file name may have.
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    return text.replace("\r\n", "\n").split("\n")


def line_fields(line: str) -> list[str]:
    """What a line of a list holds, parted by tabs, or by blanks where there is no tab."""
    line = line.rstrip("\r\n")
    return [field.strip() for field in (line.split("\t") if "\t" in line else line.split())]


def root_folder(list_file: Path, root: str | None) -> Path:
    """The folder that the images of a list lie below: `root`, or else that of the list."""
    folder = list_file.parent if root is None else Path(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"root: there is no folder {folder} with the images of {list_file}")
    return folder


class MissingFilesError(FileNotFoundError):
    """Images of a list that are not there."""

    def __init__(self, what: str, folder: Path) -> None:
        self.what, self.folder = what, folder
        super().__init__(self.advising(root="root", skip="missing=skip"))

    def advising(self, *, root: str, skip: str = "") -> str:
        """The message with the settings that help, by the names that the reader can give."""
        return (
            f"{self.what}; give the folder that the paths start from (now {self.folder}) with "
            f"{root}"
        ) + (f", or leave out what is missing with {skip}" if skip else "")


def require_files(images: list[Path], list_file: Path, folder: Path) -> None:
    """Refuse a list whose images are not all there: how many, and the first of them."""
    missing = [image for image in images if not image.is_file()]
    if missing:
        first = ", ".join(printable(image) for image in missing[:3])
        are = "is" if len(missing) == 1 else "are"
        raise MissingFilesError(
            f"{len(missing):,} of the {counted(len(images), 'image')} of {list_file} {are} "
            f"missing, such as {first}",
            folder,
        )


def _parse(list_file: Path) -> tuple[list[tuple[str, str]], list[bool]]:
    pairs: list[tuple[str, str]] = []
    same: list[bool] = []
    for number, line in enumerate(text_lines(list_file, "pair list"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = line_fields(line)
        if len(fields) != 3 or not all(fields) or fields[2] not in ("0", "1"):
            raise ValueError(
                f"{list_file}, line {number}: expected 'path1 path2 0|1', "
                f"got {printable(line.strip())!r}"
            )
        pairs.append((fields[0], fields[1]))
        same.append(fields[2] == "1")
    return pairs, same


def _people(
    files: list[str], pairs: NDArray[np.int64], same: NDArray[np.bool_]
) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Who each image shows, by its folder; None where the pairs do not bear the folders out."""
    folders = [PurePosixPath(file).parts[:-1] for file in files]
    for depth in range(1, min(len(folder) for folder in folders) + 1):
        # The outermost folders that agree: PERSON/frontal/1.jpg and PERSON/profile/1.jpg are one.
        outer = ["/".join(folder[:depth]) for folder in folders]
        names, people = np.unique(outer, return_inverse=True)
        if np.array_equal(people[pairs[:, 0]] == people[pairs[:, 1]], same):
            return people.astype(np.int64), [PurePosixPath(name).name for name in names.tolist()]
    return None, []
