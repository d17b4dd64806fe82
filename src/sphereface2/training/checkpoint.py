"""Checkpoints: all that a run needs to resume with the same bits, in one folder.

A folder holds the tensors as torch.distributed.checkpoint writes them, a file for each rank that
took part, and checkpoint.json with everything else and with the size and the digest of each file,
itself included.
Any number of ranks can read it. It comes under its name whole: it is written beside, as
NAME.partial, while the one before keeps its place.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sphereface2.backbones import BACKBONES
from sphereface2.config.schema import RunConfig
from sphereface2.data.augmentation import AUGMENTATIONS
from sphereface2.files import (
    naming,
    parse_json,
    put_in_place,
    remove,
    whole_folder,
    write_atomically,
)
from sphereface2.heads import HEADS
from sphereface2.training.distributed import ALONE, Team, saved_shapes
from sphereface2.training.result import ModelStep

FOLDER = "checkpoints"  # of a run, with last and best
_FORMAT = "sphereface2 checkpoint 3"
_FACTS = "checkpoint.json"
_INDEX = ".metadata"  # torch.distributed.checkpoint's own name

# What may change when a run is resumed, as keys or beginnings of keys: where and how it computes...
_FREE = (
    "data.on_bad_image",
    "data.path",
    "data.root",
    "device",
    "evaluation.",
    "open_set.data.on_bad_image",
    "open_set.data.path",
    "open_set.data.root",
    "training.accumulate",
    "training.checkpoint_every",
    "training.discriminant",
    "training.evaluate_every",
    "training.log_every",
    "training.tensorboard",
    "training.worker",
)
# ... and what the steps to come are like.
_LENGTH = ("training.epochs", "training.steps")
_LATER = (
    *_LENGTH,
    "augmentation.",
    "optimizer.",
    "precision",
    "schedule.",
    "training.clip_norm",
    "training.compile",
)
# All else may not change, nor may these; the reasons.
_FIXED = {
    "augmentation.reshape": "the saved class weights are of the people whom it makes",
    "backbone.": "the saved weights are of that network",
    "data.": "the steps so far have seen those images",
    "evaluation.set_aside": "the steps so far have seen the others' images",
    "head.": "the saved class weights were learned by that loss",
    "label_noise": "the steps so far have seen those labels",
    "open_set": "the steps so far have seen those images",
    "optimizer.fused_head": "the saved momentum is in its order",
    "optimizer.name": "the saved momentum is of that optimiser",
    "preprocessing": "the saved weights are of a network that sees pixels so",
    "seed": "all random choices of the steps so far come from it",
    "training.start": "weights to start from are read once, when a run begins",
    "training.": "it is part of what a step is",
}
# What is known of the images besides the config, in the order in which it is compared.
_IMAGES = ("number of classes", "number of images", "digest of the labels")


@dataclass
class Checkpoint:
    """The state of a run after `step` updates, its tensors aside; the trainer's own as it goes.

    No state of random numbers is among it: every random choice of a run is a function of its seed
    and the step, and the seed is in the settings. So is the position in the data.
    """

    settings: dict[str, Any]
    """The run's config and what its images are, as `run_settings` gives it."""
    step: int = 0
    scaler: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    """Whether this is the end of the training, evaluated where that was asked for."""
    best_metric: float | None = None
    best_step: int | None = None
    evaluations: int = 0
    """Among which that one is the best."""
    judged_on: list[str] = field(default_factory=list)
    """The sets of those evaluations."""
    own_sets: bool = False
    """Whether those sets serve only to choose a step."""
    evaluated_step: int = 0
    """The step of the last evaluation."""
    loss_sum: float = 0.0
    """Over the `loss_steps` steps since the last record."""
    loss_steps: int = 0
    seconds: float = 0.0
    """Time spent on the run so far."""
    start: dict[str, str] | None = None
    """Which weights the network started from: their name, SHA-256 and kind."""

    def best_of(self, steps: int, *, step: int | None = None) -> ModelStep:
        """The best step, or `step` where it was that, of a training of so many steps."""
        return ModelStep(
            "best",
            step or self.best_step or 0,
            steps,
            self.evaluations,
            tuple(self.judged_on),
            own_sets=self.own_sets,
            accuracy=self.best_metric,
        )


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint of this name."""
    return whole_folder(folder).exists()


def save_checkpoint(
    folder: Path,
    checkpoint: Checkpoint,
    tensors: Mapping[str, Tensor],
    *,
    rows: Mapping[str, int] | None = None,
    team: Team = ALONE,
) -> None:
    """Write the checkpoint whole or not at all: a kill on the way leaves the one before.

    All ranks take part; `rows` names the tensors of which each holds some rows, and how many rows
    those have in all.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    with team.together():
        if team.is_first:
            remove(partial)
            partial.mkdir(parents=True)
    team.save_tensors(partial, tensors, rows=rows or {})
    mine: dict[str, list[Any]] = {}
    with team.together():
        for path in sorted(partial.iterdir()):
            # Each rank reads what it wrote itself, rank 0 also the index of all.
            if path.name.startswith(f"__{team.rank}_") or (path.name == _INDEX and team.is_first):
                mine[path.name] = [path.stat().st_size, _digest(path)]
    files = {name: entry for each in team.gather(mine) for name, entry in each.items()}
    with team.together():
        if team.is_first:
            facts = {"format": _FORMAT, "files": files, **asdict(checkpoint)}
            facts["digest"] = _facts_digest(facts)
            write_atomically(partial / _FACTS, json.dumps(facts, indent=1))
            put_in_place(partial, folder)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read all but the tensors; a folder that is not a whole checkpoint gives one sentence."""
    checkpoint, files = _read_facts(folder)
    place = whole_folder(folder)
    for name, (size, _) in files.items():
        path = place / name
        if not path.is_file() or path.stat().st_size != size:
            found = f"has {path.stat().st_size} bytes" if path.is_file() else "is missing"
            raise _damaged(place, f": its file {name} of {size} bytes {found}")
    return checkpoint


def _read_facts(folder: Path) -> tuple[Checkpoint, dict[str, tuple[int, str]]]:
    """All but the tensors, and the size and the digest of each file with tensors."""
    place = whole_folder(folder)
    if not place.exists():
        raise FileNotFoundError(f"there is no checkpoint {folder}; start the training again")
    try:
        with naming(place / _FACTS):
            values = parse_json((place / _FACTS).read_text(encoding="utf-8"))
        # Earlier ones have none; and if a flipped bit hides its name, that name is not known.
        digest = values.pop("digest", None)
        if digest and values["format"] == _FORMAT and digest != _facts_digest(values):
            raise ValueError(f"{_FACTS} is not as it was written")
        written, files = values.pop("format"), values.pop("files")
        checkpoint = Checkpoint(**values) if written == _FORMAT else None
        entries = (
            {name: (size, digest) for name, (size, digest) in files.items()} if checkpoint else {}
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(place, " or no checkpoint") from None
    if checkpoint is None:
        raise ValueError(
            f"{place} is a checkpoint of another version of sphereface2 ({written}, this version "
            f"reads {_FORMAT}): resume the run with that version, or start the training again"
        )
    return checkpoint, entries


def load_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    rows: Mapping[str, int] | None = None,
    team: Team = ALONE,
    part: str | tuple[str, ...] = "",
) -> None:
    """Fill the tensors in place with those of a checkpoint, by whatever ranks it was saved.

    All of its tensors must be asked for, or all whose names begin with `part`; if names or shapes
    differ, nothing is filled.
    """
    rows = rows or {}
    place = whole_folder(folder)
    with team.together():
        _check_digests(folder, share=(team.rank, team.world))
        try:
            with naming(place):
                saved = {k: v for k, v in saved_shapes(place).items() if k.startswith(part)}
        except OSError:
            raise
        except Exception:  # a broken pickle raises any kind of error
            raise _damaged(place, ": its index cannot be read") from None
        for name in sorted({*saved, *tensors}):
            _check_fit(place, name, saved.get(name), tensors.get(name), rows.get(name))
    team.load_tensors(place, tensors, rows=rows)


def _check_digests(folder: Path, *, share: tuple[int, int]) -> None:
    """Refuse files that are not those that were saved; the ranks share the reading."""
    rank, world = share
    place, (_, files) = whole_folder(folder), _read_facts(folder)
    for name in sorted(files)[rank::world]:
        if not (place / name).is_file() or _digest(place / name) != files[name][1]:
            what = "is not the one that was saved (it is of another checkpoint, or was changed)"
            raise _damaged(place, f": its file {name} {what}")


def _damaged(place: Path, how: str) -> ValueError:
    return ValueError(f"{place} is damaged{how}; restore it or start the training again")


def _facts_digest(facts: Mapping[str, Any]) -> str:
    """Of checkpoint.json without this digest: one flipped bit makes another step of a 4."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file, naming(path):
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_fit(
    place: Path, name: str, saved: tuple[int, ...] | None, mine: Tensor | None, rows: int | None
) -> None:
    fits_not = f"{place} does not fit this backbone and head"
    if mine is None:
        raise ValueError(f"{fits_not}: it has {name}, which is not in them")
    wanted = tuple(mine.shape) if rows is None else (rows, *mine.shape[1:])
    if saved is None:
        raise ValueError(f"{fits_not}: it lacks {name}")
    if saved != wanted:
        raise ValueError(f"{fits_not}: {name} is of shape {saved}, not {wanted}")


