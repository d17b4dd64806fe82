"""What every protocol's result has: a name, its conventions, its numbers; and it lives as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from sphereface2.evaluation.operating import Measure
from sphereface2.evaluation.results import write_atomically


@dataclass(frozen=True)
class ProtocolResult:
    """protocol: its name; conventions: what was counted how, printed beside the numbers."""

    protocol: str
    conventions: tuple[str, ...]

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Every number, in the order in which it is printed."""
        return ()

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
            raise FileNotFoundError(
                f"{path} does not exist; `sphereface2 evaluate --protocol NAME` writes it"
            )
        try:
            return cls.from_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ValueError(
                f"{path} is not a result of this protocol ({where}: {first['msg'].lower()}); "
                "evaluate again"
            ) from None
