"""Ranks that come and go: restarts under torchrun, fewer and more ranks, a network that stalls.

python -m faults.elastic [restart | resize | stall]

restart: of two ranks one is killed; torchrun starts the same command again, which resumes by itself
    and ends with the bits of an undisturbed run.
resize: two torchruns of one rank each; one of them is killed, later another one comes: 2 ranks, 1
    rank, 2 ranks, and the numbers of an undisturbed run within rounding.
stall: two ranks in network namespaces between which packets vanish: both end in a sentence after
    the time that SPHEREFACE2_RANK_TIMEOUT states. It needs root and `ip`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import torch

from faults.outcomes import Outcomes, arguments, finish
from faults.processes import family
from faults.tasks import environment, lay_out, make_materials, of_run
from sphereface2.training.checkpoint import load_checkpoint, load_tensors
from sphereface2.training.distributed import TIMEOUT_VARIABLE, saved_shapes

Process = subprocess.Popen[bytes]
STEPS = 40
LIMIT = 300.0  # seconds, after which a training hangs
TIMEOUT = 15  # seconds that ranks wait for each other where the network stalls
_FEW = ["training.checkpoint_every_steps=5"]
# Batch norm is each rank's own, so that it depends on their number. Where a training learns fast,
# it doubles a difference of rounding every few steps; slowly, it shows another gradient as well.
_ALIKE = ["backbone.batch_norm=false", "optimizer.learning_rate=0.0001", *_FEW]


def training(steps: int, *overrides: str) -> list[str]:
    return ["train", "tiny.yaml", f"training.steps={steps}", *overrides, "--output", "run"]


@contextmanager
def started(
    words: Sequence[str], folder: Path, *, log: str = "log.txt", before: Sequence[str] = (),
    variables: dict[str, str] | None = None,
) -> Iterator[Process]:  # fmt: skip
    """A process, in a session of its own; at the end it and all that it has started are gone."""
    with (folder / log).open("wb") as said:
        process = subprocess.Popen(
            [*before, sys.executable, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=said,
            stderr=said, env={**environment(), **(variables or {})}, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        for each in reversed(family(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.wait()


def torchrun(*options: str) -> list[str]:
    return ["-m", "torch.distributed.run", *options, "-m", "sphereface2"]


def steps_of(run: Path) -> int:
    """How many steps a run has recorded, each a line."""
    with suppress(OSError):
        return (run / "metrics.jsonl").read_text().count('"kind": "train"')
    return 0


def wait_for(
    is_so: Callable[[], bool], processes: Sequence[Process], seconds: float = LIMIT
) -> bool:
    """Until something is so; False if a process has ended before, or the time has."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline or any(each.poll() is not None for each in processes):
            return False
        time.sleep(0.01)
    return True


