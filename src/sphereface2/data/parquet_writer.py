"""Parquet files with an image in each row, in row groups small enough to read at random."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sphereface2.data.image_file import Encoded, printable
from sphereface2.machine import install_command

ROWS_PER_GROUP = 64
"""Whoever asks for one image reads a row group: 64 crops are about half a megabyte."""

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


class ParquetWriter:
    """Writes one .parquet file with the columns image {bytes, path}, label and person.

    Leaving the `with` block without an error completes the file. Otherwise nothing is left: a
    Parquet file without its end cannot be gone on with, so write several files where that counts.
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
        """Write the last rows and the footer, and give the file its name."""
        if self._rows:
            self._write_group()
        self._file.close()
        self._file = None
        self.part.replace(self.path)

    def close(self) -> None:
        """Give up what is not finished; nothing after `finish`."""
        if self._file is None:
            return
        try:
            self._file.close()
        finally:
            self._file = None
            self.part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def _write_group(self) -> None:
        self._file.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []
