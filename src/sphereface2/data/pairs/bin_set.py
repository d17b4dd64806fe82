"""Verification sets in one .bin file: a pickle of 2n encoded images and n answers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.pairs.verification_set import (
    PairFormat,
    StoredImages,
    VerificationSet,
    by_ending,
    ten_folds,
)
from sphereface2.files import printable
from sphereface2.registry import DataPath
from sphereface2.safe_pickle import NotPlainError, StrangeNameError, load_plain


class BinImages(StoredImages):
    """The images of a .bin file, held encoded."""

    def __init__(self, path: Path, encoded: Sequence[bytes]) -> None:
        self.path = path
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._encoded)

    def encoded(self, index: int, /) -> bytes:
        return self._encoded[index]

    def location(self, index: int, /) -> str:
        return f"{self.path}, image {index} (pair {index // 2})"


def bin_set(*, path: DataPath, title: str | None = None) -> list[VerificationSet]:
    """The one verification set of a .bin file, as InsightFace ships lfw.bin, agedb_30.bin, ...

    The file is a pickle of (2n encoded images, n answers); images 2i and 2i+1 are pair i. It is
    read as plain data: a pickle that asks for anything else is refused, and nothing of it is run.
    The set is called `title`, or else as the file is. Folds as in `ten_folds`.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no verification set {file}")
    try:
        found = load_plain(file.read_bytes())
    except StrangeNameError as error:
        raise ValueError(
            f"{file} {error}; this is not a verification set, and nothing of it was run"
        ) from None
    except NotPlainError as error:
        raise ValueError(f"{file} is not a verification set: it {error}") from None
    if not isinstance(found, list) or len(found) != 2:
        raise ValueError(f"{file} is not a verification set: it holds no pair (images, answers)")
    images = _images(found[0], file)
    same = _answers(found[1], file)
    if len(images) != 2 * len(same):
        raise ValueError(
            f"{file} holds {len(images)} images and {len(same)} answers; "
            f"{len(same)} pairs need {2 * len(same)} images"
        )
    return [
        VerificationSet(
            name=printable(file.stem) if title is None else title,
            images=BinImages(file, images),
            pairs=np.arange(len(images), dtype=np.int64).reshape(-1, 2),
            same=same,
            folds=ten_folds(same, file),
            originals=_originals(images),
        )
    ]


class BinWriter:
    """Writes a .bin file image by image, so that a long conversion can stop and be resumed.

    Protocol 3, without a memo: every Python 3 reads it, and each image is written as it comes.
    """

    BEGIN = b"\x80\x03]"

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def begin(self) -> None:
        """Open the list of images."""
        self.file.write(self.BEGIN)

    def write(self, image: bytes | memoryview) -> None:
        """Add one encoded image."""
        self.file.write(b"B" + struct.pack("<I", len(image)))
        self.file.write(image)
        self.file.write(b"a")

    def finish(self, same: Iterable[bool]) -> None:
        """Add the answers and end the file."""
        self.file.write(b"]" + b"".join(b"\x88a" if answer else b"\x89a" for answer in same))
        self.file.write(b"\x86.")


def _images(found: Any, file: Path) -> list[bytes]:
    if isinstance(found, np.ndarray) and found.dtype.kind == "S":
        found = found.ravel().tolist()
    if not isinstance(found, list):
        raise ValueError(f"{file} is not a verification set: its images are not a list")
    for index, image in enumerate(found):
        if isinstance(image, bytes):
            continue
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
            raise ValueError(
                f"{file}: image {index} is {_kind(image)}, not the bytes of an image file"
            )
        if image.size != max(image.shape, default=0):
            raise ValueError(
                f"{file}: image {index} is an array of shape {image.shape}, not the bytes of an "
                "image file"
            )
        found[index] = image.tobytes()
    return found


def _originals(images: Sequence[bytes]) -> NDArray[np.int64]:
    """Of each image the first with the same bytes: the file holds a photo once for each pair."""
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(image, i) for i, image in enumerate(images)], np.int64)


def _answers(found: Any, file: Path) -> NDArray[np.bool_]:
    if isinstance(found, np.ndarray):
        found = found.ravel().tolist()
    if not isinstance(found, list):
        raise ValueError(f"{file} is not a verification set: its answers are not a list")
    for index, answer in enumerate(found):
        if not isinstance(answer, int) or answer not in (0, 1):
            raise ValueError(f"{file}: answer {index} is {_kind(answer)}, not true or false")
    return np.array(found, np.bool_)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


BIN = PairFormat(bin_set, sniff=by_ending(".bin"))