def exit_code(process: Process, seconds: float = LIMIT) -> int | None:
    """How it ends by itself; None if it does not in that time."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def rank_of(process: int) -> int | None:
    with suppress(OSError):
        for word in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            if word.startswith(b"RANK="):
                return int(word[5:])
    return None


def last_words(path: Path) -> str:
    return " ".join(path.read_text(errors="replace").split())[-300:]


# -- restart ---------------------------------------------------------------------------------------

_TWO = ("--standalone", "--nproc-per-node=2", "--max-restarts=3")


def restart(work: Path, materials: Path, number: int, seed: int) -> str:
    """Kill one of two ranks; "" if the run came to the same end by itself."""
    straight, folder = work / "restart-straight", work / f"restart-{number}"
    words = [*torchrun(*_TWO), *training(STEPS, *_FEW)]
    if not (straight / "run" / "model").exists():
        lay_out(materials, straight)
        with started(words, straight) as process:
            if exit_code(process) != 0:
                return f"fails undisturbed: {last_words(straight / 'log.txt')}"
    pick = random.Random(f"{seed} {number}")
    victim, after = pick.randrange(2), pick.randrange(1, STEPS - 5)
    lay_out(materials, folder)
    with started(words, folder) as process:
        if not wait_for(lambda: steps_of(folder / "run") >= after, [process]):
            return f"it ended before it could be killed: {last_words(folder / 'log.txt')}"
        ranks = {rank_of(each): each for each in family(process.pid)[1:]}
        os.kill(ranks[victim], signal.SIGKILL)
        code = exit_code(process)
    if code is None:
        return f"hung for {LIMIT:.0f} seconds"
    if code:
        return f"torchrun ended with {code}: {last_words(folder / 'log.txt')}"
    if "lost another rank" not in (folder / "log.txt").read_text(errors="replace"):
        return "no rank says that it has lost another"
    return "" if of_run(folder, "run") == of_run(straight, "run") else "another result"


# -- resize ----------------------------------------------------------------------------------------


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    last = run / "checkpoints" / "last"
    whole = ("num_batches_tracked", "added")
    found = {
        name: torch.zeros(shape, dtype=torch.int64 if name.endswith(whole) else torch.float32)
        for name, shape in saved_shapes(last).items()
    }
    load_tensors(last, found)
    return found


def difference(one: Path, other: Path) -> float:
    """The largest relative difference of a tensor of two runs, by its length."""
    first, second = tensors_of(one), tensors_of(other)
    assert first.keys() == second.keys()
    return max(
        float((first[name].double() - second[name].double()).norm())
        / max(float(first[name].double().norm()), 1e-3)
        for name in first
    )


def resize(work: Path, materials: Path, number: int, seed: int) -> str:
    """2 ranks, then 1, then 2 again; "" if the end is that of an undisturbed run."""
    folder, straight = work / f"resize-{number}", work / f"resize-straight-{number}"
    for each in (folder, straight):
        lay_out(materials, each)
    run = folder / "run"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def node(log: str, *, is_host: bool = False) -> AbstractContextManager[Process]:
        patience = "last_call_timeout=3,keep_alive_interval=3,keep_alive_max_attempt=7"
        words = torchrun(
            "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id=resize-{number}",
            f"--rdzv-conf=is_host={int(is_host)},{patience}",
        )  # fmt: skip
        # As long as it takes until the last torchrun has come, however fast this machine is.
        words += training(1_000_000, *_ALIKE)
        # Without the second, a torchrun that stays never says to one that joins where it listens.
        variables = {TIMEOUT_VARIABLE: "60", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return started(words, folder, log=log, variables=variables)

    def continue_with(ranks: int, processes: Sequence[Process]) -> str:
        """Wait for a checkpoint of so many ranks, twenty steps from now; what is wrong, if any."""
        at = steps_of(run)
        began = time.monotonic()
        if not wait_for(lambda: steps_of(run) >= at + 20 and _ranks_of(run) == ranks, processes):
            return f"{ranks} ranks do not continue at step {at}: {last_words(folder / 'first.txt')}"
        took = time.monotonic() - began
        print(f"resize: {ranks} ranks, {at} to {steps_of(run)} steps, {took:.0f} s", flush=True)
        return ""

    with node("first.txt", is_host=True) as first:
        with node("second.txt") as second:
            wrong = continue_with(2, [first, second])
        # The second torchrun and its rank are killed now.
        wrong = wrong or continue_with(1, [first])
        with node("third.txt") as third:
            wrong = wrong or continue_with(2, [first, third])
    if wrong:
        return wrong
    # All are killed. The rest is done by one process, and all of it by another one.
    steps = load_checkpoint(run / "checkpoints" / "last").step + 5
    for place, words in (
        (folder, ["resume", "run", f"training.steps={steps}"]),
        (straight, training(steps, *_ALIKE)),
    ):
        with started(["-m", "sphereface2", *words], place) as process:
            if exit_code(process) != 0:
                return f"{place.name} does not end: {last_words(place / 'log.txt')}"
    off = difference(straight / "run", run)
    print(f"resize: off by {off:.1e} after {steps} steps", flush=True)
    return "" if off < 1e-3 else f"off by {off:.1e}"


def _ranks_of(run: Path) -> int:
    """How many ranks wrote the last checkpoint; 0 if there is none."""
    with suppress(OSError, ValueError):
        load_checkpoint(run / "checkpoints" / "last")
        return len(list((run / "checkpoints" / "last").glob("__*_0.distcp")))
    return 0


# -- stall -----------------------------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def two_networks(number: int) -> Iterator[tuple[str, str, str]]:
    """Two namespaces with 10.81.0.2 and 10.82.0.2, and between them one that forwards."""
    left, right, between = (f"sf2-{number}-{each}" for each in ("left", "right", "between"))
    try:
        for name in (left, right, between):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for name, net in ((left, 81), (right, 82)):
            ends = (f"{name[-4:]}{number}", f"b{name[-4:]}{number}")
            ip("link", "add", ends[0], "netns", name, "type", "veth", "peer", "name", ends[1],
               "netns", between)  # fmt: skip
            for space, end, last in ((name, ends[0], 2), (between, ends[1], 1)):
                ip("-n", space, "addr", "add", f"10.{net}.0.{last}/24", "dev", end)
                ip("-n", space, "link", "set", end, "up")
            ip("-n", name, "route", "add", "default", "via", f"10.{net}.0.1")
        _forwards(between, yes=True)
        yield left, right, between
    finally:
        for name in (left, right, between):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)


def _forwards(space: str, *, yes: bool) -> None:
    script = f"echo {int(yes)} > /proc/sys/net/ipv4/ip_forward"
    ip("netns", "exec", space, "sh", "-c", script)


def stall(work: Path, materials: Path, number: int, seed: int) -> str:
    """Let packets vanish between two ranks that train; "" if both end in a sentence."""
    folder = work / "stall"
    lay_out(materials, folder)
    words = ["-m", "sphereface2", *training(100_000, *_FEW)]
    after = random.Random(f"{seed} {number}").randrange(3, 60)
    with two_networks(number) as (left, right, between):
        variables = {
            "MASTER_ADDR": "10.81.0.2", "MASTER_PORT": "29500", "WORLD_SIZE": "2",
            TIMEOUT_VARIABLE: str(TIMEOUT),
        }  # fmt: skip

        def rank(number_: int, space: str) -> dict[str, str]:
            name = f"{space[-4:]}{number}"
            return {
                **variables,
                "RANK": str(number_),
                "LOCAL_RANK": "0",
                "GLOO_SOCKET_IFNAME": name,
            }

        with (
            started(words, folder, log="0.txt", before=("ip", "netns", "exec", left),
                    variables=rank(0, left)) as first,
            started(words, folder, log="1.txt", before=("ip", "netns", "exec", right),
                    variables=rank(1, right)) as second,
        ):  # fmt: skip
            if not wait_for(lambda: steps_of(folder / "run") >= after, [first, second]):
                return f"two ranks do not begin: {last_words(folder / '0.txt')}"
            _forwards(between, yes=False)
            began = time.monotonic()
            codes = [exit_code(each, TIMEOUT + 120) for each in (first, second)]
            print(f"stall: ended {time.monotonic() - began:.0f} s later with {codes}", flush=True)
    for rank_number in range(2):
        said = (folder / f"{rank_number}.txt").read_text(errors="replace")
        if f"sphereface2: rank {rank_number} lost another rank" not in said or "Traceback" in said:
            return f"rank {rank_number} ends without its sentence: {said[-500:]}"
    return "" if codes == [1, 1] else f"exit codes {codes}"


# -- the program -----------------------------------------------------------------------------------

CASES: dict[str, tuple[str, Callable[[Path, Path, int, int], str], int]] = {
    "restart": ("kill -9 of a rank under torchrun with restarts", restart, 5),
    "resize": ("2 ranks, 1 rank, 2 ranks", resize, 2),
    "stall": ("a network that stalls between ranks", stall, 3),
}


def main() -> None:
    given = arguments(__doc__, CASES).parse_args()
    outcomes = Outcomes(given.work / "elastic.json")
    work = given.work.resolve() / "elastic"
    work.mkdir(parents=True, exist_ok=True)
    materials = make_materials((given.work / "materials").resolve())
    # Its torchruns wait for each other for minutes, too long for a short selection.
    usual = [name for name in CASES if not (given.quick and name == "resize")]
    for name in given.names or usual:
        fault, case, count = CASES[name]
        if name == "stall" and (os.geteuid() != 0 or shutil.which("ip") is None):
            print("stall: left out, it needs root and ip (iproute2)")
            continue
        for number in range(1 if given.quick else count):
            if not outcomes.has(fault, number):
                lost = case(work, materials, number, given.seed)
                print(f"{fault} {number + 1}/{count}: {lost or 'recovered'}", flush=True)
                outcomes.add(fault, number, lost, command=f"python -m faults.elastic {name}")
    finish(outcomes)


if __name__ == "__main__":
    main()
