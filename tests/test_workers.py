"""Work in processes, how much of the machine this process may use, and how to add what it lacks."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from sphereface2 import workers as machine
from sphereface2.workers import (
    LostWorkerError,
    Program,
    counted,
    first_of,
    in_processes,
    in_words,
    install_command,
    signal_name,
    survives,
    usable_cores,
)


def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert usable_cores() == 3


@pytest.mark.parametrize(("count", "said"), [(6, 6), (None, 1)])
def test_without_such_a_limit_all_cores_are(
    count: int | None, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert usable_cores() == said


def test_an_extra_is_installed_by_the_names_of_its_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = ["torch>=2.6", "pyarrow>=15; extra == 'parquet'", 'dry; extra == "dry"']
    monkeypatch.setattr(machine, "requires", lambda name: wanted)
    assert install_command("parquet") == "pip install 'pyarrow>=15'"
    assert install_command("dry") == "pip install dry"


def test_a_clone_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine, "requires", missing)
    assert install_command("align") == "pip install -e '.[align]'"


# -- processes -----------------------------------------------------------------------------------


class Squares:
    """Remembers what it has worked on, as far as its own process knows."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, number: int) -> tuple[int, int, int]:
        self.seen.append(number)
        os.kill(os.getpid(), signal.SIGINT)  # a Ctrl-C in the terminal reaches all processes
        return number**2, len(self.seen), os.getpid()


def test_tasks_are_done_by_processes_that_keep_what_they_have_and_leave_ctrl_c() -> None:
    results = dict(in_processes(Squares(), range(20), workers=2))
    assert {task: square for task, (square, _, _) in results.items()} == {
        number: number**2 for number in range(20)
    }
    seen: dict[int, int] = {}
    for _, count, process in results.values():
        seen[process] = max(count, seen.get(process, 0))
    assert len(seen) == 2
    assert sum(seen.values()) == 20
    assert os.getpid() not in seen
    assert multiprocessing.active_children() == []


def fail(number: int) -> int:
    if number == 3:
        raise CannotBeSentError(number, why="three")
    return number


class CannotBeSentError(ValueError):
    def __init__(self, number: int, *, why: str) -> None:
        super().__init__(f"{number} is {why}")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_here_and_ends_the_processes(workers: int) -> None:
    with pytest.raises(ValueError, match="3 is three"):
        list(in_processes(fail, range(100), workers=workers))
    assert multiprocessing.active_children() == []


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_process_that_dies_is_reported_with_its_task() -> None:
    with pytest.raises(LostWorkerError, match="a worker process died") as lost:
        list(in_processes(die, range(100), workers=2))
    assert lost.value.task == 3
    assert multiprocessing.active_children() == []


def test_tasks_are_taken_as_they_are_needed_and_closing_ends_the_processes() -> None:
    taken = []

    def tasks() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    results = in_processes(abs, tasks(), workers=2)
    next(results)
    assert len(taken) < 10
    assert len(multiprocessing.active_children()) == 2
    results.close()
    assert multiprocessing.active_children() == []


def raises() -> bool:
    raise RuntimeError("no")


def dies() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


@pytest.mark.parametrize(
    ("trial", "expected"),
    [(lambda: True, True), (lambda: False, False), (raises, False), (dies, False)],
)
def test_a_trial_may_end_its_process(trial: Callable[[], bool], expected: bool) -> None:
    assert survives(trial) is expected


# -- programs --------------------------------------------------------------------------------------

PATIENCE = 30.0


