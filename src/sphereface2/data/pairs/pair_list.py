"""Verification pairs in text files: `path1 path2 0|1` in each line, or as LFW's pairs.txt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.verification_set import (
    ImageFiles,
    Missing,
    NamedPairs,
    PairFormat,
    VerificationSet,
    ten_folds,
)
from sphereface2.data.sources.image_file import IMAGE_SUFFIXES, is_image_file
from sphereface2.files import printable
from sphereface2.registry import DataPath
from sphereface2.workers import counted


def pair_list(
    *,
    path: DataPath,
    root: DataPath | None = None,
    title: str | None = None,
    missing: Missing = "error",
) -> list[VerificationSet]:
    """The pairs of a list with `path1 path2 0|1` in each line, as one verification set.

    Each line is `path1 path2 0|1` (1: the same person), separated by tabs, or by blanks where no
    path has one; empty lines and lines that begin with # are passed over. Image paths are
    relative to `root`, or else to the folder of the list. The set is called `title`, or else as
    the file is. `missing: skip` leaves out pairs whose images are not there or cannot be read.

    Where the images lie in a folder for each person, and every pair agrees with that, the people
    are known by these folders. Folds as in `ten_folds`.
    """
    return set_of_list(
        read_pair_list,
        path,
        root=root,
        title=title,
        missing=missing,
        files_of=lambda names, folder: [folder / name for name in names],
    )


def read_pair_list(list_file: Path) -> NamedPairs:
    """The pairs of a list by the paths that it names."""
    lines = read_lines(list_file)
    for number, fields in lines:
        if not _is_pair(fields):
            raise ValueError(
                f"{list_file}, line {number}: expected 'path1 path2 0|1', "
                f"got {printable(' '.join(fields))!r}"
            )
    files = sorted({file for _, fields in lines for file in fields[:2]})
    number_of = {file: index for index, file in enumerate(files)}
    pairs = np.array([[number_of[file] for file in fields[:2]] for _, fields in lines], np.int64)
    same = np.array([fields[2] == "1" for _, fields in lines], np.bool_)
    folds = ten_folds(same, list_file)
    people, names = _people(files, pairs, same)
    return NamedPairs(printable(list_file.stem), files, pairs, same, folds, people, names)


def _sniff(path: Path) -> bool:
    """Whether the first line pairs two image files; `my photo.jpg 1` is of a list of images."""
    return any(
        _is_pair(fields) and all(is_image_file(Path(field).name) for field in fields[:2])
        for fields in first_lines(path, 1)
    )


def _is_pair(fields: list[str]) -> bool:
    return len(fields) == 3 and all(fields) and fields[2] in ("0", "1")


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


PAIR_LIST = PairFormat(pair_list, sniff=_sniff, read=read_pair_list)


# -- what all lists have ---------------------------------------------------------------------------

_SNIFFED = 1 << 16  # bytes of a file that are looked at


def read_lines(list_file: Path) -> list[tuple[int, list[str]]]:
    """The number and the fields of each line, without empty lines and those that begin with #."""
    if not list_file.is_file():
        raise FileNotFoundError(f"there is no list of pairs {printable(list_file)}")
    content = list_file.read_bytes()
    if b"\0" in content:
        raise ValueError(f"the list of pairs {printable(list_file)} is not a text file")
    return _fields(content)


def first_lines(path: Path, count: int) -> list[list[str]]:
    """The fields of the first lines of a file, to recognise its format; none of a binary file."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        content = file.read(_SNIFFED)
    return [] if b"\0" in content else [fields for _, fields in _fields(content)[:count]]


def _fields(content: bytes) -> list[tuple[int, list[str]]]:
    # Names that are not UTF-8 keep their bytes, as Python's paths do. Not splitlines(): it also
    # cuts at characters that a file name may have.
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        # Separated by tabs, or by blanks where there is no tab.
        parts = line.rstrip("\r").split("\t") if "\t" in line else line.split()
        fields = [part.strip() for part in parts]
        if any(fields) and not fields[0].startswith("#"):
            found.append((number, fields))
    return found


def set_of_list(
    read: Callable[[Path], NamedPairs],
    path: str,
    *,
    root: str | None,
    title: str | None,
    missing: Missing,
    files_of: Callable[[Sequence[str], Path], list[Path]],
) -> list[VerificationSet]:
    """The pairs of a list as one verification set.

    root: the folder that the images lie below; by default that of the list
    files_of: the files of named images below that folder
    """
    list_file = Path(path)
    listed = read(list_file)
    folder = list_file.parent if root is None else Path(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"root: there is no folder {folder} with the images of {list_file}")
    files = files_of(listed.images, folder)
    if missing == "error":
        _require_files(files, list_file, folder)
    named = listed.name if title is None else title
    found = {**vars(listed), "name": named, "images": ImageFiles(files)}
    return [VerificationSet(**found, missing=missing)]


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


def _require_files(images: list[Path], list_file: Path, folder: Path) -> None:
    missing = [image for image in images if not image.is_file()]
    if missing:
        first = ", ".join(printable(image) for image in missing[:3])
        are = "is" if len(missing) == 1 else "are"
        raise MissingFilesError(
            f"{len(missing):,} of the {counted(len(images), 'image')} of {list_file} {are} "
            f"missing, such as {first}",
            folder,
        )


# -- LFW's pairs.txt -------------------------------------------------------------------------------

_Image = tuple[str, int]
"""A person's name and the number of the image."""


