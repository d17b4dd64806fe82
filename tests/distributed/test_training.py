"""Training on several real processes: the same numbers, shared checkpoints, and sudden ends."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from typer.testing import CliRunner

from sphereface2.cli import app
from sphereface2.config.schema import load_config
from sphereface2.runs import train as runs
from sphereface2.runs.folder import run_lock
from sphereface2.training.checkpoint import load_checkpoint, load_tensors
from sphereface2.training.distributed import (
    TIMEOUT_VARIABLE,
    Team,
    _own_part,
    _patience,
    saved_shapes,
)
from tests.distributed.ranks import ENVIRONMENT, TIME_LIMIT, run_ranks
from tests.distributed.training_worker import CASES, PHASES, STEPS, STOP_AT, WORLDS
from tests.runs.test_runs import NO_SETS, SMALL

SEVERAL = [(name, world) for name, case in CASES.items() for world in case.worlds if world > 1]
RESUMED = [(name, *ranks) for name, case in CASES.items() for ranks in case.resumed]

LONG = 32  # steps
LONGER = [
    *SMALL,
    f"training.steps={LONG}",
    "training.epochs=null",
    "training.batch_size=12",
    "training.log_every=1",
    "training.checkpoint_every=50",
    "training.checkpoint_every_steps=5",
    "schedule.warmup=0",
    *NO_SETS,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where three processes have trained every case on 1, 2 and 3 ranks."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tmp_path_factory.mktemp("ranks")
        _train_all(folder)
        return folder
    # Once for all of pytest's workers: the first one here trains, the others wait.
    folder = tmp_path_factory.getbasetemp().parent / "ranks"
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + TIME_LIMIT
        while not (folder / "done").exists():
            assert time.monotonic() < deadline, "the other worker of pytest has failed"
            time.sleep(0.2)
        return folder
    _train_all(folder)
    (folder / "done").touch()
    return folder


def _train_all(folder: Path) -> None:
    run_ranks("tests.distributed.training_worker", folder, ranks=max(WORLDS), meetings=len(PHASES))


def final_tensors(run: Path) -> dict[str, Tensor]:
    """All tensors of the last checkpoint of a run, by one rank."""
    last = run / "checkpoints" / "last"
    assert load_checkpoint(last).step == STEPS
    whole = ("num_batches_tracked", "memory_y", "memory_end", "added")
    tensors = {
        name: torch.zeros(shape, dtype=torch.int64 if name.endswith(whole) else torch.float32)
        for name, shape in saved_shapes(last).items()
    }
    load_tensors(last, tensors)
    return tensors


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], limit: float) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        # Relative to the tensor's own size: single entries may cancel to almost nothing.
        error = torch.linalg.vector_norm((found[name] - value).double())
        scale = max(float(torch.linalg.vector_norm(value.double())), 1e-3)
        assert error <= limit * scale, f"{name} is off by {error / scale:.1e}"


@pytest.mark.parametrize(
    ("name", "world"), [(name, world) for name, world in SEVERAL if not CASES[name].noisy]
)
def test_ranks_do_not_change_the_training(folder: Path, name: str, world: int) -> None:
    one, several = (folder / "straight" / f"{name} {number}" for number in (1, world))
    expected, found = (json.loads((run / "losses.json").read_text()) for run in (one, several))
    assert len(expected) == STEPS
    assert expected[-1] != expected[0]
    assert found == pytest.approx(expected, rel=1e-5)
    assert_close(final_tensors(several), final_tensors(one), 1e-4)
    records = [_training_records(run) for run in (one, several)]
    for before, now in zip(*records, strict=True):
        assert now["gradient_norm"] == pytest.approx(before["gradient_norm"], rel=1e-4)
        assert now["head"] == pytest.approx(before["head"], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("name", "before", "world"), RESUMED)
def test_any_number_of_ranks_resumes_where_any_other_stopped(
    folder: Path, name: str, before: int, world: int
) -> None:
    stopped = folder / "stopped" / f"{name} {before}" / "checkpoints" / "last"
    assert load_checkpoint(stopped).step == STOP_AT
    found = final_tensors(folder / "resumed" / f"{name} {before} {world}")
    expected = final_tensors(folder / "straight" / f"{name} {world}")
    if before == world:
        assert all(torch.equal(found[key], value) for key, value in expected.items())
    elif not CASES[name].noisy:
        assert_close(found, expected, 1e-4)
    assert any("momentum.head.weight" in key for key in expected)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_images_for_the_means_of_the_classes(folder: Path, world: int) -> None:
    one, several = (
        torch.tensor(json.loads((folder / f"means {number}.json").read_text()))
        for number in (1, world)
    )
    assert one.shape == (7, 8)
    assert bool((one.norm(dim=1) > 1).all())
    torch.testing.assert_close(several, one, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_a_mistake_on_one_rank_is_reported_once_and_ends_all(folder: Path, world: int) -> None:
    reported, *others = (
        json.loads((folder / f"said by {rank} of {world}.json").read_text())
        for rank in range(world)
    )
    expected = [
        f"ValueError: on rank {world - 1}: list.txt: there is no such file",
        "ValueError: unknown head 'arc'",
        "ValueError: the ranks disagree: margin is 0.4 on rank 0 and 0.5 on rank 1; start",
        "nothing",
        "nothing",
        "head.name was sphereface2-c when ",
        "the number of classes was 7 and is 8; give its own images",
        f"last is damaged: its file __{world - 1}_0.distcp is not the one that was saved",
        f"last is damaged: its file __{world - 1}_0.distcp of",
    ]
    assert len(reported) == len(expected)
    for sentence, part in zip(reported, expected, strict=True):
        assert part in sentence
    for said in others:
        for mine, first in zip(said, reported, strict=True):
            assert mine == "nothing" if first == "nothing" else "ReportedElsewhereError" in mine


# -- torchrun and the command line ---------------------------------------------------------------


def command(ranks: int, *arguments: str) -> list[str]:
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, "-m", "sphereface2", *arguments]


def finish(ranks: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(ranks, *arguments),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )


def kill_one(ranks: int, run: Path, *, after: int) -> tuple[int, str]:
    """Start a run, kill -9 its last rank after so many steps; the exit code and what was said."""
    process = subprocess.Popen(
        command(ranks, "train", "quickstart", *LONGER, "--output", str(run)),
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + TIME_LIMIT
        while len(_lines(run)) < after:
            assert process.poll() is None, process.communicate()[1][-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        victim = process.pid if ranks == 1 else _last_child(process.pid)
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=TIME_LIMIT)
    finally:
        process.kill()
    assert len(_lines(run)) < LONG, "the run was over before it could be killed"
    return process.returncode, errors


def _lines(run: Path) -> list[str]:
    path = run / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def _training_records(run: Path) -> list[dict[str, Any]]:
    """What was logged of the steps; a notice may stand between them, depending on the load."""
    records = [json.loads(line) for line in _lines(run)]
    return [record for record in records if record["kind"] == "train"]


def _last_child(parent: int) -> int:
    """The one that was started last: the last rank."""
    return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[-1])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds ranks by /proc")
@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_ends_and_resumes_to_the_same_bits(tmp_path: Path, ranks: int) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    code, errors = kill_one(ranks, killed, after=7)
    assert code != 0
    if ranks > 1:
        assert errors.count("sphereface2: rank 0 lost another rank, which has ended") == 1
        assert "continue from the last checkpoint with 'sphereface2 resume RUN'" in errors
        done = finish(ranks, "resume", str(killed))
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr.count("next: sphereface2 evaluate") == 1
        done = finish(ranks, "train", "quickstart", *LONGER, "--output", str(straight))
        assert done.returncode == 0, done.stderr[-3000:]
    else:
        assert not runs.resume(killed).interrupted
        runs.train(load_config("quickstart", LONGER), straight)
    model = Path("model") / "model.safetensors"
    assert (killed / model).read_bytes() == (straight / model).read_bytes()
    losses = [[record["loss"] for record in _training_records(run)] for run in (killed, straight)]
    assert losses[0] == losses[1]


# Whoever destroys a group waits for its threads, and they for Python's lock, which that one holds.
LEAVES = """
import time
import torch.distributed as dist
from pathlib import Path
from sphereface2.training.distributed import leave_group

