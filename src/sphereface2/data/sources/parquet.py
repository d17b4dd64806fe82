"""Parquet files with an image in each row, in row groups small enough to read at random."""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.encoded import EncodedImages, OnBadImage, file_name
from sphereface2.data.sources.image_file import Encoded, ending_of
from sphereface2.data.sources.source import (
    ImageWriter,
    classes_of_numbers,
    classes_of_texts,
    gaps_note,
)
from sphereface2.files import parse_json, printable, put_in_place
from sphereface2.registry import DataPath
from sphereface2.workers import install_command

ROWS_PER_GROUP = 64
"""To get one image a row group is read: 64 crops are about half a megabyte."""

# With this in the file, Hugging Face's datasets and their viewer show pictures.
_FEATURES = {
    "image": {"_type": "Image"},
    "label": {"dtype": "int64", "_type": "Value"},
    "person": {"dtype": "string", "_type": "Value"},
}


def require_pyarrow() -> Any:
    """The module pyarrow with its Parquet part, or a sentence that says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"Parquet files need pyarrow: {install_command('parquet')}") from None
    return pyarrow


class ParquetWriter(ImageWriter):
    """Writes one .parquet file with the columns image {bytes, path}, label and person.

    After an error nothing is left: a Parquet file without its end cannot be resumed, so write
    several files where that counts.
    """

    def __init__(self, path: Path, *, rows_per_group: int = ROWS_PER_GROUP) -> None:
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        self.rows_per_group = rows_per_group
        self._arrow = require_pyarrow()
        self._rows: list[dict[str, Any]] = []
        self._schema = self._arrow.schema(
            [
                ("image", self._arrow.struct([("bytes", "binary"), ("path", "string")])),
                ("label", "int64"),
                ("person", "string"),
            ],
            metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
        )
        self._file: Any = self._arrow.parquet.ParquetWriter(
            str(self.part),
            self._schema,
            compression="none",  # JPEG does not get smaller, only slower
            use_dictionary=["person"],
            write_statistics=["label"],  # the least and greatest image would be stored again
        )

    def write(self, encoded: Encoded, *, label: int, person: str, name: str) -> None:
        """Append an image; `name` is its relative path, person/file.jpg."""
        image = {"bytes": bytes(encoded), "path": printable(name)}
        self._rows.append({"image": image, "label": label, "person": printable(person)})
        if len(self._rows) == self.rows_per_group:
            self._write_group()

    def finish(self) -> None:
        if self._rows:
            self._write_group()
        self._file.close()
        self._file = None
        put_in_place(self.part, self.path, durable=False)

    def close(self) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
        finally:
            self._file = None
            self.part.unlink(missing_ok=True)

    def _write_group(self) -> None:
        self._file.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []


_LABELS = ("label", "person", "name")
_GB = 1 << 30


class ParquetImages(EncodedImages):
    """The rows of a .parquet file, or of all such files in a folder, in the order of their names.

    The column `image` holds encoded images, as they are or as {bytes, path}. The column `label`
    holds numbers or names; without it, `person` or `name` does. A Parquet file is read by row
    groups: those that were read stay in memory, up to `memory_gb` gigabytes in each process. If
    all images fit, each is read from the disk once; otherwise a whole row group is read for an
    image, which is quick for the small groups of `ParquetWriter` and slow for large ones.
    """

    suits_processes = False  # each would keep row groups of its own

    def __init__(
        self,
        *,
        path: DataPath,
        image_size: int | None = None,
        on_bad_image: OnBadImage = "stop",
        memory_gb: float = 4.0,
    ) -> None:
        self._files = [str(file) for file in _parquet_files(Path(path))]
        self._budget = int(memory_gb * _GB)
        self._reset()
        groups: list[tuple[int, int, int]] = []
        rows = size = 0
        for number, file in enumerate(self._files):
            metadata = self._open(number).metadata
            for group in range(metadata.num_row_groups):
                groups.append((rows, number, group))
                rows += metadata.row_group(group).num_rows
                size += metadata.row_group(group).total_byte_size
            _require_columns(file, self._open(number).schema_arrow)
        if not rows:
            raise ValueError(f"{printable(path)} holds no images: it has no rows")
        self._groups = np.array(groups, np.int64)
        self._first_rows: list[int] = self._groups[:, 0].tolist()
        labels, people, notes = self._read_labels(path)
        super().__init__(
            path=Path(path),
            labels=labels,
            people=people,
            image_size=image_size,
            on_bad_image=on_bad_image,
            notes=[*notes, *self._size_note(size, rows)],
        )

    def encoded(self, index: int, /) -> Encoded:
        image = self._image(index)
        is_struct = isinstance(image, require_pyarrow().StructScalar)
        return memoryview((image["bytes"] if is_struct else image).as_buffer() or b"")

    def location(self, index: int, /) -> str:
        start, number, _ = self._groups[self._group(index)].tolist()
        first = start - int(self._groups[self._groups[:, 1] == number, 0][0])
        return f"{printable(self._files[number])}, row {index - start + first}"

    def name(self, index: int, /) -> str:
        image = self._image(index)
        is_struct = isinstance(image, require_pyarrow().StructScalar)
        stored = image["path"].as_py() if is_struct and "path" in image else None
        if not (stored and stored.startswith(f"{self.person(index)}/")):
            stored = f"{index:08d}{ending_of(self.encoded(index))}"
        return file_name(self.person(index), stored)

    def __getstate__(self) -> dict[str, Any]:
        dropped = ("_local", "_lock", "_held", "_held_bytes")
        return {key: value for key, value in self.__dict__.items() if key not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Any] = OrderedDict()
        self._held_bytes = 0

    # -- row groups ------------------------------------------------------------------------------

    def _group(self, index: int) -> int:
        return bisect_right(self._first_rows, index) - 1

    def _image(self, index: int) -> Any:
        """What the column `image` holds for an image: a pyarrow scalar, without a copy."""
        group = self._group(index)
        with self._lock:
            images = self._held.get(group)
            if images is not None:
                self._held.move_to_end(group)
        if images is None:
            images = self._read_group(group)
            self._hold(group, images)
        try:
            return images[index - self._first_rows[group]]
        except IndexError:
            raise ValueError(
                f"{self.location(index)}: the row group has fewer rows than it says"
            ) from None

    def _read_group(self, group: int) -> Any:
        _, number, within = self._groups[group].tolist()
        try:
            table = self._open(number).read_row_group(within, columns=["image"], use_threads=False)
        except (ValueError, OSError, require_pyarrow().ArrowException) as error:
            raise ValueError(
                f"{printable(self._files[number])}: row group {within} is damaged ({error}); copy "
                "the file again"
            ) from None
        return table.column(0)

    def _hold(self, group: int, images: Any) -> None:
        with self._lock:
            if group in self._held:
                return
            self._held[group] = images
            self._held_bytes += images.nbytes
            while self._held_bytes > self._budget and len(self._held) > 1:
                _, oldest = self._held.popitem(last=False)
                self._held_bytes -= oldest.nbytes

    def _open(self, number: int) -> Any:
        # One for each thread: pyarrow's readers are not made to be shared.
        opened: dict[int, Any] = self._local.__dict__.setdefault("opened", {})
        if number not in opened:
            file = self._files[number]
            try:
                opened[number] = require_pyarrow().parquet.ParquetFile(file, memory_map=True)
            except require_pyarrow().ArrowException:  # also what it has not implemented
                raise ValueError(
                    f"{printable(file)} is not a Parquet file, or cut short; copy it again"
                ) from None
        return opened[number]

    def _size_note(self, size: int, rows: int) -> list[str]:
        if size <= self._budget or rows <= 128 * len(self._groups):
            return []
        return [
            f"the images ({size / _GB:.1f} GB) do not fit into data.memory_gb="
            f"{self._budget / _GB:g}, and each is read with the {rows // len(self._groups)} others "
            "of its row group; 'sphereface2 convert' to .rec or Parquet makes this quick"
        ]

    # -- labels ----------------------------------------------------------------------------------

    def _read_labels(self, path: str) -> tuple[NDArray[np.int64], list[str], list[str]]:
        arrow = require_pyarrow()
        schema = self._open(0).schema_arrow
        column = next(name for name in _LABELS if name in schema.names)
        names = ["label", "person"] if {"label", "person"} <= set(schema.names) else [column]
        table = arrow.concat_tables(
            self._open(number).read(columns=names, use_threads=False)
            for number in range(len(self._files))
        )
        values = table.column(column)
        if values.null_count:
            raise ValueError(f"{printable(path)}: {values.null_count} rows have no {column}")
        if arrow.types.is_integer(values.type):
            labels, numbers = classes_of_numbers(values.to_numpy(), self.location)
            people = [str(number) for number in numbers.tolist()]
            if len(names) == 2:
                people = _names_of(labels, *_coded(table.column("person")), people)
            else:
                people = _class_names(schema, numbers, people)
            return labels, people, gaps_note(numbers)
        codes, texts = _coded(values)
        classes, people = classes_of_texts(
            texts, lambda code: self.location(int(np.flatnonzero(codes == code)[0]))
        )
        return classes[codes], people, []


def _parquet_files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(path.rglob("*.parquet"))
        if not files:
            raise ValueError(f"data.path: no .parquet files in {printable(path)}")
        return files
    if not path.is_file():
        raise FileNotFoundError(f"data.path: there is no file or folder {printable(path)}")
    return [path]


def _require_columns(file: str, schema: Any) -> None:
    arrow = require_pyarrow()
    kind = schema.field("image").type if "image" in schema.names else None
    if kind is not None and arrow.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        kind = kind.field(place).type if place >= 0 else None
    is_image = kind in (arrow.binary(), arrow.large_binary())
    labels = (schema.field(name).type for name in _LABELS if name in schema.names)
    label = next(labels, arrow.null())
    is_text = label in (arrow.string(), arrow.large_string())
    if not is_image or not (is_text or arrow.types.is_integer(label)):
        raise ValueError(
            f"{printable(file)} has the columns {', '.join(schema.names)}; expected 'image' with "
            "encoded images (binary, or a struct with 'bytes') and 'label' (whole numbers or "
            "names), 'person' or 'name'"
        )


def _coded(column: Any) -> tuple[NDArray[np.int64], list[str]]:
    """A number for each row, and the text of each number: no Python text for each row."""
    coded = column.fill_null("").dictionary_encode().unify_dictionaries()
    texts: list[str] = coded.chunk(0).dictionary.to_pylist()
    codes = [chunk.indices.to_numpy() for chunk in coded.chunks]
    return np.concatenate(codes).astype(np.int64), texts


def _names_of(
    labels: NDArray[np.int64], codes: NDArray[np.int64], texts: list[str], numbers: list[str]
) -> list[str]:
    """The person of each class, if each class has one name and no two the same."""
    known = labels >= 0
    code_of = np.zeros(len(numbers), np.int64)
    code_of[labels[known]] = codes[known]
    people = [texts[code] for code in code_of.tolist()]
    is_one = bool((code_of[labels[known]] == codes[known]).all())
    return people if is_one and all(people) and len(set(people)) == len(people) else numbers


def _class_names(schema: Any, numbers: NDArray[np.int64], people: list[str]) -> list[str]:
    """The names that Hugging Face keeps for the numbers, if it does."""
    try:
        features = parse_json(schema.metadata[b"huggingface"])["info"]["features"]
        names = features["label"]["names"]
        return [str(names[number]) for number in numbers.tolist()]
    except (KeyError, TypeError, IndexError, ValueError):
        return people