def written(log: Path, words: int) -> list[str]:
    """So many words of a log, as soon as they are there."""
    deadline = time.monotonic() + PATIENCE
    while len(found := log.read_text().split()) < words:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def start(code: str, log: Path) -> Program:
    with log.open("ab") as file:
        return Program("-c", code, environment={}, log=file)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(process: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while is_alive(process):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_has_an_environment_a_log_files_and_a_session_of_its_own(tmp_path: Path) -> None:
    code = """
import os, signal, sys
assert os.getsid(0) == os.getpid()
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGTERM}
os.write(int(sys.argv[1]), b"written")
print(os.environ["WORD"], "HOME" in os.environ, flush=True)
sys.exit("and an error")
"""
    there, here = os.pipe()
    with (tmp_path / "log").open("ab") as log:
        program = Program(
            *("-c", code, str(here)),
            environment={"WORD": "said", "HOME": "/"},
            log=log,
            files=[here],
            held_back=[signal.SIGTERM],
        )
    assert program.code(patience=PATIENCE) == 1
    assert (tmp_path / "log").read_text() == "said True\nand an error\n"
    assert os.read(there, 100) == b"written"
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    program.end()
    os.close(there)
    os.close(here)


OBEYS = """
import time
from sphereface2.workers import stop_with_input
stop_with_input()
print("ready", flush=True)
time.sleep(600)
"""


def test_a_program_that_is_asked_to_stop_gets_a_ctrl_c(tmp_path: Path) -> None:
    program = start(OBEYS, tmp_path / "log")
    assert written(tmp_path / "log", 1) == ["ready"]
    assert program.code() is None
    program.ask_to_stop()
    assert program.code(patience=PATIENCE) == -signal.SIGINT
    program.end()


STARTS_ANOTHER = """
import time
from pathlib import Path
from tests.test_workers import OBEYS, start, written
log = Path({!r})
program = start(OBEYS, log)
written(log, 1)
print(program.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_program_stops_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    code = STARTS_ANOTHER.format(str(tmp_path / "log"))
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root
    ) as starter:
        assert starter.stdout is not None
        program = int(starter.stdout.readline())
        assert is_alive(program)
        starter.kill()
    ends(program)
    assert "KeyboardInterrupt" in (tmp_path / "log").read_text()


HAS_A_CHILD = """
import os, time
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("is_killed", [True, False])
def test_ending_a_program_ends_what_it_has_started(tmp_path: Path, is_killed: bool) -> None:
    program = start(HAS_A_CHILD, tmp_path / "log")
    child = int(written(tmp_path / "log", 1)[0])
    if is_killed:
        os.kill(program.pid, signal.SIGKILL)
        assert program.code(patience=PATIENCE) == -signal.SIGKILL
    assert is_alive(child)
    program.end(patience=0.1)
    assert program.code() == -signal.SIGKILL
    ends(child)


def test_signals_have_names_or_numbers() -> None:
    assert signal_name(signal.SIGKILL) == "SIGKILL"
    assert signal_name(40) == "signal 40"


SECONDS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "day": 86400, "days": 86400}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.000843, "0.84 ms"),
        (0.0843, "84 ms"),
        (0.34, "0.34 s"),
        (4.24, "4.2 s"),
        (9.97, "10 s"),
        (48.4, "48 s"),
        (59.7, "1 min"),
        (185, "3 min 5 s"),
        (599.7, "10 min"),
        (720, "12 min"),
        (3580, "1 h"),
        (12_240, "3 h 24 min"),
        (86_000, "1 day"),
        (100_000, "1 day 4 h"),
        (9.4 * 86_400, "9 days 10 h"),
        (1234.4 * 86_400, "1,234 days"),
    ],
)
def test_the_units_suit(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


def test_any_duration_is_reported_within_a_twentieth() -> None:
    seconds = 2e-6
    while seconds < 1e9:
        words = re.findall(r"([\d.,]+) (\w+)", in_words(seconds))
        reported = sum(float(number.replace(",", "")) * SECONDS[unit] for number, unit in words)
        assert reported == pytest.approx(seconds, rel=0.05), words
        assert all(
            float(number.replace(",", "")) < 1000 for number, unit in words if unit != "days"
        )
        seconds *= 1.013


def test_one_of_a_thing_is_singular() -> None:
    assert counted(1, "crop") == "1 crop"
    assert counted(0, "crop") == "0 crops"
    assert counted(2000, "crop") == "2,000 crops"
    assert [counted(count, "person", "people") for count in (1, 3)] == ["1 person", "3 people"]


def test_the_first_few_of_many() -> None:
    assert first_of([1, 2, 3, 4, 5]) == "1, 2, 3, 4, 5"
    assert first_of([1, 2, 3, 4, 5, 6]) == "1, 2, 3, 4, 5, ..."
    assert first_of("abc", shown=2) == "a, b, ..."