def run_settings(config: RunConfig, *, classes: int, labels: NDArray[np.int64]) -> dict[str, Any]:
    """The config as dotted keys, and what is known of the images."""
    digest = hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()
    images = dict(zip(_IMAGES, (classes, len(labels), digest), strict=True))
    return {**config_settings(config), **images}


def config_settings(config: RunConfig) -> dict[str, Any]:
    """The config as dotted keys."""
    return dotted(config.model_dump(mode="json"))


@dataclass(frozen=True)
class Change:
    """A setting that a run is resumed with and did not have before."""

    key: str
    old: Any
    new: Any

    @property
    def changes_steps(self) -> bool:
        """Whether the steps to come are others because of it."""
        return self.key.startswith(_LATER)

    @property
    def names_images(self) -> bool:
        """Whether other images could be read because of it."""
        return self.key.startswith(("data.", "evaluation.", "open_set."))

    @property
    def changes_length(self) -> bool:
        return self.key in _LENGTH

    def __str__(self) -> str:
        return f"{self.key} {_text(self.old)} -> {_text(self.new)}"


def differing_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """What of the config is another than before; names first, since options come with them."""
    keys = sorted({*before, *now} - set(_IMAGES), key=lambda key: (not key.endswith(".name"), key))
    both = [Change(key, before.get(key), now.get(key)) for key in keys]
    return [
        each
        for each in both
        if each.old != each.new and (each.key in before or not _as_without(each, now))
    ]


