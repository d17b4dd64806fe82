"""A sweep from its settings to its result: as many processes at once as there is room for.

Runs live in a store, a folder of run folders that sweeps may share. A run that is done is not run
again, one that was interrupted is resumed, and none is trained by two processes at once.
"""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sphereface2.data.sources.synthetic import FOLDER_VARIABLE
from sphereface2.evaluation.experiment_results import SweepResult
from sphereface2.experiments.sweep import worker
from sphereface2.experiments.sweep.board import Board, Position, RunState, Status, SweepEvents
from sphereface2.experiments.sweep.plan import Sweep, check_buildable, plan_sweep
from sphereface2.experiments.sweep.store import (
    LOG,
    as_stored,
    finished,
    last_checkpoint,
    read_position,
    require_own_config,
    sweep_result,
    write_config,
)
from sphereface2.files import LockedError
from sphereface2.runs.folder import run_lock
from sphereface2.training.devices import choose_device
from sphereface2.training.stopping import StoppedError, stop_signals
from sphereface2.workers import Program, signal_name, usable_cores

_PAUSE = 0.1  # seconds between two looks at the workers


class SweepStopped(StoppedError):
    """A sweep was asked to stop: its runs have their checkpoints, and it can be resumed."""

    def __init__(self, *, done: int, total: int, number: int | None = None) -> None:
        super().__init__(f"stopped with {done} of {total} runs done", number=number)


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
    board = Board(
        states,
        jobs=max(1, min(crew.jobs, len(waiting))),
        judged=sweep.judged,
        far=sweep.judged_far,
    )
    events.started(board)
    try:
        _Shift(board, crew, events).work()
    finally:
        events.finished(board)
    return sweep_result(sweep, states, runs=runs)


def look_up_runs(sweep: Sweep, *, runs: Path) -> list[RunState]:
    """All runs of a sweep, those that are done with their evaluation; what is wrong is found."""
    states = []
    for plan in as_stored(plan_sweep(sweep), runs):
        state = RunState(plan, runs / plan.name)
        require_own_config(state.folder, plan)
        if _take_result(state):
            state.status = Status.DONE
        states.append(state)
    return states


@dataclass
class Child:
    """A worker at its run; `log_start` is where its own part of the log begins."""

    state: RunState
    process: Program
    slot: int
    log_start: int


class Crew:
    """Starts, stops and collects the workers; at most `jobs` at once.

    The cores are shared out among `jobs`, also when fewer runs are left: sums round differently
    with another number of threads, and a run is to come out the same whenever it is run.
    """

    def __init__(self, *, jobs: int, gpus: list[str], runs: Path) -> None:
        self.jobs = jobs
        self.gpus = gpus
        self.runs = runs
        self.children: list[Child] = []

    def start(self, state: RunState) -> None:
        slot = min(set(range(self.jobs)) - {child.slot for child in self.children})
        with (state.folder / LOG).open("ab") as log:
            begin = log.tell()
            words = ["-m", worker.__name__, str(state.folder)]
            process = Program(*words, environment=self.environment(slot), log=log)
        self.children.append(Child(state, process, slot, begin))

    def environment(self, slot: int) -> Mapping[str, str]:
        """What the worker in a slot gets besides the environment of this process."""
        threads = _at_most("OMP_NUM_THREADS", max(1, usable_cores() // self.jobs))
        words = {
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(_at_most("MKL_NUM_THREADS", threads)),
            # Runs over the same people render them once.
            FOLDER_VARIABLE: str((self.runs / "rendered").resolve()),
        }
        if self.gpus:
            words["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        return words

    def ended(self) -> list[tuple[Child, int]]:
        """The workers that have ended, each once, and their exit codes."""
        codes = [(child, child.process.code()) for child in self.children]
        over = [(child, code) for child, code in codes if code is not None]
        for child, _ in over:
            self.children.remove(child)
            child.process.end()
        return over

    def interrupt(self) -> None:
        """Ask all workers to stop, with a checkpoint where they are in a training."""
        for child in self.children:
            child.process.ask_to_stop()

    def kill(self) -> None:
        """End what is still there; such a run resumes from its last checkpoint."""
        for child in self.children:
            child.process.end()
        self.children = []


def _at_most(variable: str, threads: int) -> int:
    """Threads, or fewer where the user has set the variable to fewer."""
    first = os.environ.get(variable, "").partition(",")[0].strip()  # of OpenMP's list of levels
    is_count = first.isascii() and first.isdecimal() and int(first) > 0
    return min(threads, int(first)) if is_count else threads


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
        try:
            with stop_signals(self._stop) as caught:
                while self.crew.children or (self.queue and not self.stop_requested):
                    for child, code in self.crew.ended():
                        self._record_end(child, code)
                    if self.stop_requested and not self.board.is_stopping:
                        self.board.is_stopping = True
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
            if len(self.crew.children) == self.crew.jobs:
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

    def _record_end(self, child: Child, code: int) -> None:
        state = child.state
        if code == 0 and _take_result(state):
            state.worked = time.monotonic() - state.began
            self._change(state, Status.DONE)
        elif code == worker.TAKEN:
            self.look_again = time.monotonic() + 1
            self.queue.append(state)
            self._change(state, Status.ELSEWHERE)
        elif self.stop_requested and was_stopped(code):
            reached = last_checkpoint(state.folder)
            if reached is not None:
                state.position = replace(state.position, step=reached.step)
            self._change(state, Status.STOPPED)
        else:
            state.error = last_words(child, code)
            self._change(state, Status.FAILED)

    def _tick(self) -> None:
        for state in self.board.states:
            if state.status is Status.RUNNING:
                # What is there before the worker writes is from the process before it.
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


def was_stopped(code: int) -> bool:
    """Whether a worker ended because it was asked to."""
    return code in (worker.STOPPED, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)


def last_words(child: Child, code: int) -> str:
    """The last line of what a failed worker wrote, or what is known of its end."""
    if was_stopped(code):
        return "it was stopped from outside"
    with (child.state.folder / LOG).open("rb") as log:
        log.seek(child.log_start)
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
    said = [line for line in lines if line]
    if code == -signal.SIGKILL:
        return "the process was killed (out of memory?)"
    if code < 0:
        return f"the process ended by signal {-code} ({signal_name(-code)})"
    return said[-1] if said else f"the process ended with exit code {code} and without a word"


def gpus_for(devices: set[str]) -> list[str]:
    """The GPUs to hand out, as CUDA_VISIBLE_DEVICES names them; none if not all runs want one."""
    if not devices <= {"auto", "cuda"} or not torch.cuda.is_available():
        return []
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return numbers if visible is None else visible.split(",")[: len(numbers)]


def usual_jobs(devices: set[str], *, gpus: list[str]) -> int:
    """Runs at once if that is not given: one per GPU, one per core, or one on cuda:0 or mps."""
    if gpus:
        return len(gpus)
    return usable_cores() if all(_is_cpu(device) for device in devices) else 1


def _is_cpu(device: str) -> bool:
    return choose_device(device).type == "cpu" if device == "auto" else device.startswith("cpu")
