"""What is around a task fails: python -m faults.surroundings [CASE ...]

The disk fills up, a folder is read-only, memory runs out, the clock jumps, files of the data
change, a process stands still, a bit of a checkpoint flips. After each there is one sentence, or
the task has done what it should; then the command that resumes it gives the same result.

Some cases need root (to mount a small tmpfs, to limit memory) or libfaketime; where they are
missing, the case says so and is passed over.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from faults.forks import Fork
from faults.outcomes import Outcomes, arguments, finish
from faults.processes import family
from faults.tasks import (
    TASKS,
    Result,
    Task,
    call,
    environment,
    lay_out,
    make_materials,
    of_run,
    run,
)
from faults.trials import accompany, compare, rehearse, resumed, start

WRITING = ("convert", "align", "extract", "enrol", "checkpoint", "train")
FLIPS = 1_000
_CGROUP = Path("/sys/fs/cgroup")
_FAKETIME = "faketime/libfaketimeMT.so.1"


class CannotTryError(Exception):
    """A case cannot be tried on this machine."""


@dataclass
class Bench:
    """Where cases are tried, and what came of them; quick: a short selection."""

    work: Path
    outcomes: Outcomes
    seed: int = 0
    quick: bool = False

    @property
    def materials(self) -> Path:
        return make_materials(self.work / "materials")

    def place(self, case: str, task: Task) -> Path:
        place = self.work / "surroundings" / case / task.name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def report(self, fault: str, case: object, *lost: str, seen: str = "") -> None:
        """Keep what came of a case, and print it."""
        command = f"python -m faults.surroundings {fault.partition(':')[0]}"
        wrong = [each for each in lost if each]
        self.outcomes.add(fault, case, *wrong[:1], command=command, all_lost=wrong, seen=seen)
        print(f"{fault}, {case}: {f'LOST {wrong}' if wrong else seen or 'recovered'}", flush=True)

    def after(
        self,
        fault: str,
        case: object,
        task: Task,
        fork: Fork,
        expected: Result,
        *,
        restore: Callable[[], object] = lambda: None,
        forks: bool = False,
    ) -> None:
        """What came of a disturbed command, and after `restore` of the one that resumes it."""
        ended = accompany(task, fork)
        restore()
        killed = ended.code == -signal.SIGKILL  # by the kernel, for want of memory
        wrong = "" if killed else ended.fault()
        seen = "killed, resumed" if killed else ended.sentence
        if ended.code == 0:
            other = compare(task, fork.folder, expected)
        else:
            other = resumed(task, fork.folder, fork.printed.parent, expected, forks=forks)
        self.report(fault, case, wrong, other, seen=seen)


# -- a full disk, and a read-only one --------------------------------------------------------------


@contextmanager
def small_disk(place: Path, megabytes: int = 32) -> Iterator[Path]:
    """A tmpfs of so many megabytes."""
    place.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise CannotTryError(f"no tmpfs can be mounted: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def full_disk(bench: Bench) -> None:
    """Room for a part of what a task writes, from nothing to nearly all."""
    for name in WRITING[:1] if bench.quick else WRITING:
        task = TASKS[name]
        logs = bench.place("full_disk", task)
        with small_disk(logs / "disk") as disk:
            folder = disk / "trial"
            expected = rehearse(task, folder, logs, bench.materials)
            written = shutil.disk_usage(disk).used
            lay_out(bench.materials, folder)
            written -= shutil.disk_usage(disk).used
            rooms = sorted({0, 4096, *(round(written * share / 12) for share in range(1, 12))})
            for room in rooms[::6] if bench.quick else rooms:
                if bench.outcomes.has(f"full_disk: {name}", room):
                    continue
                lay_out(bench.materials, folder)
                with (disk / "filler").open("wb") as filler:
                    os.posix_fallocate(filler.fileno(), 0, shutil.disk_usage(disk).free - room)
                fork, full = start(task.command, folder, logs), disk / "filler"
                bench.after(f"full_disk: {name}", room, task, fork, expected, restore=full.unlink)


def read_only(bench: Bench) -> None:
    """The folder cannot be written, and then it can."""
    for name in TASKS if not bench.quick else ("search",):
        task = TASKS[name]
        if task.talk is not None or bench.outcomes.has("read_only", name):
            continue
        logs = bench.place("read_only", task)
        with small_disk(logs / "disk") as disk:
            folder = disk / "trial"
            expected = rehearse(task, folder, logs, bench.materials)
            lay_out(bench.materials, folder)
            for mode in ("ro", "rw"):
                subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)
                if mode == "ro":
                    fork = start(task.command, folder, logs)
                    ended = accompany(task, fork)
            wrong = resumed(task, folder, logs, expected)
            bench.report("read_only", name, ended.fault(), wrong, seen=ended.sentence)


# -- memory ----------------------------------------------------------------------------------------


@contextmanager
def limited_memory() -> Iterator[Callable[[int, int], None]]:
    """A memory cgroup; gives what puts a process into it with so many bytes."""
    old = _CGROUP / "memory"
    group = (old if old.is_dir() else _CGROUP) / f"sphereface2-faults-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(1 << 40))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise CannotTryError(f"no memory cgroup can be made: {error}") from None

    def put(pid: int, most: int) -> None:
        limit.write_text(str(most))
        (group / "cgroup.procs").write_text(str(pid))

    try:
        yield put
    finally:
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def out_of_memory(bench: Bench) -> None:
    """The kernel kills what takes more than it may have, or refuses it more."""
    with limited_memory() as put:
        for name in WRITING[:1] if bench.quick else (*WRITING, "serve", "sweep"):
            task, forks = TASKS[name], name == "sweep"
            limits = [1 << power for power in range(21, 27)]  # 2 to 64 MB beyond what is loaded
            logs = bench.place("out_of_memory", task)
            folder = logs / "trial"
            expected = rehearse(task, folder, logs, bench.materials, forks=forks)
            for limit in limits[::4] if bench.quick else limits:
                fault, case = f"out_of_memory: {name}", f"{limit >> 20} MB"
                if bench.outcomes.has(fault, case):
                    continue
                lay_out(bench.materials, folder)
                fork = start(task.command, folder, logs, waits=True, forks=forks)
                for process in family(fork.pid):
                    put(process, limit)
                fork.go()
                bench.after(fault, case, task, fork, expected, forks=forks)


# -- the clock -------------------------------------------------------------------------------------


def find_faketime() -> Path:
    """The library of Debian's package libfaketime, or of PyPI's."""
    for folder in (Path("/usr/lib"), *Path("/usr/lib").glob("*-linux-gnu")):
        if (folder / _FAKETIME).exists():
            return folder / _FAKETIME
    for folder in map(Path, sys.path):
        found = folder / "libfaketime/vendor/libfaketime/src/libfaketime.so.1"
        if found.exists():
            return found
    raise CannotTryError("libfaketime is not installed: apt-get install faketime")


def clock(bench: Bench) -> None:
    """The clock jumps by forty days, ahead and back, five times a second."""
    library = find_faketime()
    for name in ("convert",) if bench.quick else (*WRITING, "search", "serve", "sweep"):
        task = TASKS[name]
        if bench.outcomes.has("clock", name):
            continue
        logs = bench.place("clock", task)
        folder, stamp = logs / "trial", logs / "stamp"
        expected = rehearse(task, folder, logs, bench.materials)
        lay_out(bench.materials, folder)
        variables = {
            "PYTHONPATH": os.pathsep.join([str(_sleeping(logs)), os.environ.get("PYTHONPATH", "")]),
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(stamp),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        with jumping(stamp) as jumps:
            done = run(task, folder, variables=variables)
        wrong = f"exit code {done.returncode}: {done.stderr[-300:]}"
        wrong = wrong if done.returncode else compare(task, folder, expected)
        bench.report("clock", name, wrong, seen=f"{len(jumps)} jumps")


def _sleeping(logs: Path) -> Path:
    """A folder by which Python sleeps in another way.

    Where it leaves the monotonic clock alone, libfaketime 0.9.10 refuses every `time.sleep`.
    """
    folder = logs / "site"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import select, time\n"
        "def sleep(seconds): select.select([], [], [], seconds)\n"
        "time.sleep = sleep\n"
    )
    return folder


@contextmanager
def jumping(stamp: Path) -> Iterator[list[str]]:
    """The clock in a file of libfaketime jumps for as long as this lasts; gives the jumps."""
    stamp.write_text("+0")
    jumps: list[str] = []
    is_over = threading.Event()

    def jump() -> None:
        while not is_over.wait(0.2):
            jumps.append(("+40d", "-40d")[len(jumps) % 2])
            stamp.write_text(jumps[-1])

    thread = threading.Thread(target=jump)
    thread.start()
    try:
        yield jumps
    finally:
        is_over.set()
        thread.join()


# -- the data --------------------------------------------------------------------------------------

_LONG = ("training.steps=60", "training.checkpoint_every_steps=5")


def _long_training(source: str, workers: int) -> Task:
    data = ("data={name: recordio, path: noise.rec}",) if source == "rec" else ()
    words = ("train", "tiny.yaml", *data, *_LONG, "--output", "run")
    words += (f"training.workers={workers}", "training.worker_kind=processes")
    return replace(
        TASKS["train"],
        name=f"{source}-{workers}",
        command=words,
        again=lambda folder: (
            ("resume", "run") if (folder / "run" / "config.yaml").exists() else words
        ),
        result=lambda folder: of_run(folder, "run"),
    )


def _spoil(paths: Sequence[Path], how: str) -> None:
    for path in paths:
        if how == "vanishes":
            path.unlink()
        elif how == "shrinks":
            os.truncate(path, path.stat().st_size // 3)
        else:
            with path.open("r+b") as file:  # noise from the middle on
                file.seek(path.stat().st_size // 2)
                file.write(random.Random(0).randbytes(path.stat().st_size // 2))


def data(bench: Bench) -> None:
    """Files of the data change, shrink or vanish while a training reads them."""
    for source in ("folder", "rec"):
        for workers in (0, 1):
            task = _long_training(source, workers)
            logs = bench.place("data", task)
            folder, materials = logs / "trial", _with_records(bench, logs)
            expected: Result = {}
            for how in ("changes", "shrinks", "vanishes"):
                fault, case = f"data: {how}", task.name
                if bench.outcomes.has(fault, case) or (bench.quick and how != "shrinks"):
                    continue
                expected = expected or rehearse(task, folder, logs, materials)
                lay_out(materials, folder)
                fork = start(task.command, folder, logs)
                _wait_for(fork, folder / "run" / "checkpoints" / "last")
                os.kill(fork.pid, signal.SIGSTOP)
                paths = [folder / "noise.rec"] if source == "rec" else _pictures(folder)
                _spoil(paths, how)
                os.kill(fork.pid, signal.SIGCONT)

                def restore(folder: Path = folder, materials: Path = materials) -> None:
                    shutil.copytree(materials / "noise", folder / "noise", dirs_exist_ok=True)
                    shutil.copy(materials / "noise.rec", folder / "noise.rec")

                bench.after(fault, case, task, fork, expected, restore=restore)


def _with_records(bench: Bench, logs: Path) -> Path:
    """The materials with a .rec of the images."""
    place = logs / "materials"
    if not (place / "noise.rec").exists():
        lay_out(bench.materials, place)
        done = call(TASKS["convert"].command, place)
        if done.returncode:
            raise RuntimeError(done.stderr)
    return place


def _pictures(folder: Path) -> list[Path]:
    return sorted((folder / "noise").rglob("*.png"))


def _wait_for(fork: Fork, path: Path) -> None:
    while not path.exists() and fork.poll() is None:
        time.sleep(0.002)


# -- a process that stands still -------------------------------------------------------------------


def standstill(bench: Bench) -> None:
    """SIGSTOP for longer than a lock, a reader or a request is waited for; then it continues."""
    seconds = 2.0 if bench.quick else 6.0
    draw = random.Random(bench.seed)
    for name in ("train",) if bench.quick else (*WRITING, "serve", "sweep"):
        task = TASKS[name]
        logs = bench.place("standstill", task)
        folder = logs / "trial"
        began = time.monotonic()
        expected = rehearse(task, folder, logs, bench.materials)
        took = time.monotonic() - began
        for number in range(1 if bench.quick else 2):
            if bench.outcomes.has(f"standstill: {name}", number):
                continue
            lay_out(bench.materials, folder)
            fork = start(task.command, folder, logs)
            time.sleep(draw.uniform(0, took / 4))
            with suppress(ProcessLookupError):
                os.killpg(fork.pid, signal.SIGSTOP)
            time.sleep(seconds)
            wrong = ""
            if name == "train" and (folder / "run" / "run.lock").exists():
                second = call(task.command, folder)
                expects = second.returncode == 2 and "Traceback" not in second.stderr
                wrong = "" if expects else f"a second training: {second.stderr[-300:]}"
            with suppress(ProcessLookupError):
                os.killpg(fork.pid, signal.SIGCONT)
            ended = accompany(task, fork)
            found = compare(task, folder, expected)
            bench.report(f"standstill: {name}", number, ended.fault(), wrong, found)


# -- a flipped bit ---------------------------------------------------------------------------------


def flipped_bit(bench: Bench) -> None:
    """One bit of a checkpoint, at each of 1,000 places: it is refused, or nothing is another."""
    from sphereface2.backbones import build_backbone
    from sphereface2.runs.folder import run_config
    from sphereface2.runs.train import load_network
    from sphereface2.training.checkpoint import load_checkpoint

    if bench.outcomes.has("flipped_bit", "all"):
        return
    logs = bench.place("flipped_bit", TASKS["checkpoint"])
    folder = lay_out(bench.materials, logs / "trial")
    config = run_config(folder / "begun")
    last = folder / "begun" / "checkpoints" / "last"

    def loaded() -> tuple[object, list[bytes]]:
        network = build_backbone(config.backbone.name, seed=1, **config.backbone.options)
        facts = load_checkpoint(last)
        load_network(network, last, config)
        return facts, [value.numpy().tobytes() for value in network.state_dict().values()]

    before = loaded()
    files = sorted(last.iterdir())
    draw = random.Random(bench.seed)
    unnoticed: list[str] = []
    harmless = 0
    for number in range(30 if bench.quick else FLIPS):
        path = files[number % len(files)]
        whole = path.read_bytes()
        place = draw.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            if loaded() == before:
                harmless += 1
            else:
                unnoticed.append(f"{path.name}, bit {place}")
        except ValueError:
            pass
        except Exception as error:
            unnoticed.append(f"{path.name}, bit {place}: {type(error).__name__}: {error}")
        path.write_bytes(whole)
    count = number + 1
    bench.outcomes.add(
        "flipped_bit",
        "all",
        *unnoticed,
        tried=count,
        command="python -m faults.surroundings flipped_bit",
        harmless=harmless,
    )
    noticed = count - harmless - len(unnoticed)
    print(f"flipped bits: {noticed} noticed, {harmless} change nothing, {len(unnoticed)} unnoticed")


# -- what was printed ------------------------------------------------------------------------------


def full_output(bench: Bench) -> None:
    """What a command prints goes to a file on a full disk."""
    for name in ("convert", "search"):
        if bench.outcomes.has("full_output", name):
            continue
        logs = bench.place("full_output", TASKS[name])
        folder = lay_out(bench.materials, logs / "trial")
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "sphereface2", *TASKS[name].command],
                cwd=folder,
                env=environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        is_told = done.returncode == 2 and "sphereface2: " in done.stderr
        wrong = "" if is_told and "Traceback" not in done.stderr else done.stderr[-300:]
        said = done.stderr.strip().splitlines()[-1:]
        bench.report("full_output", name, wrong and f"{done.returncode}: {wrong}", seen=str(said))


CASES = {
    case.__name__: case
    for case in (
        full_disk,
        read_only,
        full_output,
        out_of_memory,
        clock,
        data,
        standstill,
        flipped_bit,
    )
}


def main() -> None:
    given = arguments(__doc__, CASES).parse_args()
    outcomes = Outcomes(given.work / "surroundings.json")
    bench = Bench(given.work.resolve(), outcomes, given.seed, given.quick)
    for name in given.names or CASES:
        try:
            CASES[name](bench)
        except CannotTryError as error:
            print(f"{name} is passed over: {error}", flush=True)
    finish(outcomes)


if __name__ == "__main__":
    main()
