"""The whole result of an inspection: of the data, and of the labels where a model was given."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from sphereface2.data.inspection import Inspection
from sphereface2.evaluation.mislabelled import MislabelledResult
from sphereface2.evaluation.results import write_atomically


@dataclass(frozen=True)
class Inspected:
    """What `sphereface2 inspect` found; it round-trips through JSON."""

    title: str
    data: Inspection
    model: str | None = None
    labels: MislabelledResult | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

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
            raise FileNotFoundError(f"{path} does not exist; `sphereface2 inspect DATA` writes it")
        try:
            return cls.from_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ValueError(
                f"{path} is not the result of an inspection ({where}: {first['msg'].lower()}); "
                "inspect the data again"
            ) from None
