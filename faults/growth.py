"""Half an hour of training and of serving: do memory, files or descriptors grow?

python -m faults.growth [--minutes 30]

Both run side by side, each a process of its own: a training of image files by two reader processes
with checkpoints and evaluations, and a service of which a caller enrols, searches, compares and
removes people.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from faults.outcomes import Outcomes, arguments, finish
from faults.processes import descriptors, family, megabytes
from faults.tasks import PEOPLE, TASKS, environment, lay_out, make_materials, start_service

# Steps of a tiny network without end; every 40 of them an evaluation and a checkpoint.
TRAINING = [
    "training.steps=100000000", "training.workers=2", "training.worker_kind=processes",
    "training.evaluate_every=20", "training.checkpoint_every=20",
    "training.checkpoint_every_steps=0", "training.log_every=20",
]  # fmt: skip
_ROUNDING_MB = 2.0  # what an allocator gives and takes
_SHARE = 0.02


@dataclass(frozen=True)
class Sample:
    """What a process and those that it started hold after so many seconds."""

    seconds: float
    megabytes: float
    descriptors: int
    files: int


def sample(process: int, folder: Path, began: float) -> Sample:
    those = family(process)
    return Sample(
        round(time.monotonic() - began, 1),
        round(sum(map(megabytes, those)), 2),
        sum(map(descriptors, those)),
        sum(path.is_file() for path in folder.rglob("*")),
    )


def grown(samples: list[Sample]) -> list[str]:
    """What the last quarter of the time has more than the second; the first is for warming up."""
    quarter = len(samples) // 4
    if not quarter:
        return ["it ended too early to say"]
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]
    found = []
    for name in ("megabytes", "descriptors", "files"):
        first, last = (median(getattr(each, name) for each in part) for part in (before, after))
        allowed = max(_ROUNDING_MB, _SHARE * first) if name == "megabytes" else 0.5
        if last > first + allowed:
            found.append(f"{name} grew from {first:g} to {last:g}")
    return found


class Caller(threading.Thread):
    """Asks a service for everything that it does, again and again, and leaves nobody behind."""

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__(daemon=True)
        self.address, self.folder = address, folder
        self.stops = threading.Event()
        self.rounds = 0
        self.error = ""

    def run(self) -> None:
        try:
            while not self.stops.is_set():
                self.ask()
                self.rounds += 1
        except Exception as error:
            self.error = f"the service failed: {error}"

    def ask(self) -> None:
        from sphereface2.recognition.gate import Gate
        from sphereface2.service.client import Client

        photos = {name: sorted((self.folder / "crops" / name).iterdir()) for name in PEOPLE}
        with Client(self.address, kind="crop") as client:
            gallery = client.open_gallery()
            for name in PEOPLE:
                client.enroll(name, photos[name], gallery, gate=Gate.of(allow=["all"]))
            for name in PEOPLE:
                client.identify(photos[name][0], gallery)
                client.verify(photos[name][0], photos[name][1])
                client.embed(photos[name])
                self.stops.wait(0.2)
            for name in PEOPLE:
                gallery.remove(name)


def watch(
    processes: dict[str, tuple[int, Path]], *, minutes: float, every: float
) -> dict[str, list[Sample]]:
    """Samples of some processes over so many minutes."""
    found: dict[str, list[Sample]] = {name: [] for name in processes}
    said = began = time.monotonic()
    while time.monotonic() < began + 60 * minutes:
        time.sleep(every)
        for name, (process, folder) in processes.items():
            found[name].append(sample(process, folder, began))
        if time.monotonic() > said + 60:
            said = time.monotonic()
            now = "; ".join(
                f"{name}: {each[-1].megabytes:.1f} MB, {each[-1].descriptors} descriptors, "
                f"{each[-1].files} files"
                for name, each in found.items()
            )
            print(f"{(said - began) / 60:.0f} min: {now}", flush=True)
    return found


def _warm_up(training: Path, caller: Caller, processes: Sequence[subprocess.Popen[Any]]) -> None:
    """Until both have done everything twice, or one has ended: on a busy machine it takes long."""

    def evaluations() -> int:
        with suppress(OSError):
            return (training / "metrics.jsonl").read_text().count('"kind": "evaluation"')
        return 0

    while evaluations() < 2 or caller.rounds < 2:
        if not caller.is_alive() or any(each.poll() is not None for each in processes):
            return
        time.sleep(0.1)


def run(work: Path, *, minutes: float) -> dict[str, tuple[list[str], list[Sample]]]:
    """What grew in training and in serving, and the samples."""
    materials = make_materials(work / "materials")
    trained, served = (lay_out(materials, work / "growth" / name) for name in ("train", "serve"))
    words = [sys.executable, "-m", "sphereface2", "train", "tiny.yaml", *TRAINING]
    with (trained / "log.txt").open("w") as log:
        training = subprocess.Popen(
            [*words, "--output", "run"], cwd=trained, env=environment(),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    service, address = start_service(TASKS["serve"], served)
    caller = Caller(address, served)
    try:
        caller.start()
        _warm_up(trained / "run", caller, [training, service])
        found = watch(
            {"training": (training.pid, trained), "serving": (service.pid, served)},
            minutes=minutes,
            every=min(10.0, 60 * minutes / 40),
        )
        caller.stops.set()
        caller.join(60)
        is_alive = training.poll() is None and service.poll() is None
    finally:
        for process in (training, service):
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(120) for process in (training, service)]
    print(f"{caller.rounds} rounds of requests; exit codes {codes}")
    if not is_alive:
        raise RuntimeError(f"a process has ended early, with {codes}; see {work / 'growth'}")
    return {
        name: (grown(each) + ([caller.error] if name == "serving" and caller.error else []), each)
        for name, each in found.items()
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    given = parser.parse_args()
    minutes = 0.5 if given.quick else given.minutes
    outcomes = Outcomes(given.work / "growth.json")
    faults = {name: f"{minutes:g} minutes of {name}" for name in ("training", "serving")}
    if not all(outcomes.has(fault, 0) for fault in faults.values()):
        for name, (lost, samples) in run(given.work.resolve(), minutes=minutes).items():
            outcomes.add(
                faults[name], 0, *lost,
                command=f"python -m faults.growth --minutes {minutes:g}",
                samples=[asdict(each) for each in samples],
            )  # fmt: skip
    finish(outcomes)


if __name__ == "__main__":
    main()