def has_thread():
    tasks = Path("/proc/self/task").iterdir()
    return "pt_gloo_runloop" in {(task / "comm").read_text().strip() for task in tasks}

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
while not has_thread():  # it gives itself its name when it gets the processor
    time.sleep(0.01)
leave_group()
print("kept" if has_thread() else "destroyed")
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds threads by /proc")
@pytest.mark.usefixtures("quick_processes")
def test_a_group_that_was_left_is_kept_until_the_end() -> None:
    words = [sys.executable, "-c", LEAVES]
    done = subprocess.run(  # as a rank, which ends as Python ends: its threads are there until then
        words,
        env={**ENVIRONMENT, "RANK": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr


@pytest.mark.usefixtures("quick_processes")
def test_a_mistake_under_torchrun_is_one_sentence(tmp_path: Path) -> None:
    arguments = ["train", "quickstart", *LONGER, "training.batch_size=15"]
    done = finish(2, *arguments, "--output", str(tmp_path / "run"))
    assert done.returncode != 0
    sentence = "sphereface2: training.batch_size=15 is not a multiple of 2 ranks; take 14 or 16"
    assert done.stderr.count(sentence) == 1
    assert "exitcode  : 2" in done.stderr
    assert "ValueError" not in done.stderr  # torchrun has a traceback of its own
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("quick_processes")
def test_a_folder_in_which_another_trains_is_refused_by_all_ranks(tmp_path: Path) -> None:
    with run_lock(tmp_path / "run"):
        done = finish(2, "train", "quickstart", *LONGER, "--output", str(tmp_path / "run"))
    assert done.returncode != 0
    assert done.stderr.count(f"sphereface2: process {os.getpid()} on ") == 1
    assert done.stderr.count("exitcode  : 2") >= 1
    assert not (tmp_path / "run").exists()


def test_evaluation_is_the_work_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    asked = CliRunner().invoke(app, ["evaluate", str(tmp_path)])
    assert isinstance(asked.exception, FileNotFoundError)
    monkeypatch.setenv("RANK", "1")
    assert CliRunner().invoke(app, ["evaluate", str(tmp_path)]).exit_code == 0


def test_new_ranks_do_not_find_what_the_dead_have_left_in_the_store() -> None:
    store, patience = HashStore(), timedelta(seconds=60)
    for _ in range(3):  # the second and third time with what is left of those before
        with ThreadPoolExecutor(3) as ranks:
            jobs = [ranks.submit(_own_part, store, rank, 3, patience) for rank in (2, 0, 1)]
            parts = [job.result() for job in jobs]
        assert not parts[0].check(["address of 1"])
        parts[1].set("address of 1", "here")
        assert parts[2].get("address of 1") == b"here"
    with pytest.raises(RuntimeError, match="rank 1 did not come"):
        _own_part(HashStore(), 0, 2, timedelta(seconds=0.1))


def test_the_time_to_wait_for_a_rank_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _patience() == timedelta(minutes=30)
    monkeypatch.setenv(TIMEOUT_VARIABLE, "20")
    assert _patience() == timedelta(seconds=20)
    monkeypatch.setenv(TIMEOUT_VARIABLE, "soon")
    with pytest.raises(ValueError, match="must be a whole number of seconds, got 'soon'"):
        _patience()


def test_a_team_of_one_needs_nobody() -> None:
    team = Team()
    assert team.from_first(lambda: 3) == 3
    team.require_same({"seed": 0})
    with pytest.raises(KeyError), team.together():
        raise KeyError("as it is")
    assert team.device_name("cuda:1") == "cuda:1"


@pytest.mark.parametrize(
    ("name", "cuda", "expected"),
    [
        ("auto", True, "cuda:3"),
        ("cuda", True, "cuda:3"),
        ("auto", False, "cpu"),
        ("cpu", True, "cpu"),
    ],
)
def test_every_rank_has_a_device_of_its_own(
    name: str, cuda: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert Team(rank=11, world=16, local_rank=3).device_name(name) == expected


@pytest.mark.parametrize("name", ["cuda:1", "mps"])
def test_one_device_for_several_ranks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"device={name} is one device, but there are 2 ranks"):
        Team(world=2).device_name(name)