def lfw_pairs(
    *,
    path: DataPath,
    root: DataPath | None = None,
    title: str | None = None,
    suffix: str | None = None,
    missing: Missing = "error",
) -> list[VerificationSet]:
    """The pairs of a list in the form of LFW's pairs.txt, as one verification set.

    The images are `root`/NAME/NAME_0001.jpg, of photos or of aligned crops alike; `root` is the
    folder of the file if not given. Their ending is found, or else is `suffix`. The first line
    says how many folds of how many genuine and as many impostor pairs follow (`10 300`); where it
    gives only the pairs (`300`) or is missing, folds are as in `ten_folds`. `missing: skip` leaves
    out pairs whose images are not there or cannot be read.
    """
    return set_of_list(
        read_lfw,
        path,
        root=root,
        title=title,
        missing=missing,
        files_of=lambda names, folder: _lfw_files(names, folder, suffix),
    )


def read_lfw(list_file: Path) -> NamedPairs:
    """The pairs of a list by the names of their images, NAME/NAME_0001 without an ending."""
    lines = read_lines(list_file)
    header: list[int] = []
    if lines and _is_header(lines[0][1]):
        number, fields = lines.pop(0)
        header = [int(field) for field in fields]
        if min(header) < 1:
            raise ValueError(f"{list_file}, line {number}: counts must be at least 1")
    if not lines:
        raise ValueError(f"{list_file} has no pairs; expected lines 'name i j' and 'name i name j'")
    pairs = [_lfw_pair(fields, f"{list_file}, line {number}") for number, fields in lines]
    same = np.array([first[0] == second[0] for first, second in pairs], np.bool_)
    images = sorted({image for pair in pairs for image in pair})
    number_of = {image: number for number, image in enumerate(images)}
    names, people = np.unique([name for name, _ in images], return_inverse=True)
    return NamedPairs(
        name=printable(list_file.stem),
        images=[f"{name}/{name}_{number:04d}" for name, number in images],
        pairs=np.array([[number_of[image] for image in pair] for pair in pairs], np.int64),
        same=same,
        folds=_lfw_folds(header, [number for number, _ in lines], same, list_file),
        people=people.astype(np.int64),
        names=names.tolist(),
    )


def _sniff_lfw(path: Path) -> bool:
    """Whether a header with a longer line behind it comes first, or else a pair."""
    lines = first_lines(path, 2)
    if lines and _is_header(lines[0]):
        return len(lines) == 1 or len(lines[1]) in (3, 4)
    return bool(lines) and _is_lfw_pair(lines[0]) and not is_image_file(lines[0][0])


def _is_header(fields: Sequence[str]) -> bool:
    """Whether a line is `folds pairs`, or `pairs` alone."""
    return len(fields) in (1, 2) and all(_is_number(field) for field in fields)


def _is_lfw_pair(fields: Sequence[str]) -> bool:
    """Whether a line is `name i j` or `name i name2 j`."""
    if len(fields) not in (3, 4) or not all(fields):
        return False
    return _is_number(fields[1]) and _is_number(fields[-1])


def _is_number(field: str) -> bool:
    return field.isascii() and field.isdigit() and len(field) < 10


def _lfw_pair(fields: list[str], where: str) -> tuple[_Image, _Image]:
    if not _is_lfw_pair(fields):
        raise ValueError(
            f"{where}: expected 'name i j' (one person) or 'name i name2 j' (two people), "
            f"got {printable(' '.join(fields))!r}"
        )
    first = (fields[0], int(fields[1]))
    second = (fields[0] if len(fields) == 3 else fields[2], int(fields[-1]))
    if first == second:
        raise ValueError(f"{where}: image {first[1]} of {first[0]} is paired with itself")
    if len(fields) == 4 and first[0] == second[0]:
        raise ValueError(f"{where}: both names are {first[0]}; a pair of one person is 'name i j'")
    return first, second


def _lfw_folds(
    header: list[int], lines: list[int], same: NDArray[np.bool_], list_file: Path
) -> NDArray[np.int64]:
    folds, wanted = (header if len(header) == 2 else [1, *header]) if header else (1, None)
    if wanted is not None and len(same) != 2 * folds * wanted:
        raise ValueError(
            f"{list_file}, line 1 promises {folds} x {wanted} genuine and as many impostor pairs, "
            f"{2 * folds * wanted} in all, but {len(same)} follow"
        )
    if wanted is None or folds == 1:
        return ten_folds(same, list_file)
    genuine = same.reshape(folds, 2 * wanted).sum(axis=1)
    for fold in np.flatnonzero(genuine != wanted)[:1].tolist():
        first, last = lines[2 * wanted * fold], lines[2 * wanted * (fold + 1) - 1]
        raise ValueError(
            f"{list_file}, lines {first} to {last}: fold {fold + 1} has {genuine[fold]} genuine "
            f"pairs, line 1 promises {wanted}"
        )
    return np.repeat(np.arange(folds, dtype=np.int64), 2 * wanted)


def _lfw_files(names: Sequence[str], folder: Path, suffix: str | None) -> list[Path]:
    """The file of each image; where there is none, the name it should have."""
    if suffix is not None:
        return [folder / f"{name}.{suffix.removeprefix('.')}" for name in names]
    present: dict[str, dict[str, str]] = {}
    files = []
    for name in names:
        person, _, stem = name.rpartition("/")
        if person not in present:  # one look into each folder, not one for each guess
            present[person] = _images_in(folder / person)
        files.append(folder / person / present[person].get(stem, f"{stem}{IMAGE_SUFFIXES[0]}"))
    return files


def _images_in(folder: Path) -> dict[str, str]:
    """The image files of a folder by their name without ending; .jpg goes before .png."""
    found: dict[str, str] = {}
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    for ending in reversed(IMAGE_SUFFIXES):
        matching = sorted(name for name in names if name.lower().endswith(ending))
        found.update({name[: -len(ending)]: name for name in matching})
    return found


LFW = PairFormat(lfw_pairs, sniff=_sniff_lfw, read=read_lfw)
