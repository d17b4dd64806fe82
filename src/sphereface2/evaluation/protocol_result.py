"""What every protocol's result has: a name, its conventions, its numbers; and it lives as JSON."""

from dataclasses import dataclass, field
from typing import ClassVar

from sphereface2.evaluation.json_result import JsonResult
from sphereface2.evaluation.operating import Measure


@dataclass(frozen=True)
class ProtocolResult(JsonResult):
    """protocol: its name; conventions: what was counted how, printed beside the numbers.

    missing_images: how many were left out because they have no embedding
    """

    IS: ClassVar[str] = "a result of this protocol"
    WRITTEN_BY: ClassVar[str] = "sphereface2 evaluate --protocol NAME"

    protocol: str
    conventions: tuple[str, ...]
    missing_images: int = field(default=0, kw_only=True)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Every number, in the order in which it is printed."""
        return ()
