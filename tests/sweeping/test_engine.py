"""Sweeps with real processes: done, failed, killed, stopped, taken by another, and gone on with."""

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

from sphereface2.run_folder import EVALUATION, METRICS
from sphereface2.sweeping.board import Board, RunState, Status, SweepEvents
from sphereface2.sweeping.claim import claimed, is_taken, read_position
from sphereface2.sweeping.engine import SweepStopped, run_sweep
from sphereface2.sweeping.plan import plan_sweep
from sphereface2.sweeping.store import LOG, write_config
from sphereface2.training.checkpoint import has_checkpoint, load_checkpoint
from tests.sweeping.tiny import tiny_sweep, write_recipe


class Heard(SweepEvents):
    """Remembers what it hears, and may act on it."""

    def __init__(self) -> None:
        self.statuses: list[tuple[str, Status]] = []

    def changed(self, board: Board, state: RunState) -> None:
        self.statuses.append((state.plan.setting.label, state.status))


def wait_for(condition: Callable[[], bool], *, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_a_failing_setting_does_not_stop_the_others(tmp_path: Path) -> None:
    recipe, runs = write_recipe(tmp_path), tmp_path / "runs"
    good, bad = "head.margin=0.2", "optimizer.learning_rate=1e30"
    heard = Heard()
    result = run_sweep(tiny_sweep(recipe, bad, good), runs=runs, jobs=2, events=heard)
    failed, done = (row.runs[0] for row in result.rows)
    assert "turned" in failed.error
    assert (failed.values, done.error) == ({}, "")
    assert result.columns == tuple(done.values)
    assert done.seconds > 0
    assert set(heard.statuses) == {
        (bad, Status.RUNNING),
        (bad, Status.FAILED),
        (good, Status.RUNNING),
        (good, Status.DONE),
    }
    assert failed.error in (runs / failed.folder / LOG).read_text()

    files = [path for path in (runs / done.folder).rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    heard = Heard()
    again = run_sweep(tiny_sweep(recipe, good), runs=runs, events=heard)
    assert heard.statuses == []
    assert again.rows[0].runs == (done,)
    assert {path: path.stat().st_mtime_ns for path in files} == before


class KillsTheOther(Heard):
    """Kills the process that has the run, then interrupts the sweep as soon as it trains."""

    def __init__(self, other: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.other = other

    def changed(self, board: Board, state: RunState) -> None:
        super().changed(board, state)
        if state.status is Status.ELSEWHERE:
            self.other.kill()
            self.other.wait()
        elif state.status is Status.RUNNING:
            threading.Thread(target=self.interrupt, args=(state.folder,)).start()

    def interrupt(self, folder: Path) -> None:
        # The claim is rewritten when the training starts; before, its total is 0 or the other's.
        wait_for(lambda: read_position(folder).total == 0)
        wait_for(lambda: read_position(folder).total > 0)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_run_goes_on_after_a_kill_in_another_process_and_after_a_stop(tmp_path: Path) -> None:
    recipe, runs = write_recipe(tmp_path), tmp_path / "runs"
    sweep = tiny_sweep(recipe, "training.steps=400")
    plan = plan_sweep(sweep)[0]
    folder = runs / plan.name
    last = folder / "checkpoints" / "last"
    write_config(folder, plan)
    other = subprocess.Popen([sys.executable, "-m", "sphereface2.sweeping.worker", str(folder)])
    try:
        wait_for(lambda: has_checkpoint(last))
        other.send_signal(signal.SIGSTOP)  # it keeps its lock and comes no further
        wait_for(lambda: is_taken(folder), seconds=1)
        heard = KillsTheOther(other)
        with pytest.raises(SweepStopped, match="0 of 1 runs done"):
            run_sweep(sweep, runs=runs, jobs=1, events=heard)
    finally:
        other.kill()
        other.wait()
    statuses = [status for _, status in heard.statuses]
    assert statuses == [Status.ELSEWHERE, Status.RUNNING, Status.STOPPED]
    assert 0 < load_checkpoint(last).step < 400
    assert not is_taken(folder)
    assert not (folder / EVALUATION).exists()

    result = run_sweep(sweep, runs=runs)
    assert result.rows[0].runs[0].error == ""
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "train"]
    assert steps == [1, *range(20, 401, 20)]


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    assert not is_taken(tmp_path)
    with claimed(tmp_path) as claim:
        assert is_taken(tmp_path)
        claim.started(step=3, total_steps=1000)
        assert (read_position(tmp_path).step, read_position(tmp_path).total) == (3, 1000)
        claim.started(step=4, total_steps=9)
        assert (read_position(tmp_path).step, read_position(tmp_path).total) == (4, 9)
    assert not is_taken(tmp_path)


def test_jobs_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        run_sweep(tiny_sweep(tmp_path / "none.yaml", "a=1"), runs=tmp_path, jobs=0)
