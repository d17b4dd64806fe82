"""How many small faults the tests catch: mutation testing, on a sample.

    python -m benchmarks.mutants --sample 200 --seed 0
    python -m benchmarks.mutants heads/engine.py evaluation/metrics.py --sample 0

A mutant is the package with one small fault (`mutations.py`). The tests that run the function it is
in are run against it, file by file until one notices: those of the module itself first, then the
shortest, those with ranks last. A mutant that none of them notices survives and is shown.
Everything happens in copies of the repository, one per process of a small pool; a mutant has a
process of its own, forked from one that has the package and its tests loaded already, where its
function is exchanged. What cannot be exchanged, or survives although its function had run while
all was loaded, is tried again in a process that loads the package with the fault. Which tests run
which function is recorded once; that and every outcome are kept in `.mutants/`, so that a stopped
run continues where it was. --sample 0 takes all mutants.

A survivor that cannot be noticed stands in `benchmarks/equivalent_mutants.txt`, with the reason.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from benchmarks.mutations import Mutant, mutants_of

ROOT = Path(__file__).parent.parent
PACKAGE = Path("src/sphereface2")
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
KEPT = ROOT / ".mutants"

# What is mutated by default, and the tests that are asked.
STAGES = {
    "heads": ["tests/heads"],
    "evaluation": [
        "tests/evaluation",
        "tests/reporting",
        "tests/cli/test_inspect.py",
        "tests/cli/test_compare_and_calibrate.py",
        "tests/cli/test_evaluate.py",
        "tests/datatools/test_inspection.py",
        "tests/models",
    ],
    "training": ["tests/training", "tests/runs"],
    "data/mixing.py": ["tests/data/test_mixing.py"],
    "data/transforms.py": ["tests/data/test_transforms.py"],
    "data/loader/loader.py": ["tests/data/test_loader.py", "tests/data/test_mixing.py"],
}
# Tested by ranks, in processes of their own: nothing is recorded there, and a mutant takes half a
# minute. They are mutated only if they are named themselves.
WITH_RANKS = {
    "heads/sharding.py": "tests/distributed/test_sharding.py",
    "training/distributed.py": "tests/distributed/test_training.py",
}
# Ranks are asked last about the other modules of these stages, too.
RANKS = {
    "heads": "tests/distributed/test_sharding.py",
    "training": "tests/distributed/test_training.py",
}
QUICK_SECONDS = 40.0
"""Tests beyond so many seconds in all, and ranks, are asked only where the others see nothing."""

_BROKEN = 70  # exit code of a process in which not a test failed, but this program
_UNSURE = 71  # exit code of one in which the fault may not have shown

Calls = dict[str, dict[str, Any]]
"""Of each test its file, its seconds and the functions ("module function") that it runs."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: "caught", "timeout" (caught, too), "survived" or "no test".

    "unsure" is in between: it survived where all was loaded before the fault was there.
    """

    status: str
    seconds: float
    module: str
    """Digest of the module, without the fault."""
    tests: str
    """Digest of the tests that were asked."""

    @property
    def is_caught(self) -> bool:
        return self.status in ("caught", "timeout")

    def holds(self, trial: Trial) -> bool:
        """Whether it is that of a trial, too: more tests do not let go what others caught."""
        module, tests = trial.digests
        return self.module == module and (self.is_caught or self.tests == tests)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    os.nice(5)  # hours of work that nobody waits for
    modules = _modules(options.modules)
    known = read_equivalent(EQUIVALENT)
    # A process that is stopped may still be writing its log there.
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as place:
        # All is read from the copy: edits made meanwhile disturb nothing.
        copies = [Path(place, str(number)) for number in range(options.processes)]
        for copy in copies:
            _copy(copy)
        mutants = _in_order(copies[0], modules, options.seed)
        drawn = mutants[: options.sample or None]
        asked = [mutant for mutant in drawn if mutant.key not in known]
        for key in known.keys() - {mutant.key for mutant in mutants}:
            if key.split(" ")[0] in modules:
                console.print(f"no longer in the code, but listed as equivalent: {escape(key)}")
        _load_libraries()
        try:
            with Progress(console=console) as progress:
                with _pool(copies, ()) as pool:
                    calls = _record(pool, copies[0], modules, progress, again=options.record)
                outcomes = _judge(asked, copies, calls, progress, console, seconds=options.seconds)
        except KeyboardInterrupt:
            console.print("stopped; the same command continues")
            return 130
    _report(asked, outcomes, len(drawn) - len(asked), options.seed, console)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants", description="How many small faults the tests catch."
    )
    parser.add_argument("modules", nargs="*", help="stages or modules, e.g. heads data/mixing.py")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--processes", type=int, default=2, help="mutants at the same time")
    parser.add_argument("--record", action="store_true", help="record again what each test runs")
    parser.add_argument(
        "--seconds",
        type=float,
        help="processor time of the tests of a mutant, ranks left out; a lower bound of the share",
    )
    return parser.parse_args(arguments)


def _modules(names: Sequence[str]) -> list[str]:
    """The modules of these names, relative to the package."""
    found: list[str] = []
    for name in names or STAGES:
        path = ROOT / PACKAGE / name
        if not path.exists():
            sys.exit(f"there is no {path}; name a folder or file of {PACKAGE}")
        if path.is_dir():
            inside = (str(each.relative_to(ROOT / PACKAGE)) for each in sorted(path.rglob("*.py")))
            found += [module for module in inside if module not in WITH_RANKS]
        else:
            found.append(str(path.relative_to(ROOT / PACKAGE)))
    return found


def _in_order(copy: Path, modules: Sequence[str], seed: int) -> list[Mutant]:
    found = [
        mutant
        for module in modules
        for mutant in mutants_of(module, (copy / PACKAGE / module).read_bytes())
    ]
    # By a hash of its own each: a change elsewhere in the code leaves the rest of a sample alone.
    found.sort(key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())
    return found


def read_equivalent(path: Path) -> dict[str, str]:
    """The mutants that cannot be noticed: a line each, and an indented line with the reason."""
    known: dict[str, str] = {}
    key = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            known[key] = line.strip()
        elif line and not line.startswith("#"):
            key = line
    return known


# -- the copy, and processes that have torch loaded ------------------------------------------------


def _copy(place: Path) -> None:
    """A copy of the files that git knows of, with the times that they have."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def _load_libraries() -> None:
    """What costs seconds to import and is never mutated."""
    import cv2
    import matplotlib.pyplot
    import pydantic
    import safetensors.torch
    import scipy.stats
    import sklearn.metrics
    import torch.distributed.checkpoint
    import typer

    assert all((cv2, matplotlib, pydantic, safetensors, scipy, sklearn, typer))
    torch.set_num_threads(1)
    assert "sphereface2" not in sys.modules


