"""Results as JSON files: written whole or not at all, and read back with a sentence if wrong."""

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Self

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True)
class JsonResult:
    """A frozen dataclass that round-trips through JSON."""

    IS: ClassVar[str] = "a result"
    """What the file holds, for messages."""
    WRITTEN_BY: ClassVar[str] = "sphereface2"
    """The command that writes such a file."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return TypeAdapter(cls).validate_json(text)

    def save(self, path: Path) -> None:
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Self:
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist; `{cls.WRITTEN_BY}` writes it")
        try:
            return cls.from_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ValueError(
                f"{path} is not {cls.IS} ({where}: {first['msg'].lower()}); "
                f"make it again with `{cls.WRITTEN_BY}`"
            ) from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write to a file beside `path`, then rename: a reader finds the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        Path(temporary).chmod(0o644)  # mkstemp gives 0600, unlike every other file of a run
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            # A write that fails, on a full disk say, does not know the name of its file.
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
