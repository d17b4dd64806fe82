"""The whole result of an inspection: of the data, and of the labels where a model was given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sphereface2.data.inspecting.inspection import Inspection
from sphereface2.evaluation.json_result import JsonResult
from sphereface2.evaluation.mislabelled import MislabelledResult


@dataclass(frozen=True)
class Inspected(JsonResult):
    """What `sphereface2 inspect` found."""

    IS: ClassVar[str] = "the result of an inspection"
    WRITTEN_BY: ClassVar[str] = "sphereface2 inspect DATA"

    title: str
    data: Inspection
    model: str | None = None
    labels: MislabelledResult | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