@contextmanager
def _pool(copies: Sequence[Path], tests: Sequence[str]) -> Iterator[ProcessPoolExecutor]:
    """A process for each copy, which has these files of tests loaded, and the package with them."""
    forking = multiprocessing.get_context("fork")
    rooms = forking.SimpleQueue()
    for copy in copies:
        rooms.put(copy)
    with ProcessPoolExecutor(len(copies), forking, _enter, (rooms, tests)) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _enter(rooms: multiprocessing.SimpleQueue[Path], tests: Sequence[str]) -> None:
    """A process of the pool works in a copy of its own."""
    copy = rooms.get()
    os.environ["PYTHONPATH"] = str(copy / "src")
    outside = (path for path in sys.path if path not in (str(ROOT), str(ROOT / "src")))
    sys.path[:] = [str(copy / "src"), str(copy), *outside]
    os.chdir(copy)
    if tests:
        recorder = Recorder(copy / PACKAGE, patience=math.inf)
        with (copy / "load.log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
            sys.settrace(recorder.note)
            _pytest(["--collect-only", *tests])
            sys.settrace(None)
        _RUN_BY_LOADING.update(recorder.functions)
        _LOADED.extend(loaded_functions(copy / PACKAGE))
        gc.freeze()  # a collection in a fork would copy all that is loaded here


_LOADED: list[FunctionType] = []
"""The functions of the package, as this process has loaded them."""

_RUN_BY_LOADING: set[str] = set()
"""Functions that have run while this process loaded the tests: what they made has no fault."""


def loaded_functions(package: Path) -> list[FunctionType]:
    """All functions that come from files of a folder."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is FunctionType  # isinstance would ask objects that warn when asked
        and each.__code__.co_filename.startswith(f"{package}/")
    ]


def exchange(path: Path, function: str, source: bytes, *, among: Iterable[FunctionType]) -> bool:
    """Give a function that is loaded its code in `source`; whether it could be found and fits."""
    outer = function.split(".<locals>")[0]
    codes = [compile(source, str(path), "exec")]
    while codes and codes[-1].co_qualname != outer:
        code = codes.pop()
        codes[:0] = [each for each in code.co_consts if isinstance(each, CodeType)]
    loaded = [
        each
        for each in among
        if each.__code__.co_qualname == outer and each.__code__.co_filename == str(path)
    ]
    if not codes or not loaded:
        return False
    for each in loaded:
        if each.__code__.co_freevars != codes[-1].co_freevars:
            return False
        each.__code__ = codes[-1]
    return True


def _forked(work: Callable[[], int], *, timeout: float, log: Path) -> int | None:
    """The exit code of `work` in a process of its own; None if it did not end in time."""
    child = os.fork()
    if child == 0:
        code = _BROKEN
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    ends = time.monotonic() + timeout
    try:
        while time.monotonic() < ends:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None
    finally:
        if child:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


class Chosen:
    """A pytest plugin that runs these tests only: file by file, so that fixtures are made once."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.tests = set(tests)
        self.files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        self.has_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.has_failed |= report.failed

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [
            item
            for item in items
            if item.nodeid in self.tests or item.nodeid.split("::")[0] in self.tests
        ]


def _pytest(files: Sequence[str], *plugins: object) -> int:
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    return int(pytest.main(arguments, plugins=list(plugins)))


# -- which tests run which function ----------------------------------------------------------------


def _processor_seconds() -> float:
    """Of this process and of those that it has started and seen end, however busy the machine."""
    return sum(os.times()[:4])


class Recorder:
    """A pytest plugin that notes the functions of the package that each test calls."""

    def __init__(self, package: Path, *, patience: float = 1_000_000) -> None:
        self.package = f"{package}/"
        self.patience = patience
        self.calls: Calls = {}
        self._seen: set[Any] = set()
        self._calls = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._seen, self._calls = set(), 0
        began = _processor_seconds()
        threading.settrace(self.note)
        sys.settrace(self.note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            entry = self.calls.setdefault(item.nodeid, {"is_good": True})
            entry["seconds"] = _processor_seconds() - began
            entry["functions"] = sorted(self.functions)

    @property
    def functions(self) -> set[str]:
        """Those of the package that were called since the test began."""
        return {
            f"{code.co_filename.removeprefix(self.package)} {code.co_qualname}"
            for code in self._seen
            if code.co_filename.startswith(self.package)
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        entry = self.calls.setdefault(report.nodeid, {"is_good": True})
        entry["is_good"] &= not report.failed

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        # As the trace of calls it is not asked about lines, nor about functions written in C.
        self._calls += 1
        if frame.f_code not in self._seen:
            self._seen.add(frame.f_code)
            self._calls = 0
        elif self._calls > self.patience:
            sys.settrace(None)  # thousands of rounds of the same: what it calls is known


def _record(
    pool: ProcessPoolExecutor,
    copy: Path,
    modules: Sequence[str],
    progress: Progress,
    *,
    again: bool,
) -> Calls:
    """What each test of the modules' stages calls; recorded again when the test's file changes."""
    kept = _load(KEPT / "calls.json")
    files: list[Path] = []
    for stage, tests in STAGES.items():
        if any(module.startswith(stage) for module in modules):
            for test in tests:
                path = copy / test
                files += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    files += sorted({copy / test for module, test in WITH_RANKS.items() if module in modules})
    digests = {str(path.relative_to(copy)): _digest(path.read_bytes()) for path in files}
    task = progress.add_task("recording what each test runs", total=len(digests))
    work = {
        pool.submit(_recorded, name): name
        for name, digest in digests.items()
        if again or kept.get(name, {}).get("digest") != digest
    }
    progress.advance(task, len(digests) - len(work))
    for done in as_completed(work):
        name = work[done]
        kept[name] = {"digest": digests[name], "calls": done.result()}
        _save(KEPT / "calls.json", kept)
        progress.advance(task)
    return {
        test: entry
        for name in digests
        for test, entry in kept[name]["calls"].items()
        if entry["is_good"]
    }


def _recorded(name: str) -> Calls:
    """What each test of a file calls, seen in a process of its own."""
    copy = Path.cwd()
    result, log = copy / "calls.json", copy / "record.log"

    def work() -> int:
        recorder = Recorder(copy / PACKAGE)
        code = _pytest([name], recorder)
        result.write_text(json.dumps(recorder.calls), encoding="utf-8")
        return code

    result.unlink(missing_ok=True)
    _forked(work, timeout=1800, log=log)
    if not result.exists():
        raise RuntimeError(f"{name} cannot be run:\n{log.read_text()}")
    return _load(result)


def _tests_for(
    mutant: Mutant, calls: Calls, *, seconds: float = QUICK_SECONDS
) -> tuple[list[str], list[str]]:
    """The tests that run the function of a mutant, in order; and those to ask after them."""
    wanted = f"{mutant.module} {mutant.function}"
    found = [
        test
        for test, entry in calls.items()
        if any(
            name == wanted or (not mutant.function and name.startswith(wanted))
            for name in entry["functions"]
        )
        # A test that runs nothing of the package looks at what loading it has made.
        or (not mutant.function and not entry["functions"])
        or test.split("::")[0] == WITH_RANKS.get(mutant.module)
    ]
    own = f"/test_{Path(mutant.module).stem}.py::"
    found.sort(key=lambda test: (own not in test, calls[test]["seconds"]))
    quick: list[str] = []
    total = 0.0
    for test in found:
        total += calls[test]["seconds"]
        if total < seconds or not quick:
            quick.append(test)
    slow = found[len(quick) :]
    stage = mutant.module.split("/")[0]
    if found and mutant.module not in WITH_RANKS and stage in RANKS:
        slow.append(RANKS[stage])
    return quick, slow


# -- judging ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A mutant, and the rounds of tests to ask with the seconds of each round."""

    mutant: Mutant
    rounds: tuple[tuple[list[str], float], ...]
    digests: tuple[str, str]


def _judge(
    mutants: Sequence[Mutant],
    copies: Sequence[Path],
    calls: Calls,
    progress: Progress,
    console: Console,
    *,
    seconds: float | None,
) -> dict[str, Outcome]:
    path = KEPT / "outcomes.json"
    kept = {key: Outcome(**values) for key, values in _load(path).items()}
    found: dict[str, Outcome] = {}
    task = progress.add_task("mutants", total=len(mutants))
    trials: list[Trial] = []
    for mutant in mutants:
        trial = _trial(mutant, copies[0], calls, seconds=seconds)
        known = kept.get(mutant.key)
        if known is None or not known.holds(trial):
            trials.append(trial)
            continue
        found[mutant.key] = known
        progress.advance(task)
        if not known.is_caught:
            _show(mutant, known, console)
    quick = [trial for trial in trials if trial.mutant.function and trial.rounds]
    files = sorted({test.split("::")[0] for trial in quick for test in trial.rounds[0][0]})
    for is_loaded in (True, False):
        with _pool(copies, files if is_loaded else ()) as pool:
            if is_loaded and quick:
                _require_that_tests_pass(pool, min(quick, key=lambda each: each.rounds[0][1]))
            work = {pool.submit(_outcome, trial, is_loaded=is_loaded): trial
                    for trial in (quick if is_loaded else trials)
                    if trial.mutant.key not in found}  # fmt: skip
            for done in as_completed(work):
                mutant, outcome = work[done].mutant, done.result()
                if outcome.status == "unsure":
                    continue
                found[mutant.key] = kept[mutant.key] = outcome
                _save(path, {key: vars(value) for key, value in kept.items()})
                progress.advance(task)
                if not outcome.is_caught:
                    _show(mutant, outcome, console)
    return found


def _require_that_tests_pass(pool: ProcessPoolExecutor, trial: Trial) -> None:
    """A process that fails tests of the code as it is would catch every fault."""
    mutant = replace(trial.mutant, start=0, end=0, text="")
    if pool.submit(_outcome, replace(trial, mutant=mutant), is_loaded=True).result().is_caught:
        sys.exit("tests that pass by themselves fail where the package is loaded already")


def _trial(mutant: Mutant, copy: Path, calls: Calls, *, seconds: float | None = None) -> Trial:
    source = (copy / PACKAGE / mutant.module).read_bytes()
    quick, slow = _tests_for(mutant, calls, seconds=seconds or QUICK_SECONDS)
    rounds = [tests for tests in (quick, [] if seconds else slow) if tests]
    files = sorted({test.split("::")[0] for tests in rounds for test in tests})
    asked = "" if seconds is None else f"{seconds:g} seconds"
    contents = [(copy / file).read_bytes() for file in files]
    digests = _digest(source), _digest(asked.encode(), *contents)
    times = [sum(calls[t]["seconds"] for t in tests if t in calls) for tests in rounds]
    return Trial(mutant, tuple(zip(rounds, times, strict=True)), digests)


def _outcome(trial: Trial, *, is_loaded: bool) -> Outcome:
    """What the tests say, round by round until one notices."""
    began = time.perf_counter()
    status = "no test"
    for tests, seconds in trial.rounds:
        # On a busy machine, and behind others on it, everything takes longer.
        slowness = max(1.0, 4 * os.getloadavg()[0] / (os.cpu_count() or 1))
        timeout = slowness * (60 + 5 * seconds)
        status = _status(trial.mutant, tests, timeout=timeout, is_loaded=is_loaded)
        if status != "survived":
            break
    return Outcome(status, time.perf_counter() - began, *trial.digests)


def _status(mutant: Mutant, tests: list[str], *, timeout: float, is_loaded: bool) -> str:
    copy = Path.cwd()
    path = copy / PACKAGE / mutant.module
    times, source = path.stat(), path.read_bytes()
    # Of the same second and size as the file before, it would be taken from the cache of bytecode.
    path.write_bytes(mutant.applied(source))

    def work() -> int:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        faulty = mutant.applied(source)
        if is_loaded and not exchange(path, mutant.function, faulty, among=_LOADED):
            return _UNSURE
        chosen = Chosen(tests)
        for file in chosen.files:  # each by itself: to collect all takes longer than most need
            try:
                code = _pytest(["-x", file], chosen)
            except Exception:  # processes that a failed test has left behind
                if not chosen.has_failed:
                    raise
                return int(pytest.ExitCode.TESTS_FAILED)
            if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                return code
        outer = mutant.function.split(".<locals>")[0]
        return _UNSURE if is_loaded and f"{mutant.module} {outer}" in _RUN_BY_LOADING else 0

    try:
        code = _forked(work, timeout=timeout, log=copy / "mutant.log")
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if code is None:
        return "timeout"
    if code == _BROKEN:
        raise RuntimeError(f"{mutant.key} could not be tried:\n{(copy / 'mutant.log').read_text()}")
    return {0: "survived", _UNSURE: "unsure"}.get(code, "caught")


def _show(mutant: Mutant, outcome: Outcome, console: Console) -> None:
    place = f"{mutant.module}:{mutant.line} {mutant.function or '(import)'}"
    console.print(f"[bold]{outcome.status}[/] {escape(place)}", highlight=False)
    console.print(f"  [red]- {escape(mutant.before)}[/]", highlight=False, soft_wrap=True)
    console.print(f"  [green]+ {escape(mutant.after)}[/]", highlight=False, soft_wrap=True)


def _report(
    mutants: Sequence[Mutant],
    outcomes: dict[str, Outcome],
    equivalent: int,
    seed: int,
    console: Console,
) -> None:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for mutant in mutants:
        stage = mutant.module.split("/")[0]
        for name in (stage, f"  {mutant.module}", "all"):
            counts[name][0] += outcomes[mutant.key].is_caught
            counts[name][1] += 1
    order = sorted(counts, key=lambda name: (name == "all", name.strip()))
    for name in order:
        caught, total = counts[name]
        console.print(f"{name:<42} {caught:>5} of {total:>5} caught  {caught / total:>6.1%}")
    seconds = [outcome.seconds for outcome in outcomes.values()]
    mean = sum(seconds) / len(seconds) if seconds else 0.0
    console.print(
        f"seed {seed}, {mean:.1f} s per mutant, {equivalent} equivalent ones left out of the share"
    )


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _save(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".partial")
    beside.write_text(json.dumps(values), encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
