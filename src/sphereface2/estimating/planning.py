"""A config whose data may still be missing: what the user has yet to give is left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphereface2.config import REQUIRED, RunConfig, config_from_mapping
from sphereface2.public_data.known_data import KNOWN_DATA, KnownData, known_data_of
from sphereface2.recipes import read_run

NOT_GIVEN = "/(not given yet)"
"""Stands in a draft where the recipe has ???; absolute, so that it stays as it is."""


@dataclass(frozen=True)
class DraftConfig:
    """A checked config, and the public set that its recipe is made for."""

    config: RunConfig
    known_data: KnownData | None


def plan_run(source: str | Path, overrides: Sequence[str] = ()) -> DraftConfig:
    """As `load_config`, but values that only the user can know may still be open."""
    values = _opened(read_run(source, overrides))
    known = known_data_of(str(source))
    return DraftConfig(config_from_mapping(values), KNOWN_DATA[known[0]] if known else None)


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _opened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_opened(inner) for inner in value]
    return NOT_GIVEN if value == REQUIRED else value
