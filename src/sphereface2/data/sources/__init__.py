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
    if suffix == ".idx" and path.with_suffix(".rec").is_file():
        path = path.with_suffix(".rec")
    form, place = form_of(path)
    if form == "recordio":
        return RecordIO(path=str(place))
    if form == "parquet":
        return ParquetImages(path=str(place))
    if path.is_dir():
        records = [printable(record.name) for record in sorted(path.glob("*.rec"))]
        if records:
            raise ValueError(
                f"{printable(path)} holds several .rec files; give one of {', '.join(records)}"
            )
        return ImageFolder(path=str(path))
    if is_image_file(path.name):
        raise ValueError(f"{printable(path)} is a single image; give {_EXPECTED}")
    raise ValueError(
        f"{printable(path)} has the ending '{path.suffix}', which says nothing about its form; "
        f"give {_EXPECTED}, a list with the ending {', '.join(LIST_SUFFIXES)}"
    )


def form_of(path: Path) -> tuple[str | None, Path]:
    """What holds the images at a path, by the name of its source, and where it is.

    Data sets are handed around as a folder that holds train.rec or Parquet shards. None where it is
    neither: a folder may hold people, then.
    """
    if not path.is_dir():
        return {".rec": "recordio", ".parquet": "parquet"}.get(path.suffix.lower()), path
    records = sorted(path.glob("*.rec"))
    if len(records) == 1 or (path / "train.rec").is_file():
        return "recordio", records[0] if len(records) == 1 else path / "train.rec"
    if not records and (any(path.glob("*.parquet")) or any(path.glob("data/*.parquet"))):
        return "parquet", path
    return None, path