# Sections that name one of a table and have its options beside the name.
_CHOICES: Mapping[str, Mapping[str, Callable[..., object]]] = {
    "augmentation": AUGMENTATIONS,
    "backbone": BACKBONES,
    "head": HEADS,
}


def _as_without(change: Change, now: Mapping[str, Any]) -> bool:
    """Whether an option that was not there when a run began is now as if it still were not."""
    section, _, option = change.key.partition(".")
    choice = _CHOICES.get(section, {}).get(now.get(f"{section}.name", ""))
    parameter = inspect.signature(choice).parameters.get(option) if choice else None
    return not change.new or (parameter is not None and change.new == parameter.default)


def changed_settings(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    run: Path,
    overrides: Sequence[str] | None = None,
) -> list[Change]:
    """What of the config is another than before; a ValueError for what may not change.

    overrides: with which the run's own config.yaml becomes `now`, where they are known
    """
    changes = differing_settings(before, now)
    # Weights to start from bring further changes with them, of which nobody asked.
    for change in sorted(changes, key=lambda each: each.key != "training.start_from"):
        key, old, new = change.key, _text(change.old), _text(change.new)
        may_change = key.startswith((*_FREE, *_LATER))
        if not may_change or key in _FIXED:
            reason = next((why for start, why in _FIXED.items() if key.startswith(start)), "")
            words = [f"{key}={new}"] if overrides is None else overrides
            raise ValueError(
                f"{key} was {old} when {run} began and cannot become {new}: {reason}; leave it at "
                f"{old}, or train another run: "
                + shlex.join(["sphereface2", "train", str(run), *words, "--output", "NEW"])
            )
    return changes


def check_settings(checkpoint: Checkpoint, settings: Mapping[str, Any], path: Path) -> None:
    """A ValueError that names the first setting by which the checkpoint's run is another one."""
    run = path.parent.parent
    changed_settings(checkpoint.settings, settings, run=run)
    for key in _IMAGES:
        before, now = checkpoint.settings.get(key), settings.get(key)
        if before != now:
            where = settings.get("data.path")
            raise ValueError(
                f"{'the data' if where is None else where} cannot be what {run} was trained on: "
                f"the {key} was {before} and is {now}; give its own images with data.path=PATH, or "
                "train another run"
            )


def require_same_people(checkpoint: Checkpoint, settings: Mapping[str, Any], run: Path) -> None:
    """A ValueError where the class weights of a checkpoint are not of the people of these images.

    settings: of the new run, as `run_settings` gives them
    """
    for key in _IMAGES:
        before, now = checkpoint.settings.get(key), settings.get(key)
        if before != now:
            raise ValueError(
                f"training.start_classes=same: the class weights of {run} are of other people: the "
                f"{key} was {before} there and is {now} here; training.start_classes=means makes "
                "them from the images"
            )


def _text(value: Any) -> str:
    """A value as in key=value."""
    return value if isinstance(value, str) else json.dumps(value)


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(dotted(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
