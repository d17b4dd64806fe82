"""Kills at random moments: kill -9, SIGTERM and SIGINT of every task, and of parts of tasks.

python -m faults.kills [TASK ...]

Each trial is a fresh copy of the materials: the task begins, is ended at a moment that a seed draws
over the time it takes undisturbed, and is resumed. Then its result is that of the undisturbed task
to the last bit, its folder holds the same files, and no process is left. Of two ranks one is
killed, of a training its reader, of a sweep its worker, of a service its process while several
callers enrol: what it has acknowledged is there afterwards, and nothing twice.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from faults.enrolments import run as enrol_with_kills
from faults.forks import SECONDS, Ended, Fork, load_modules
from faults.outcomes import Outcomes, arguments, finish
from faults.processes import (
    everybody,
    family,
    is_running,
    left_in_memory,
    left_running,
    shared_memory,
)
from faults.tasks import PATIENCE, TASKS, Result, Task, lay_out, make_materials
from faults.trials import accompany, compare, wait_for_address
from sphereface2.training.distributed import TIMEOUT_VARIABLE
from sphereface2.workers import usable_cores

TAG = "SPHEREFACE2_FAULTS_TRIAL"
"""The environment variable by which all processes of a trial are known."""
_ORPHANS = 30.0  # seconds for what a killed process has started to notice and end
_UNHELD = 5.0  # seconds after which memory that no process holds counts as left
_ATTEMPTS = 20  # to meet a process before it ends by itself
_CALLERS, _ENROLMENTS = 3, 12

READER = ("training.workers=1", "training.worker_kind=processes")
TRAINING = TASKS["train"]


def _with_reader(task: Task) -> Task:
    return replace(task, command=(*task.command[:2], *READER, *task.command[2:]))


def _started_by(fork: Fork, tag: str, among: Iterable[int]) -> list[int]:
    """The processes that belong to a trial besides the first, by the tag in their environment.

    Those that are forks have the environment of this one; they work in the folder of the trial, in
    a session of their own.
    """
    found = []
    for process in among:
        place = Path(f"/proc/{process}")
        with suppress(OSError):
            is_tagged = f"{TAG}={tag}".encode() in (place / "environ").read_bytes()
            is_there = (place / "cwd").readlink() == fork.folder
            is_own = process == fork.pid or (not is_tagged and os.getsid(process) == fork.pid)
            if (is_tagged or is_there) and not is_own and is_running(process):
                found.append(process)
    return found


@dataclass
class Bench:
    """Where the trials of a task happen, one after the other; the result to compare with."""

    task: Task
    work: Path
    materials: Path
    ranks: int = 1
    expected: Result = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    seconds: float = 0.0
    """Of the processor, which the first process takes undisturbed."""

    @property
    def folder(self) -> Path:
        return self.work / "trial"

    def once(self, modules: Path | None = None) -> None:
        """Run it undisturbed, and list what it imports."""
        self.work.mkdir(parents=True, exist_ok=True)
        lay_out(self.materials, self.folder)
        forks = self.start("", modules=modules)
        for ended in self.finish(forks, seconds=10 * SECONDS):  # on a busy machine
            if ended.code != 0:
                raise RuntimeError(f"{self.task.name} fails undisturbed: {ended}")
        self.seconds = forks[0].seconds

    def rehearse(self) -> None:
        """Run it undisturbed: once to load what it imports, once for its time and its result."""
        modules = self.work / "modules.txt"
        self.once(modules)
        load_modules(modules)
        self.once()
        self.expected, self.files = self.task.result(self.folder), self._files()

    def start(self, tag: str, *, resume: bool = False, modules: Path | None = None) -> list[Fork]:
        """The processes of the task: one, or a rank each."""
        words = self.task.resume(self.folder) if resume else self.task.command
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        forks = []
        for rank in range(self.ranks):
            variables = {TAG: tag}
            if self.ranks > 1:
                variables |= {
                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                    TIMEOUT_VARIABLE: "60",  # the other may be killed before they have met
                }  # fmt: skip
            forks.append(
                Fork(words, self.folder, variables=variables, said=f"said-{rank}.txt",
                     modules=None if rank else modules, forks=self.task.name == "sweep")
            )  # fmt: skip
        return forks

    def finish(self, forks: list[Fork], *, seconds: float = SECONDS) -> list[Ended]:
        """Wait for the end; a service is asked what its client asks, and then asked to end."""
        return [accompany(self.task, fork, seconds=seconds) for fork in forks]

    def meet(
        self, number: int, pick: random.Random, victim: str = "the process"
    ) -> tuple[bool, list[str]]:
        """Trials until one meets the task before its end, which on a busy machine may be early."""
        for attempt in range(_ATTEMPTS):
            met, lost = self.trial(number, pick.random() / (attempt + 1), victim)
            if met or lost:
                break
        return met, lost

    def trial(self, number: int, moment: float, victim: str) -> tuple[bool, list[str]]:
        """End the task at a moment (0: its start, 1: its end), and resume it.

        Whether it was met, and what was lost.
        """
        lay_out(self.materials, self.folder)
        tag, memory = uuid.uuid4().hex, shared_memory()
        forks = self.start(tag)
        talking = self._talk(forks[0])
        wait_until(forks[0], moment * self.seconds)
        met, target = self._hit(forks, tag, number, victim)
        ended = [fork.wait() for fork in forks]
        talking.join()
        if not met and all(each.code == 0 for each in ended):
            return False, []
        lost = [_ending(each, number, is_target=each is ended[target]) for each in ended]
        lost += self._orphans(forks, tag)
        lost += self._resume(tag)
        left = left_in_memory(_ours(shared_memory() - memory), seconds=_UNHELD)
        lost += [f"{name} is left in /dev/shm" for name in left]
        return met, [each for each in lost if each]

    def _talk(self, fork: Fork) -> threading.Thread:
        """A client that asks a service for what it can until the service is gone."""

        def talk() -> None:
            if self.task.talk is not None:
                address = wait_for_address(fork)
                with suppress(Exception):
                    if address:
                        self.task.talk(address, self.folder)

        thread = threading.Thread(target=talk)
        thread.start()
        return thread

    def _hit(self, forks: list[Fork], tag: str, number: int, victim: str) -> tuple[bool, int]:
        """Send the signal; whether somebody was there to get it, and which of the forks."""
        if victim == "a process it started":
            those: list[int] = []

            def is_met() -> bool:
                those[:] = _started_by(forks[0], tag, family(forks[0].pid))
                return bool(those)

            forks[0].until(is_met)
            with suppress(ProcessLookupError, IndexError):
                os.kill(those[-1], number)
                return True, 0
            return False, 0
        target = random.Random(tag).randrange(len(forks)) if len(forks) > 1 else 0
        met = forks[target].poll() is None
        forks[target].signal(number)
        return met, target

    def _orphans(self, forks: list[Fork], tag: str) -> list[str]:
        left = left_running(_started_by(forks[0], tag, everybody()), seconds=_ORPHANS)
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        return [f"process {each} still runs {_ORPHANS:.0f} s later" for each in left]

    def _resume(self, tag: str) -> list[str]:
        ends = self.finish(self.start(tag, resume=True))
        # Killed when all was done: then it is left as it is, and compared all the same.
        done = re.compile("already exists|exists already")
        failed = [end for end in ends if end.code != 0 and not done.search(end.sentence)]
        if failed:
            return [f"does not resume: {end.fault() or end.sentence}" for end in failed]
        lost = [compare(self.task, self.folder, self.expected)]
        return lost + [f"left behind: {each}" for each in sorted(self._files() - self.files)]

    def _files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}


def wait_until(fork: Fork, seconds: float) -> None:
    """Until a process has used so many seconds of the processor, or has ended.

    Its own clock, not the one on the wall: on a busy machine it may wait for as long as it works.
    """
    while fork.poll() is None and (left := seconds - (fork.used() - fork.start)) > 0:
        # It cannot have used that by then, and to look takes the processor from it.
        time.sleep(max(0.001, left / 2 / usable_cores()))


def _ours(names: Iterable[str]) -> list[str]:
    """Shared memory as Python, torch and this package name it; others come and go beside us."""
    return [
        name for name in names if name.startswith(("psm_", "sem.mp-", "torch_", "sphereface2-b"))
    ]


def _ending(ended: Ended, number: int, *, is_target: bool) -> str:
    """What is wrong with how a process ended; one that was killed may have ended before."""
    stopped = (0, -number, 128 + number)
    if is_target and ended.code in stopped and "Traceback" not in ended.said:
        return ""
    if not is_target and re.search("lost another rank|did not find the others", ended.sentence):
        return ""
    if number != signal.SIGKILL and ended.code == 128 + number:
        return ""  # ranks stop together
    return ended.fault()


# -- the service under load ------------------------------------------------------------------------


def _person(number: int) -> str:
    return f"person {number}"


class LoadedService(Bench):
    """A service of which several callers ask for enrolments, each with a key of its own."""

    def rehearse(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        modules = self.work / "modules.txt"
        for first in (True, False):
            lay_out(self.materials, self.folder)
            fork = self.start("", modules=modules if first else None)[0]
            acknowledged: set[str] = set()
            self.enrol(fork, acknowledged)
            fork.signal(signal.SIGTERM)
            if fork.wait().code != 0 or len(acknowledged) != _ENROLMENTS:
                raise RuntimeError(f"the service fails undisturbed: {fork.wait()}")
            self.seconds = fork.seconds
            if first:
                load_modules(modules)
        wrong = self._everybody_once()
        if wrong:
            raise RuntimeError(f"the service fails undisturbed: {wrong}")

    def _everybody_once(self) -> str:
        """What is wrong with the gallery; faces in a batch with others round in another way."""
        from sphereface2.galleries import open_gallery

        gallery = open_gallery(str(self.folder / "served"))
        photos = gallery.photos()
        rows = gallery.embeddings([photo.id for photo in photos])
        crops = {gallery.crop(photo.id) for photo in photos}
        gallery.close()
        if sorted(photo.person for photo in photos) != sorted(map(_person, range(_ENROLMENTS))):
            return f"not everybody is there once: {sorted(photo.person for photo in photos)}"
        is_same = len(crops) == 1 and float(abs(rows - rows[0]).max()) < 1e-5
        return "" if is_same else "an embedding or a crop is another one"

    def enrol(self, fork: Fork, acknowledged: set[str]) -> None:
        """Callers that enrol those not acknowledged yet, until all are or the service ends."""
        address = wait_for_address(fork)
        waiting = [name for name in map(_person, range(_ENROLMENTS)) if name not in acknowledged]
        lock = threading.Lock()

        def call() -> None:
            from sphereface2.recognition.gate import Gate
            from sphereface2.service.client import Client

            photo = self.folder / "crops" / "Ada" / "0.png"
            caller = Client(address, kind="crop", retries=0, timeout=PATIENCE)
            with suppress(Exception), caller as client:
                gallery = client.open_gallery()
                while True:
                    with lock:
                        if not waiting:
                            return
                        name = waiting.pop(0)
                    # The key is the same however often somebody asks for this enrolment.
                    key, gate = name.replace(" ", "-"), Gate.of(allow=["all"])
                    client.enroll(name, [photo], gallery, gate=gate, key=key)
                    acknowledged.add(name)

        if address:
            threads = [threading.Thread(target=call) for _ in range(_CALLERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def trial(self, number: int, moment: float, victim: str) -> tuple[bool, list[str]]:
        lay_out(self.materials, self.folder)
        tag, acknowledged = uuid.uuid4().hex, set[str]()
        fork = self.start(tag)[0]
        load = threading.Thread(target=self.enrol, args=(fork, acknowledged))
        load.start()
        wait_until(fork, moment * self.seconds)
        met = fork.poll() is None
        fork.signal(number)
        ended = fork.wait()
        load.join()
        lost = [_ending(ended, number, is_target=True), *self._orphans([fork], tag)]
        lost += self._lost(acknowledged)
        fork = self.start(tag)[0]
        self.enrol(fork, acknowledged)
        fork.signal(signal.SIGTERM)
        ended = fork.wait()
        if ended.code != 0:
            lost.append(f"does not resume: {ended.fault()}")
        else:
            lost.append(self._everybody_once())
        return met, [each for each in lost if each]

    def _lost(self, acknowledged: set[str]) -> list[str]:
        from sphereface2.galleries import open_gallery

        if not acknowledged:
            return []
        gallery = open_gallery(str(self.folder / "served"))
        kept = {person.name for person in gallery.people()}
        gallery.close()
        return [f"{name} was acknowledged and is lost" for name in sorted(acknowledged - kept)]


# -- the program -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """What is killed; kills: how often with kill -9, stops: with each of SIGTERM and SIGINT"""

    name: str
    task: Task
    kills: int
    stops: int = 0
    quick: int = 1
    victim: str = "the process"
    ranks: int = 1


SCENES = {
    scene.name: scene
    for scene in (
        Scene("train", TRAINING, 50, 10, quick=2),
        Scene("checkpoint", TASKS["checkpoint"], 40, 8),
        Scene("convert", TASKS["convert"], 30, 6, quick=3),
        Scene("align", TASKS["align"], 20, 6),
        Scene("extract", TASKS["extract"], 30, 6),
        Scene("enrol", TASKS["enrol"], 30, 6),
        Scene("search", TASKS["search"], 20, 4),
        Scene("serve", TASKS["serve"], 15, 5),
        Scene("service under load", TASKS["serve"], 25, 8),
        Scene("rank of two", TRAINING, 25, 5, ranks=2),
        Scene("reader", _with_reader(TRAINING), 15, 3, victim="a process it started"),
        Scene("sweep", TASKS["sweep"], 10, 3, quick=0),
        Scene("sweep's worker", TASKS["sweep"], 8, 2, victim="a process it started", quick=0),
    )
}
SIGNALS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}


def try_scene(
    scene: Scene, outcomes: Outcomes, work: Path, *, seed: int = 0, quick: bool = False
) -> None:
    """All trials of a scene that were not tried before."""
    bench: Bench | None = None
    for word, number in SIGNALS.items():
        count = scene.kills if number == signal.SIGKILL else scene.stops
        if quick:
            count = min(count, scene.quick if number == signal.SIGKILL else 1)
        fault = f"{word}: {scene.name}"
        for case in range(count):
            if outcomes.has(fault, case):
                continue
            if bench is None:
                bench = _bench(scene, work)
            pick = random.Random(f"{seed} {fault} {case}")
            met, lost = bench.meet(number, pick, scene.victim)
            outcomes.add(
                fault, case, "; ".join(lost), tried=int(met or bool(lost)),
                command=f'python -m faults.kills "{scene.name}"',
            )  # fmt: skip
            print(f"{fault} {case + 1}/{count}: {'; '.join(lost) or 'recovered'}", flush=True)


def _bench(scene: Scene, work: Path) -> Bench:
    kind = LoadedService if scene.name == "service under load" else Bench
    place = (work / "kills" / scene.name.replace(" ", "-").replace("'", "")).resolve()
    bench = kind(scene.task, place, make_materials((work / "materials").resolve()), scene.ranks)
    bench.rehearse()
    print(f"{scene.name}: {bench.seconds:.2f} s undisturbed", flush=True)
    return bench


def try_enrolments(outcomes: Outcomes, work: Path, *, kills: int, seed: int = 0) -> None:
    """Enrolments one after the other in a gallery in a folder, with kills in between."""
    fault = "kill -9: enrolments in a gallery"
    if outcomes.has(fault, 0):
        return
    place = work.resolve() / "kills" / f"enrolments-{uuid.uuid4().hex}"
    came = enrol_with_kills(str(place), enrolments=10 * kills, kills=kills, seed=seed)
    print(came, flush=True)
    wrong = {"lost": came.lost, "twice": came.twice, "wrong": came.wrong}
    lost = [f"{count} {what}" for what, count in wrong.items() if count]
    outcomes.add(
        fault, 0, *lost, tried=came.kills,
        command=f"python -m faults.enrolments URL --enrolments {10 * kills} --kills {kills}",
    )  # fmt: skip


def main() -> None:
    given = arguments(__doc__, SCENES, metavar="TASK").parse_args()
    outcomes = Outcomes(given.work / "kills.json")
    if not given.names:
        try_enrolments(outcomes, given.work, kills=4 if given.quick else 40, seed=given.seed)
    for name in given.names or SCENES:
        try_scene(SCENES[name], outcomes, given.work, seed=given.seed, quick=given.quick)
    finish(outcomes)


if __name__ == "__main__":
    main()
