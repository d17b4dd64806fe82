"""A sweep from its settings to its result: as many runs at once as there is room for.

Runs live in a store, a folder of run folders that sweeps may share. A run that is done is not run
again, one that was interrupted is resumed, and none is trained by two processes at once.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from sphereface2.config.schema import RunConfig
from sphereface2.evaluation.experiment_results import SeedRun, SweepResult, SweepRow
from sphereface2.evaluation.results import COMBINED
from sphereface2.experiments.sweep.board import Board, RunState, Status, SweepEvents
from sphereface2.experiments.sweep.checking import check_buildable
from sphereface2.experiments.sweep.crew import (
    Child,
    Crew,
    gpus_for,
    last_words,
    usual_jobs,
    was_stopped,
)
from sphereface2.experiments.sweep.grid import Sweep
from sphereface2.experiments.sweep.plan import by_hand, plan_sweep, train_command
from sphereface2.experiments.sweep.store import (
    Position,
    finished,
    last_checkpoint,
    read_position,
    require_own_config,
    write_config,
)
from sphereface2.experiments.sweep.worker import TAKEN
from sphereface2.files import LockedError
from sphereface2.runs.folder import run_lock
from sphereface2.training.checkpoint import config_settings
from sphereface2.training.stopping import StoppedError, stop_signals

_PAUSE = 0.1  # seconds between two looks at the workers


class SweepStopped(StoppedError):
    """A sweep was asked to stop: its runs have their checkpoints, and it can be resumed."""

    def __init__(self, *, done: int, total: int, number: int | None = None) -> None:
        super().__init__(f"stopped with {done} of {total} runs done", number=number)
        self.done = done
        self.total = total


def run_sweep(
    sweep: Sweep, *, runs: Path, jobs: int | None = None, events: SweepEvents | None = None
) -> SweepResult:
    """Train and measure all runs that are not done yet; the result of all.

    What is wrong with a setting is a ValueError before the first run starts. A run that fails has
    an `error` in the result and does not stop the others. A signal stops the workers with a
    checkpoint and raises SweepStopped; the same call resumes it.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    states = look_up_runs(sweep, runs=runs)
    waiting = [state for state in states if state.status is Status.WAITING]
    check_buildable([state.plan for state in waiting])
    devices = {state.plan.config.device for state in states}
    gpus = gpus_for(devices)
    crew = Crew(jobs=jobs or usual_jobs(devices, gpus=gpus), gpus=gpus, runs=runs)
    events = events or SweepEvents()
    board = Board(states, jobs=max(1, min(crew.jobs, len(waiting))), judged=sweep.judged)
    events.started(board)
    try:
        _Shift(board, crew, events).work()
    finally:
        events.finished(board)
    return _result(sweep, states, runs=runs)


def look_up_runs(sweep: Sweep, *, runs: Path) -> list[RunState]:
    """All runs of a sweep, those that are done with their evaluation; what is wrong is found."""
    states = []
    for plan in plan_sweep(sweep):
        state = RunState(plan, runs / plan.name)
        require_own_config(state.folder, plan)
        if _take_result(state):
            state.status = Status.DONE
        states.append(state)
    return states


class _Shift:
    """The time in which runs are handed to workers, until all are done or a stop is asked for."""

    def __init__(self, board: Board, crew: Crew, events: SweepEvents) -> None:
        self.board = board
        self.crew = crew
        self.events = events
        # All settings with their first seed come before any with its second: an early overview.
        seeds = list(dict.fromkeys(state.plan.seed for state in board.states))
        self.queue = sorted(
            (state for state in board.states if state.status is Status.WAITING),
            key=lambda state: seeds.index(state.plan.seed),
        )
        self.look_again = 0.0
        self.stop_requested = False

    def work(self) -> None:
        next_tick = 0.0
        was_told = False
        try:
            with stop_signals(self._stop) as caught:
                while self.crew.children or (self.queue and not self.stop_requested):
                    for child in self.crew.ended():
                        self._settle(child)
                    if self.stop_requested and not was_told:
                        was_told = self.board.is_stopping = True
                        self.crew.interrupt()
                        next_tick = 0.0
                    elif not self.stop_requested:
                        self._start_what_fits()
                    if time.monotonic() >= next_tick:
                        next_tick = time.monotonic() + 1
                        self._tick()
                    time.sleep(_PAUSE)
        finally:
            self.crew.kill()
        if self.board.count(Status.WAITING, Status.ELSEWHERE, Status.STOPPED):
            total = len(self.board.states)
            done = self.board.count(Status.DONE)
            raise SweepStopped(done=done, total=total, number=caught.number)

    def _stop(self) -> None:
        self.stop_requested = True

    def _start_what_fits(self) -> None:
        is_time_to_look = time.monotonic() >= self.look_again
        for state in list(self.queue):
            if not self.crew.has_room:
                return
            if state.status is Status.ELSEWHERE and not is_time_to_look:
                continue
            try:
                with run_lock(state.folder, patience=0):
                    # Another process may have been at it until a moment ago.
                    is_done = _take_result(state)
                    if not is_done:
                        write_config(state.folder, state.plan)
            except LockedError:
                self.look_again = time.monotonic() + 1
                self._change(state, Status.ELSEWHERE)
                continue
            self.queue.remove(state)
            if is_done:
                self._change(state, Status.DONE)
                continue
            state.began, state.launched = time.monotonic(), time.time()
            state.position, state.had = Position(), None
            self.crew.start(state)
            self._change(state, Status.RUNNING)

    def _settle(self, child: Child) -> None:
        state, code = child.state, child.process.returncode
        if code == 0 and _take_result(state):
            state.worked = time.monotonic() - state.began
            self._change(state, Status.DONE)
        elif code == TAKEN:
            self.look_again = time.monotonic() + 1
            self.queue.append(state)
            self._change(state, Status.ELSEWHERE)
        elif self.stop_requested and was_stopped(code):
            reached = last_checkpoint(state.folder)
            if reached is not None:
                state.position = replace(state.position, step=reached.step)
            self._change(state, Status.STOPPED)
        else:
            state.error = "it was stopped from outside" if was_stopped(code) else last_words(child)
            self._change(state, Status.FAILED)

    def _tick(self) -> None:
        for state in self.board.states:
            if state.status is Status.RUNNING:
                # What stands there before the worker has written is of the process before.
                state.position = read_position(state.folder, since=state.launched)
                if state.had is None and state.position.total:
                    state.had = state.share
        self.events.ticked(self.board)

    def _change(self, state: RunState, status: Status) -> None:
        if state.status is not status:
            state.status = status
            self.events.changed(self.board, state)


def _take_result(state: RunState) -> bool:
    """Whether the run is done, and if so its evaluation."""
    state.evaluation = finished(state.folder, state.plan.config)
    return state.evaluation is not None


def _result(sweep: Sweep, states: list[RunState], *, runs: Path) -> SweepResult:
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


def _versions(states: list[RunState]) -> dict[str, str]:
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
