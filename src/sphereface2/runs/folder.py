"""The folder of a run: what is in it under which name, and who may write there."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sphereface2.config.schema import RunConfig, dump_config, load_config
from sphereface2.data.mixing import NoisyLabels
from sphereface2.data.sources.source import BadImage
from sphereface2.evaluation.pair_scores import SCORES
from sphereface2.files import (
    Lock,
    LockedError,
    file_lock,
    parse_json,
    read_note,
    remove,
    remove_replaced,
    write_atomically,
)
from sphereface2.models.folder import CONFIG as MODEL_CONFIG
from sphereface2.models.folder import IN_RUN, RUN_CONFIG, RUN_LOCK, WEIGHTS
from sphereface2.training.checkpoint import FOLDER, Change

CONFIG = RUN_CONFIG
METRICS = "metrics.jsonl"
CHANGES = "changes.jsonl"
CHECKPOINTS = FOLDER
TENSORBOARD = "tensorboard"
MODEL = IN_RUN
EVALUATION = "evaluation.json"
EVALUATION_OF = "evaluation-"  # last or best: what `evaluate --checkpoint` writes
REPORT = "report.html"
LABEL_NOISE = "label_noise.csv"
BAD_IMAGES = "bad_images.txt"
CALIBRATION = "calibration.png"
LOCK = RUN_LOCK
# What was found about its model.
_JUDGEMENTS = (
    EVALUATION,
    f"{EVALUATION_OF}last",
    f"{EVALUATION_OF}best",
    SCORES,
    REPORT,
    CALIBRATION,
)
# All that a run writes: what --overwrite may remove, and nothing else.
PRODUCTS = (
    CONFIG,
    METRICS,
    CHANGES,
    CHECKPOINTS,
    TENSORBOARD,
    MODEL,
    LABEL_NOISE,
    BAD_IMAGES,
    *_JUDGEMENTS,
)


@contextmanager
def run_lock(folder: Path, *, patience: float = 1.0) -> Iterator[Lock]:
    """Own a run folder, as one process, or rank 0 of several, may at a time.

    patience: in seconds; a sweep that looks whether a run is free has its lock for an instant
    """
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(file_lock(folder / LOCK, patience=patience))
        except LockedError:
            owner = read_note(folder / LOCK, patience=patience)
            if not {"pid", "host"} <= owner.keys():
                raise LockedError(
                    f"another process trains in {folder}, or did a moment ago; try again"
                ) from None
            pid, host = owner["pid"], owner["host"]
            raise LockedError(
                f"process {pid} on {host} is training here: {folder} is its own until it ends; "
                f"wait for it, or stop it there with 'kill {pid}', which keeps a checkpoint"
            ) from None
        for place in (MODEL, f"{CHECKPOINTS}/last", f"{CHECKPOINTS}/best"):
            remove_replaced(folder / place)  # left by an owner that was killed
        yield lock


def refuse_used_folder(folder: Path) -> None:
    """A ValueError where a run, or a file, is in the way of a new run."""
    found = [product for product in PRODUCTS if (folder / product).exists()]
    # A run that was stopped before it had its config leaves no more than an empty folder.
    if found and (found != [CHECKPOINTS] or any((folder / CHECKPOINTS).iterdir())):
        raise ValueError(
            f"{folder} already holds a run ({', '.join(found)}): resume it with "
            f"'sphereface2 resume {folder}', choose another --output, or replace it "
            "with --overwrite"
        )


def refuse_foreign_folder(folder: Path) -> None:
    """A ValueError where --overwrite would remove what no run of ours has written."""
    found = [product for product in PRODUCTS if (folder / product).exists()]
    if not found:
        return
    is_ours = (folder / CHECKPOINTS).is_dir() or (folder / METRICS).is_file()
    try:
        run_config(folder)
    except (ValueError, OSError):
        is_ours = False
    if not is_ours:
        raise ValueError(
            f"{folder} holds {', '.join(found)}, but not as a run of sphereface2: --overwrite "
            "removes runs only; choose another --output"
        )
    own = {
        CHECKPOINTS: ("last*", "best*"),
        TENSORBOARD: ("events.out.tfevents.*",),
        MODEL: (WEIGHTS, MODEL_CONFIG),
    }
    for name, patterns in own.items():
        for path in sorted((folder / name).glob("*")):
            if not any(path.match(pattern) for pattern in patterns):
                raise ValueError(
                    f"{path} is not the run's own: --overwrite would remove it; move it, or choose "
                    "another --output"
                )


def refuse_data_folder(folder: Path, config: RunConfig) -> None:
    """A ValueError where a run would be written among the images that it is trained on.

    Or over the weights that it starts from, which --overwrite would remove.
    """
    start, run = config.training.start_from, folder.resolve()
    if start is not None:
        weights = Path(start).resolve()
        if weights.is_relative_to(run) or run.is_relative_to(weights):
            where = "is in it" if weights.is_relative_to(run) else "holds it"
            raise ValueError(
                f"{folder} cannot be the run's folder: training.start_from={start} {where}; choose "
                "another --output"
            )
    choices = [config.data, *([] if config.open_set is None else [config.open_set.data])]
    for path in (choice.options.get("path") for choice in choices):
        if path is None or not Path(str(path)).is_dir():
            continue
        data = Path(str(path)).resolve()
        if data.is_relative_to(run) or run.is_relative_to(data):
            raise ValueError(
                f"{folder} cannot be the run's folder: the training images are in {path}; choose "
                "an --output outside of it that does not hold it"
            )


def run_config(folder: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of a run; its folder may be called like a recipe."""
    return load_config(require_run(folder) / CONFIG, overrides)


