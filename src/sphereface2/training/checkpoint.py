"""Checkpoints: all that a run needs to go on with the same bits, in one file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from sphereface2.config import RunConfig

_FORMAT = "sphereface2 checkpoint 1"

# What may differ when a run goes on: where and how it computes, not what.
_FREE = ("device", "evaluation")
_FREE_TRAINING = ("workers", "evaluate_every", "checkpoint_every", "log_every", "tensorboard")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after `step` updates.

    No state of random numbers is among it: every random choice of a run is a function of its seed
    and the step, and the seed stands in the settings.
    """

    step: int
    settings: dict[str, Any]
    """What determines the run, as `run_settings` gives it."""
    backbone: dict[str, Any]
    head: dict[str, Any]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    best_metric: float | None = None
    best_step: int | None = None
    evaluated_step: int = 0
    """The step of the last evaluation."""
    loss_sum: float = 0.0
    """Over the `loss_steps` steps since the last record."""
    loss_steps: int = 0
    seconds: float = 0.0
    """Time spent on the run so far."""


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file whole or not at all: a kill on the way leaves the file before as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    values = {field.name: getattr(checkpoint, field.name) for field in fields(checkpoint)}
    with partial.open("wb") as file:
        torch.save({"format": _FORMAT, **values}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, to the CPU; a file that is none gives a ValueError of one sentence."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}; start the training anew")
    try:
        # weights_only: a file from a stranger can hold tensors and numbers, but run no code.
        values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch raises some ten kinds of error for a broken file
        raise ValueError(
            f"{path} is damaged or no checkpoint; restore it or start the training anew"
        ) from None
    if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
        raise ValueError(f"{path} is no checkpoint of this version of sphereface2")
    try:
        return Checkpoint(**values)
    except TypeError:
        raise ValueError(f"{path} is no checkpoint of this version of sphereface2") from None


def run_settings(config: RunConfig, *, images: int) -> dict[str, Any]:
    """What determines the numbers of a run, as dotted keys: other settings make another run."""
    values = config.model_dump(mode="json", exclude=set(_FREE))
    for key in _FREE_TRAINING:
        values["training"].pop(key)
    return {**_dotted(values), "number of images": images}


def check_settings(checkpoint: Checkpoint, settings: Mapping[str, Any], path: Path) -> None:
    """A ValueError that names the first setting by which the checkpoint's run is another one."""
    for key in sorted({*checkpoint.settings, *settings}):
        before, now = checkpoint.settings.get(key), settings.get(key)
        if before != now:
            raise ValueError(
                f"{path} belongs to a run with {key}={before}, here it is {now}; a run goes on "
                "only with the settings that it began with"
            )


def _dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_dotted(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
