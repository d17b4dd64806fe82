"""What a sweep shows: a table on a terminal, lines elsewhere, and how long it will take."""

import io
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from sphereface2.experiments.sweep.board import (
    Board,
    Position,
    RunState,
    Status,
    SweepDisplay,
    board_table,
)
from sphereface2.experiments.sweep.engine import Crew, gpus_for, look_up_runs, usual_jobs
from sphereface2.workers import usable_cores
from tests.experiments.sweep.tiny import pretend_done, tiny_sweep, write_recipe


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """Margin 0.2: two seeds done, one failed; margin 0.3: running, taken, waiting."""
    recipe = write_recipe(tmp_path)
    sweep = tiny_sweep(recipe, "head.margin=0.2", "head.margin=0.3", seeds=(0, 1, 2))
    pretend_done(tiny_sweep(recipe, "head.margin=0.2", seeds=(0, 1)), tmp_path)
    states = look_up_runs(sweep, runs=tmp_path)
    states[2].status, states[2].error = Status.FAILED, "no [luck] today"
    states[3].status, states[3].position = Status.RUNNING, Position(25, 100)
    clock = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr("sphereface2.experiments.sweep.board.time", clock)
    states[3].began = 90.0
    states[4].status = Status.ELSEWHERE
    return Board(states, jobs=2)


def shown(board: Board, *, terminal: bool) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=120)
    display = SweepDisplay(console)
    display.started(board)
    for state in board.states:
        display.changed(board, state)
    display.finished(board)
    return buffer.getvalue()


def test_the_table_has_a_row_a_setting(board: Board) -> None:
    buffer = io.StringIO()
    Console(file=buffer, width=120).print(board_table(board))
    text = buffer.getvalue()
    first, second = (row for row in text.splitlines() if "head.margin" in row)
    numbers = [state.values["combined"] for state in board.states[:2]]
    assert f"{statistics.fmean(numbers):.2f} ± {statistics.stdev(numbers):.2f}" in first
    assert "2/3" in first
    assert "seed 2 failed: no [luck] today" in first
    assert "0/3" in second
    assert "seed 0: step 25/100" in second
    assert "seed 1: another process has it" in text
    assert "3 of 6 runs" in text
    assert "to go" in text


def test_a_terminal_gets_a_table_and_a_file_gets_lines(board: Board) -> None:
    assert "another process has it" in shown(board, terminal=True)
    lines = shown(board, terminal=False).splitlines()
    assert lines[0] == "6 runs, 2 done already, 2 at once"
    assert len(lines) == 5  # two done, one failed, one taken; the others have nothing to say yet
    assert lines[1].startswith("[3/6] head.margin=0.2, seed 0: combined ")
    assert lines[1].endswith(" %, trained by another process")  # not by this sweep: no time
    assert lines[3] == "[3/6] head.margin=0.2, seed 2: failed: no [luck] today"
    assert "another process" in lines[4]


def test_a_log_has_a_line_a_minute_of_what_is_running(board: Board) -> None:
    buffer = io.StringIO()
    display = SweepDisplay(Console(file=buffer, width=120))
    for elapsed in (5.0, 59.0, 61.0, 90.0, 122.0):
        board.began = 100.0 - elapsed
        display.ticked(board)
    first, second = buffer.getvalue().splitlines()
    assert first.startswith("3 of 6 runs, 1 min 1 s so far, some ")
    assert first.endswith(" to go; head.margin=0.3 seed 0: step 25/100")
    assert second.startswith("3 of 6 runs, 2 min 2 s so far")


def test_a_stop_is_reported_before_the_runs_have_obeyed(board: Board) -> None:
    board.is_stopping = True
    text = shown(board, terminal=True)
    assert "so far, stopping" in text
    assert "to go" not in text
    board.states[3].status = Status.STOPPED
    text = shown(board, terminal=True)
    assert "seed 0: stopped at step 25" in text
    assert "stopping" not in text