def change_config(folder: Path, config: RunConfig, changes: Sequence[Change], *, step: int) -> None:
    """Write the config that a run is resumed with, and when and at which step it changed."""
    if not changes:
        return
    write_atomically(folder / CONFIG, dump_config(config))
    history = read_changes(folder)
    # A run that was killed before its next checkpoint finds the same changes again.
    known = {entry.get("key"): (entry.get("step"), entry.get("new")) for entry in history}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for change in changes:
        if known.get(change.key) != (step, change.new):
            history.append({"time": now, "step": step, **asdict(change)})
    write_atomically(folder / CHANGES, "".join(f"{json.dumps(entry)}\n" for entry in history))


def read_changes(folder: Path) -> list[dict[str, Any]]:
    """What was changed when the run was resumed: time, step, key, old and new."""
    return _read_lines(folder / CHANGES)


def is_exported(folder: Path, *, steps: int, discriminant: bool) -> bool:
    """Whether the model of a training of so many steps is there, whole and with such axes."""
    try:
        extra = parse_json((folder / MODEL / MODEL_CONFIG).read_bytes())["extra"]
        is_such = extra["steps"] == steps and extra.get("discriminant", False) == discriminant
        return is_such and (folder / MODEL / WEIGHTS).is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def remove_judgements(folder: Path) -> None:
    """Remove what was found about a model that is about to be replaced."""
    for name in _JUDGEMENTS:
        remove(folder / name)


def require_run(folder: Path) -> Path:
    """The folder itself, if a run is in it."""
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} is not a run folder: it has no {CONFIG}; 'sphereface2 train' makes one"
        )
    return folder


def remove_products(folder: Path) -> None:
    """Remove what a run has written, and nothing else."""
    for product in PRODUCTS:
        remove(folder / product)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return _read_lines(folder / METRICS)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [parse_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


def keep_manifest(folder: Path, noisy: NoisyLabels) -> None:
    """Write down which labels were drawn; those of a resumed run must be the same."""
    path, manifest = folder / LABEL_NOISE, _writable(noisy.manifest())
    if not path.exists():
        write_atomically(path, manifest)
    elif path.read_bytes() != manifest.encode("utf-8"):
        raise ValueError(
            f"{path} lists other labels than label_noise gives for these images: the data has "
            "changed since the run began; restore it or start the training again"
        )


def list_bad_images(folder: Path, bad: Sequence[BadImage]) -> None:
    """Write down the images that were passed over, where there are any."""
    lines = [f"{each.location}: {each.reason}\n" for each in sorted(bad, key=lambda b: b.index)]
    if lines or (folder / BAD_IMAGES).exists():
        write_atomically(folder / BAD_IMAGES, _writable("".join(lines)))


def _writable(text: str) -> str:
    """The text with file names that are not UTF-8 in escaped form."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
