"""A config whose data may still be missing: what the user has yet to give is left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphereface2.config import REQUIRED, RunConfig, config_from_mapping
from sphereface2.estimating.known_data import KNOWN_DATA, KnownData, known_data_of
from sphereface2.recipes import read_run

NOT_GIVEN = "(not given yet)"
"""Stands in a planned config where the recipe has ???."""


@dataclass(frozen=True)
class PlannedRun:
    """A checked config, and the public set that its recipe is made for."""

    config: RunConfig
    known_data: KnownData | None


def plan_run(source: str | Path, overrides: Sequence[str] = ()) -> PlannedRun:
    """As `load_config`, but values that only the user can know may still be open."""
    values = _opened(read_run(source, overrides))
    key = known_data_of(str(source))
    return PlannedRun(config_from_mapping(values), None if key is None else KNOWN_DATA[key])


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _opened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_opened(inner) for inner in value]
    return NOT_GIVEN if value == REQUIRED else value
