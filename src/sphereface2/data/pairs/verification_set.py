"""What verification is measured on: images and the pairs of them, same person or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import decode, is_image_file, read_file
from sphereface2.data.sources.source import PreparedImages
from sphereface2.files import printable
from sphereface2.workers import Progress, counted, unseen

FOLDS = 10
Missing = Literal["error", "skip"]
"""What an image that is not there or cannot be read is: a mistake, or left out with its pairs."""


@dataclass(frozen=True, eq=False)
class VerificationSet:
    """Pairs of images, each marked as one person or two and given to one of the folds."""

    name: str
    images: PreparedImages
    pairs: NDArray[np.int64]
    """(pairs, 2): two indices into ``images``."""
    same: NDArray[np.bool_]
    """(pairs,): whether both images show one person."""
    folds: NDArray[np.int64]
    """(pairs,): the fold of each pair, 0 to 9."""
    people: NDArray[np.int64] | None = None
    """(images,): who each image shows, where that is known."""
    names: Sequence[str] = ()
    """The names of the people that the images show, where they are known."""
    originals: NDArray[np.int64] | None = None
    """(images,): the first image with the same content, where that is known."""
    attributes: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    """Of each attribute, such as the age gap, its value for every pair in words, "" if unknown."""
    missing: Missing = "error"

    def __post_init__(self) -> None:
        pairs, images = len(self.pairs), len(self.images)
        wrong = ""
        if self.pairs.shape != (pairs, 2):
            wrong = f"pairs have shape {self.pairs.shape}, not (n, 2)"
        elif self.same.shape != (pairs,) or self.folds.shape != (pairs,):
            answers, folds = self.same.shape[0], self.folds.shape[0]
            wrong = f"{pairs} pairs, but {answers} answers and {folds} folds"
        elif pairs and (self.pairs.min() < 0 or self.pairs.max() >= images):
            wrong = f"a pair points outside the {images} images"
        elif self.people is not None and self.people.shape != (images,):
            wrong = f"{images} images, but {self.people.shape[0]} people given"
        for attribute, values in self.attributes.items():
            if values.shape != (pairs,):
                wrong = f"{pairs} pairs, but {len(values)} values of the attribute {attribute!r}"
        if wrong:
            raise ValueError(f"verification set {self.name!r}: {wrong}.")


@dataclass(frozen=True, eq=False)
class NamedPairs:
    """Pairs of images that are known by name and need not be there.

    images: the names, each once; pairs: (n, 2) numbers of them; same, folds: (n,)
    people, names: as those of `VerificationSet`
    """

    name: str
    images: Sequence[str]
    pairs: NDArray[np.int64]
    same: NDArray[np.bool_]
    folds: NDArray[np.int64]
    people: NDArray[np.int64] | None = None
    names: Sequence[str] = ()


class PairFormat:
    """One way to keep pairs: called with the options of a config, it builds the sets.

    build: gives the sets; its keyword arguments are the options, its docstring explains them
    sniff: whether a file or folder is of this format; None for sets that are not in files
    read: the pairs of a list by the names of its images, which lie elsewhere and need not be
    there; None where the file holds the images itself
    draws: whether the pairs are drawn from labelled images, so that a file of it holds no pairs
    """

    def __init__(
        self,
        build: Callable[..., list[VerificationSet]],
        *,
        sniff: Callable[[Path], bool] | None = None,
        read: Callable[[Path], NamedPairs] | None = None,
        draws: bool = False,
    ) -> None:
        update_wrapper(self, build)  # with its signature and docstring, which the registry reads
        self._build = build
        self.sniff = sniff
        self.read = read
        self.draws = draws

    def __call__(self, **options: Any) -> list[VerificationSet]:
        return self._build(**options)


def ten_folds(same: NDArray[np.bool_], where: object) -> NDArray[np.int64]:
    """The fold of each pair of a set that names no folds: ten blocks in order, as LFW's are.

    Where such a block would hold pairs of one kind only (all genuine pairs first, say), the
    genuine and the impostor pairs are cut into ten blocks each, so that every fold has both.
    `where` names the set in messages.
    """
    genuine, impostor = np.flatnonzero(same), np.flatnonzero(~same)
    if min(len(genuine), len(impostor)) < FOLDS:
        raise ValueError(
            f"{where} has {len(genuine)} genuine and {len(impostor)} impostor pairs; "
            f"{FOLDS} folds need at least {FOLDS} of each"
        )
    folds = _blocks(len(same))
    if any(len(np.unique(same[folds == fold])) < 2 for fold in range(FOLDS)):
        folds[genuine] = _blocks(len(genuine))
        folds[impostor] = _blocks(len(impostor))
    return folds


def _blocks(count: int) -> NDArray[np.int64]:
    """0 0 … 1 1 … 9 9: ten blocks whose sizes differ by one at most."""
    return np.arange(count, dtype=np.int64) * FOLDS // count


_SNIFFED = 1 << 16  # bytes of a file that are looked at


class StoredImages(ABC):
    """Images that are kept encoded, as those of every set in files are, and decoded when asked."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encoded(self, index: int, /) -> bytes:
        """The image as it is stored."""

    @abstractmethod
    def location(self, index: int, /) -> str:
        """The image's place, for messages."""

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        return decode(self.encoded(index), self.location(index))

    def prepare(self, *, workers: int = 1, progress: Progress = unseen) -> None:  # noqa: B027
        """Nothing to do: images are decoded as they are asked for."""


class ImageFiles(StoredImages):
    """Image files by their paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def encoded(self, index: int, /) -> bytes:
        return read_file(self.paths[index])

    def location(self, index: int, /) -> str:
        return printable(self.paths[index])


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


def without_ending(name: str) -> str:
    """A name as lists have it that leave out .jpg or the like."""
    return name.rpartition(".")[0] if is_image_file(name) else name
