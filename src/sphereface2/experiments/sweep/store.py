"""The store of runs: what the folder of a run holds, and the result of a sweep from all of them."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from sphereface2.config.schema import RunConfig, config_from_mapping, dump_config, load_config
from sphereface2.evaluation.experiment_results import SeedRun, SweepResult, SweepRow
from sphereface2.evaluation.pair_scores import COMBINED
from sphereface2.evaluation.verification import EvaluationResult
from sphereface2.experiments.sweep.board import Position, RunState
from sphereface2.experiments.sweep.plan import PlannedRun, Sweep, by_hand, train_command
from sphereface2.files import Lock, read_note, write_atomically
from sphereface2.runs.folder import CHECKPOINTS, CONFIG, EVALUATION, LOCK
from sphereface2.training.checkpoint import (
    Checkpoint,
    config_settings,
    has_checkpoint,
    load_checkpoint,
)
from sphereface2.training.events import Events

LOG = "log.txt"
_NOTE_EVERY = 0.5  # seconds


def as_stored(planned: Sequence[PlannedRun], runs: Path) -> list[PlannedRun]:
    """The planned runs, each under the name that it has in the store if it is there.

    A version of the package with more options names the same run otherwise, since its config says
    more; what was trained before must not be trained again for that.
    """
    older: dict[str, Path] = {}
    if not all((runs / run.name).exists() for run in planned):
        for path in sorted(runs.glob(f"*/{CONFIG}")):
            with suppress(ValueError, OSError):  # another's folder, or half written
                older[dump_config(load_config(path))] = path
    return [
        replace(run, name=found.parent.name, config_yaml=found.read_text(encoding="utf-8"))
        if not (runs / run.name).exists() and (found := older.get(run.config_yaml)) is not None
        else run
        for run in planned
    ]


def require_own_config(folder: Path, run: PlannedRun) -> None:
    """A ValueError if its folder holds something other than this run."""
    path = folder / CONFIG
    if path.exists() and path.read_text(encoding="utf-8") != run.config_yaml:
        raise ValueError(
            f"{path} is not the config that its folder is named after; remove or rename {folder}"
        )


def write_config(folder: Path, run: PlannedRun) -> None:
    """Make the folder one that a worker can start from; what is in it stays."""
    require_own_config(folder, run)
    if not (folder / CONFIG).exists():
        write_atomically(folder / CONFIG, run.config_yaml)


def finished(folder: Path, config: RunConfig) -> EvaluationResult | None:
    """The evaluation of a run that is done: one with this very config, else None."""
    if not (folder / EVALUATION).is_file():
        return None
    try:
        result = EvaluationResult.load(folder / EVALUATION)
        judged = config_from_mapping(result.config)  # what an older one does not say is the default
    except ValueError:
        return None
    # `sphereface2 evaluate RUN evaluation.sets=...` may have judged it by something else.
    return result if judged == config else None


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """How far the training has come, and in how long; None if that is not known any more."""
    last = folder / CHECKPOINTS / "last"
    return load_checkpoint(last) if has_checkpoint(last) else None


class PositionNote(Events):
    """Notes how far a training is in the file of its lock, where other processes can read it."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._total = 0
        self._written = 0.0

    def started(self, *, step: int, total_steps: int) -> None:
        self._total = total_steps
        self._write(step)

    def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
        if time.monotonic() - self._written >= _NOTE_EVERY or step == self._total:
            self._write(step)

    def _write(self, step: int) -> None:
        self._written = time.monotonic()
        self._lock.note(step=step, total=self._total)


def read_position(folder: Path, *, since: float = 0.0) -> Position:
    """How far the process that works on this run, or was killed while it did, has come.

    since: the time from which it counts, as time.time() gives it
    """
    try:
        if (folder / LOCK).stat().st_mtime < since:
            return Position()
        note = read_note(folder / LOCK)
        return Position(int(note["step"]), int(note["total"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Position()


def sweep_result(sweep: Sweep, states: Sequence[RunState], *, runs: Path) -> SweepResult:
    """The results of all runs, in the order of the settings; `runs` is the store."""
    rows = []
    by_setting = [
        [state for state in states if state.plan.setting is setting] for setting in sweep.settings
    ]
    differing = what_differs([own[0].plan.config for own in by_setting])
    for setting, own, values in zip(sweep.settings, by_setting, differing, strict=True):
        first = own[0].plan
        rows.append(
            SweepRow(
                label=setting.label,
                method=first.config.head.name,
                overrides=setting.overrides,
                command=train_command(sweep.recipe, first, runs=by_hand(runs)),
                config=first.config_yaml,
                runs=tuple(_seed_run(state) for state in own if state.error or state.evaluation),
                published=setting.published,
                settings=values,
                drawn_as=setting.drawn_as,
            )
        )
    columns = dict.fromkeys(column for state in states for column in state.values)
    return SweepResult(
        name=sweep.name,
        title=sweep.title,
        recipe=sweep.recipe,
        # Of a sweep whose runs have all failed only the name of the judged column is sure.
        columns=tuple(sorted(columns or (COMBINED,), key=lambda column: column == COMBINED)),
        rows=tuple(rows),
        where=sweep.where,
        scale=sweep.scale,
        command=sweep.command,
        published_columns=sweep.published_columns,
        versions=_versions(states),
        judged=sweep.judged,
        pairs={
            row.set_name: row.pairs
            for state in states
            if state.evaluation is not None
            for row in state.evaluation.rows
        },
        figure=sweep.figure,
    )


def what_differs(configs: Sequence[RunConfig]) -> list[dict[str, JsonValue]]:
    """Of each config the settings in which not all of them agree, by dotted keys."""
    flat = [config_settings(config) for config in configs]
    keys = dict.fromkeys(key for each in flat for key in each)
    varying = [key for key in keys if any(each.get(key) != flat[0].get(key) for each in flat)]
    return [{key: each[key] for key in varying if key in each} for each in flat]


def _versions(states: Sequence[RunState]) -> dict[str, str]:
    """Package -> the version that measured the runs, or all of them where they differ."""
    found: dict[str, dict[str, None]] = {}
    for state in states:
        if state.evaluation is not None:
            for package, version in state.evaluation.versions.items():
                found.setdefault(package, {})[version] = None
    return {
        package: " and ".join(versions) + (" (runs differ)" if len(versions) > 1 else "")
        for package, versions in found.items()
    }


def _seed_run(state: RunState) -> SeedRun:
    if state.evaluation is None:
        return SeedRun(state.plan.seed, state.plan.name, error=state.error)
    last = last_checkpoint(state.folder)
    seconds = round(last.seconds, 2) if last is not None else 0.0
    return SeedRun(
        state.plan.seed,
        state.plan.name,
        values=state.values,
        seconds=seconds,
        model_step=state.evaluation.model_step,
    )