def test_the_set_to_judge_by_is_the_one_asked_for(board: Board) -> None:
    judged = Board(board.states, jobs=1, judged="plain")
    judged.states[0].worked = 61.0
    values = [state.values["plain"] for state in judged.states[:2]]
    assert f"seed 0: plain {values[0]:.2f} %, 1 min 1 s" in shown(judged, terminal=False)
    table = shown(judged, terminal=True)
    assert "plain (%)" in table
    assert f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}" in table


def test_what_is_shown_may_be_the_rate_that_a_sweep_is_judged_by(board: Board) -> None:
    judged = Board(board.states, jobs=1, judged="plain", far=0.01)
    rates = []
    for state in judged.states[:2]:
        assert state.evaluation is not None
        row = state.evaluation.find(state.evaluation.model, "plain")
        assert row is not None
        rates.append(100 * next(each.rate for each in row.tar_at_far if each.target == 0.01))
    assert f"seed 0: TAR@FAR 0.01 {rates[0]:.2f} %, " in shown(judged, terminal=False)
    table = shown(judged, terminal=True)
    assert "TAR@FAR 0.01 (%)" in table
    assert f"{statistics.fmean(rates):.2f} ± {statistics.stdev(rates):.2f}" in table


def naive_remaining(length: float, shares: list[float], waiting: int, jobs: int) -> float:
    left = [length] * waiting + [length - length * share for share in shares]
    return max(sum(left) / jobs, *left)


def test_the_remaining_time_follows_what_was_done(board: Board) -> None:
    # Nothing was finished here yet: 10 s for a quarter are 40 s for a run.
    assert board.remaining() == pytest.approx(naive_remaining(40, [0.25], 2, 2))
    board.states[0].worked, board.states[1].worked = 10.0, 30.0
    assert board.remaining() == pytest.approx(naive_remaining(20, [0.25], 2, 2))
    board.states[0].had = 0.5  # the half of it was done before: 10 s for the other half
    assert board.remaining() == pytest.approx(naive_remaining((20 + 30) / 2, [0.25], 2, 2))
    waiting = Board([RunState(board.states[5].plan, Path())], jobs=1)
    assert waiting.remaining() is None


def test_workers_share_the_cores_or_have_a_gpu_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    crew = Crew(jobs=3, gpus=["4", "6"], runs=tmp_path)
    assert [crew.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["4", "6", "4"]
    alone = Crew(jobs=1, gpus=[], runs=tmp_path).environment(0)
    assert "CUDA_VISIBLE_DEVICES" not in alone
    assert alone["OMP_NUM_THREADS"] == alone["MKL_NUM_THREADS"] == str(usable_cores())
    crowded = Crew(jobs=10 * usable_cores(), gpus=[], runs=tmp_path).environment(0)
    assert crowded["OMP_NUM_THREADS"] == "1"
    assert alone["SPHEREFACE2_RENDERED"] == str(tmp_path.resolve() / "rendered")


@pytest.mark.parametrize(
    ("given", "threads"), [("2", "2"), ("64", "8"), ("3,1", "3"), ("0", "8"), ("many", "8")]
)
def test_fewer_threads_that_the_user_asks_for_win(
    given: str, threads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphereface2.experiments.sweep.engine.usable_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    words = Crew(jobs=1, gpus=[], runs=tmp_path).environment(0)
    assert (words["OMP_NUM_THREADS"], words["MKL_NUM_THREADS"]) == (threads, threads)


def test_one_run_at_a_time_on_one_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usual_jobs({"cpu"}, gpus=[]) == usable_cores()
    assert usual_jobs({"auto"}, gpus=["4", "6"]) == 2
    for devices in ({"cuda:0"}, {"mps"}, {"cpu", "cuda:1"}):
        assert usual_jobs(devices, gpus=[]) == 1
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    assert gpus_for({"auto", "cuda"}) == ["5", "6", "7"]
    assert gpus_for({"cuda", "cuda:0"}) == gpus_for({"cpu", "auto"}) == []
    assert usual_jobs({"cpu", "auto"}, gpus=[]) == 1  # auto would be the same GPU for all
