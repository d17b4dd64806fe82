"""Lists of pairs in text files, whose images lie in a folder: what all such formats share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.verification_set import Missing, NamedPairs, VerificationSet
from sphereface2.data.sources.image_file import is_image_file, read_file, read_image
from sphereface2.files import printable
from sphereface2.progress import Progress, counted

_SNIFFED = 1 << 16  # bytes of a file that are looked at


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
    return [
        VerificationSet(
            name=listed.name if title is None else title,
            images=ImageFiles(files),
            pairs=listed.pairs,
            same=listed.same,
            folds=listed.folds,
            people=listed.people,
            names=listed.names,
            missing=missing,
        )
    ]


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
