"""Contenders in processes of their own that step on demand, so that runs interleave."""

import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.contenders import build, held_bytes
from sphereface2.experiments.paper.parallel import Work, rank_team, take_turns
from sphereface2.heads.sharding import class_shards
from sphereface2.training.distributed import Team


@dataclass(frozen=True)
class Measured:
    """What one contender did.

    extra_mb: peak resident memory of its steps beyond weights, momentum and the bare process;
    resident_mb: peak resident memory of the whole process; barriers, sent_bytes: per step and rank.
    """

    name: str
    classes: int
    dim: int
    batch: int
    ranks: int
    seconds: float
    images_per_second: float
    extra_mb: float
    resident_mb: float
    barriers: float
    sent_bytes: float


def compare(
    names: Sequence[str],
    *,
    dim: int,
    classes: int,
    batch: int,
    threads: int,
    repeats: int,
    ranks: Sequence[int] = (1,),
    beside: int = 0,
    device: str = "cpu",
) -> list[Measured]:
    """The median step of each contender, all alive at once, a step of each in turn.

    On every one of the numbers of `ranks`, each contender is that many processes of `threads`.
    `beside` further processes keep a core busy each, as the workers of a loader do.
    """
    contenders = [(name, world) for world in ranks for name in names]
    results = []
    with ExitStack() as alive:
        # One after another: building takes memory and time.
        teams = [
            alive.enter_context(
                rank_team(
                    name, Contender(name, dim, classes, batch, device), ranks=world, threads=threads
                )
            )
            for name, world in contenders
        ]
        alive.enter_context(busy(beside))
        times = take_turns(teams, repeats=repeats)
        for (name, world), team, steps in zip(contenders, teams, times, strict=True):
            numbers = team.numbers()
            median = statistics.median(steps)
            results.append(
                Measured(
                    name=name,
                    classes=classes,
                    dim=dim,
                    batch=batch,
                    ranks=world,
                    seconds=median,
                    images_per_second=batch / median,
                    extra_mb=max(each["extra_mb"] for each in numbers),
                    resident_mb=max(each["resident_mb"] for each in numbers),
                    barriers=numbers[0]["barriers"],
                    sent_bytes=numbers[0]["sent_bytes"],
                )
            )
    return results


@contextmanager
def busy(count: int) -> Iterator[None]:
    """`count` processes that compute without end, while the block runs."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@dataclass(frozen=True)
class Contender:
    """Starts a rank's steps of a contender."""

    name: str
    dim: int
    classes: int
    batch: int
    device: str = "cpu"

    def __call__(self, team: Team) -> Work:
        return _ContenderWork(self, team)


class _ContenderWork:
    """A rank's part of the contender and of one random batch, and the memory that it takes."""

    def __init__(self, contender: Contender, team: Team) -> None:
        dim, classes, batch = contender.dim, contender.classes, contender.batch
        self._bare = _resident()
        with class_shards(team.rank, team.world):
            self._step, self._head = build(contender.name, dim, classes, device=contender.device)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(batch, dim, generator=generator)
        y = torch.randint(0, classes, (batch,), generator=generator)
        self._on_gpu = contender.device.startswith("cuda")
        self._x = x.chunk(team.world)[team.rank].to(contender.device)
        self._y = y.chunk(team.world)[team.rank].to(contender.device)
        self._held = held_bytes(contender.name, dim, classes) / team.world
        self._steps = 0
        _reset_peak()
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()

    def step(self) -> None:
        self._step(self._x.clone(), self._y)
        if self._on_gpu:
            torch.cuda.synchronize()
        self._steps += 1

    def numbers(self) -> Mapping[str, float]:
        peak = _resident("VmHWM")
        if self._on_gpu:
            peak, self._bare = torch.cuda.max_memory_allocated(), 0
        exchange = self._head.exchange if self._head is not None else None
        traffic = exchange.traffic if exchange is not None else None
        return {
            "extra_mb": max(0.0, (peak - self._bare - self._held) / 1e6),
            "resident_mb": peak / 1e6,
            "barriers": traffic.barriers / self._steps if traffic else 0.0,
            "sent_bytes": traffic.bytes_sent / self._steps if traffic else 0.0,
        }


def _resident(entry: str = "VmRSS") -> int:
    """Resident memory of this process in bytes: now (VmRSS), or at its peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(entry):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {entry}: this benchmark needs Linux")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
