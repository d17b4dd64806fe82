"""Sources: where images come from, by name or by their path alone. One line adds a source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sphereface2.data.sources.encoded import EncodedImages
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.image_file import is_image_file
from sphereface2.data.sources.image_list import LIST_SUFFIXES, ImageList
from sphereface2.data.sources.parquet import ParquetImages
from sphereface2.data.sources.recordio import RecordIO
from sphereface2.data.sources.source import Source
from sphereface2.data.sources.synthetic import SyntheticFaces
from sphereface2.files import printable

SOURCES: dict[str, Callable[..., Source]] = {
    "folder": ImageFolder,
    "list": ImageList,
    "parquet": ParquetImages,
    "recordio": RecordIO,
    "synthetic": SyntheticFaces,
}

_EXPECTED = "a folder with a folder of images for each person, a list, a .rec or a .parquet file"


def open_images(path: Path, *, root: Path | None = None) -> EncodedImages:
    """The images at `path`, whatever form they have; `root` is where a list's paths start from."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {printable(path)}; give {_EXPECTED}")
    suffix = "" if path.is_dir() else path.suffix.lower()
    if suffix in LIST_SUFFIXES:
        return ImageList(path=str(path), root=None if root is None else str(root))
    if root is not None:
        raise ValueError(f"root is for lists, and {printable(path)} is not one; leave it out")
    if path.is_dir():
        return _open_folder(path)
    if suffix == ".idx" and path.with_suffix(".rec").is_file():
        path, suffix = path.with_suffix(".rec"), ".rec"
    if suffix == ".rec":
        return RecordIO(path=str(path))
    if suffix == ".parquet":
        return ParquetImages(path=str(path))
    if is_image_file(path.name):
        raise ValueError(f"{printable(path)} is a single image; give {_EXPECTED}")
    raise ValueError(
        f"{printable(path)} has the ending '{path.suffix}', which says nothing about its form; "
        f"give {_EXPECTED}, a list with the ending {', '.join(LIST_SUFFIXES)}"
    )


def _open_folder(path: Path) -> EncodedImages:
    # Data sets as they are handed around: a folder that holds train.rec or Parquet shards.
    records = sorted(path.glob("*.rec"))
    if len(records) == 1 or (path / "train.rec").is_file():
        return RecordIO(path=str(records[0] if len(records) == 1 else path / "train.rec"))
    if records:
        names = ", ".join(printable(record.name) for record in records)
        raise ValueError(f"{printable(path)} holds several .rec files; give one of {names}")
    if any(path.glob("*.parquet")) or any(path.glob("data/*.parquet")):
        return ParquetImages(path=str(path))
    return ImageFolder(path=str(path))
