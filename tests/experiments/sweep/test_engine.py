"""Sweeps with real processes: taken by another, killed, stopped, failed, resumed and done.

A worker takes seconds to import what it needs, so that one run goes through all of it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sphereface2.experiments.sweep.board import Board, Position, RunState, Status, SweepEvents
from sphereface2.experiments.sweep.engine import Crew, SweepStopped, last_words, run_sweep
from sphereface2.experiments.sweep.plan import plan_sweep
from sphereface2.experiments.sweep.store import LOG, PositionNote, read_position, write_config
from sphereface2.files import LockedError
from sphereface2.runs.folder import EVALUATION, LOCK, METRICS, run_lock
from sphereface2.training.checkpoint import has_checkpoint, load_checkpoint
from tests.experiments.sweep.tiny import tiny_sweep, write_recipe

STEPS = 40
HOLDS_A_LOCK = """
import fcntl, sys, time
with open(sys.argv[1], "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(600)
"""


class Heard(SweepEvents):
    """Remembers what it hears, and may act on it."""

    def __init__(self) -> None:
        self.statuses: list[tuple[str, Status]] = []

    def changed(self, board: Board, state: RunState) -> None:
        self.statuses.append((state.plan.setting.label, state.status))


class Killing(Heard):
    """Kills the process that has the run, and then the worker, when that has a checkpoint."""

    def __init__(self, other: subprocess.Popen[bytes], workers: list[int]) -> None:
        super().__init__()
        self.other = other
        self.workers = workers

    def changed(self, board: Board, state: RunState) -> None:
        super().changed(board, state)
        if state.status is Status.ELSEWHERE:
            self.other.kill()
            self.other.wait()
        elif state.status is Status.RUNNING:
            threading.Thread(target=self.kill, args=(state.folder,)).start()

    def kill(self, folder: Path) -> None:
        wait_for(lambda: has_checkpoint(folder / "checkpoints" / "last"))
        os.kill(self.workers[-1], signal.SIGKILL)


class Interrupting(Heard):
    """Stands in for a Ctrl-C as soon as the run trains, and lets it train no further until then."""

    def __init__(self, workers: list[int]) -> None:
        super().__init__()
        self.workers = workers

    def changed(self, board: Board, state: RunState) -> None:
        super().changed(board, state)
        if state.status is Status.RUNNING:
            threading.Thread(target=self.interrupt, args=(state.folder,)).start()

    def interrupt(self, folder: Path) -> None:
        # The note is written when the training starts; before, its total is 0 or the killed's.
        wait_for(lambda: read_position(folder).total == 0)
        wait_for(lambda: read_position(folder).total > 0)
        os.kill(self.workers[-1], signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of all workers that were started; one that is asked to stop may continue."""
    ids: list[int] = []
    start, interrupt = Crew.start, Crew.interrupt

    def noted(crew: Crew, state: RunState) -> None:
        start(crew, state)
        ids.append(crew.children[-1].process.pid)

    def let_go(crew: Crew) -> None:
        interrupt(crew)
        for child in crew.children:
            os.kill(child.process.pid, signal.SIGCONT)

    monkeypatch.setattr(Crew, "start", noted)
    monkeypatch.setattr(Crew, "interrupt", let_go)
    return ids


def is_taken(folder: Path) -> bool:
    try:
        with run_lock(folder, patience=0):
            return False
    except LockedError:
        return True


def wait_for(condition: Callable[[], bool], *, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


@pytest.mark.usefixtures("quick_processes")
def test_a_run_resumes_after_all_that_can_happen_to_it(tmp_path: Path, workers: list[int]) -> None:
    recipe, runs = write_recipe(tmp_path), tmp_path / "runs"
    own, bad = f"training.steps={STEPS}", "optimizer.learning_rate=1e30"
    sweep = tiny_sweep(recipe, own)
    plan = plan_sweep(sweep)[0]
    folder = runs / plan.name
    last = folder / "checkpoints" / "last"

    # Another process has it, and is killed; then so is the worker.
    write_config(folder, plan)
    words = [sys.executable, "-S", "-c", HOLDS_A_LOCK, str(folder / LOCK)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            killing = Killing(other, workers)
            result = run_sweep(sweep, runs=runs, jobs=1, events=killing)
        finally:
            other.kill()
    assert [status for _, status in killing.statuses] == [
        Status.ELSEWHERE,
        Status.RUNNING,
        Status.FAILED,
    ]
    assert result.rows[0].runs[0].error == "the process was killed (out of memory?)"
    assert not is_taken(folder)
    reached = load_checkpoint(last).step
    assert 0 < reached < STEPS

    # It continues, and is stopped.
    stopping = Interrupting(workers)
    with pytest.raises(SweepStopped, match="0 of 1 runs done"):
        run_sweep(sweep, runs=runs, jobs=1, events=stopping)
    assert [status for _, status in stopping.statuses] == [Status.RUNNING, Status.STOPPED]
    assert reached < load_checkpoint(last).step < STEPS
    assert not is_taken(folder)
    assert not (folder / EVALUATION).exists()

    # It runs to its end, though another setting fails before.
    heard = Heard()
    result = run_sweep(tiny_sweep(recipe, bad, own), runs=runs, jobs=1, events=heard)
    assert heard.statuses == [
        (bad, Status.RUNNING),
        (bad, Status.FAILED),
        (own, Status.RUNNING),
        (own, Status.DONE),
    ]
    failed, done = (row.runs[0] for row in result.rows)
    assert "turned" in failed.error
    assert failed.values == {}
    assert failed.error in (runs / failed.folder / LOG).read_text()
    assert done.error == ""
    assert done.seconds > 0
    assert result.columns == tuple(done.values)
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "train"]
    assert steps == [1, *range(20, STEPS + 1, 20)]

    # It is done, and stays as it is.
    files = [path for path in folder.rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    started = len(workers)
    assert run_sweep(sweep, runs=runs).rows[0].runs == (done,)
    assert len(workers) == started == 4
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    assert not is_taken(tmp_path)
    with run_lock(tmp_path) as lock:
        assert is_taken(tmp_path)
        assert read_position(tmp_path) == Position()
        note = PositionNote(lock)
        note.started(step=3, total_steps=1000)
        assert read_position(tmp_path) == Position(3, 1000)
        note.started(step=4, total_steps=9)
        assert read_position(tmp_path) == Position(4, 9)
        assert read_position(tmp_path, since=time.time() + 1) == Position()
    assert not is_taken(tmp_path)
    assert read_position(tmp_path) == Position()


def test_a_file_in_the_users_folder_is_not_taken_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_sweep(tiny_sweep(write_recipe(tmp_path), "head.margin=0.3"))[0]
    (tmp_path / "signal.py").write_text("raise ImportError('hidden')")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / plan.name
    folder.mkdir(parents=True)
    crew = Crew(jobs=1, gpus=[], runs=tmp_path / "runs")
    crew.start(RunState(plan, folder))
    child = crew.children[0]
    wait_for(lambda: bool(crew.ended()))
    log = (folder / LOG).read_text()
    assert "hidden" not in log
    assert f"{folder} is not a run" in log

    # What is known of such an end, and of others.
    assert last_words(child, 2).startswith(f"{folder} is not a run")
    assert last_words(child, -signal.SIGTERM) == "it was stopped from outside"
    assert last_words(child, -signal.SIGSEGV) == "the process ended by signal 11 (SIGSEGV)"
    assert last_words(child, -40) == "the process ended by signal 40 (signal 40)"


def test_jobs_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        run_sweep(tiny_sweep(tmp_path / "none.yaml", "a=1"), runs=tmp_path, jobs=0)
