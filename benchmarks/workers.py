"""Contenders in processes of their own, told step by step what to do, so that runs interleave."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """What one contender did.

    extra_mb: peak resident memory of its steps beyond weights, momentum and the bare process;
    resident_mb: peak resident memory of the whole process; barriers, sent_bytes: a step and rank.
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
    port: int = 29531,
) -> list[Measured]:
    """The median step of each contender, all alive at once, a step of each in turn.

    On every one of the numbers of `ranks`, each contender is that many processes of `threads`.
    """
    context = multiprocessing.get_context("spawn")
    teams: list[list[Connection]] = []
    processes = []
    contenders = [(name, world) for world in ranks for name in names]
    for number, (name, world) in enumerate(contenders):
        team = []
        for rank in range(world):
            here, there = context.Pipe()
            arguments = (there, name, dim, classes, batch, threads, rank, world, port + number)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            processes.append(process)
            team.append(here)
        teams.append(team)
        _ask(team, "ready")  # one after another: building takes memory and time
    seconds: list[list[float]] = [[] for _ in contenders]
    for repeat in range(repeats + 1):
        for number, team in enumerate(teams):
            slowest = max(_ask(team, "step"))
            if repeat:  # the first step warms up
                seconds[number].append(slowest)
    results = []
    for (name, world), team, times in zip(contenders, teams, seconds, strict=True):
        told = _ask(team, "tell")
        median = statistics.median(times)
        results.append(
            Measured(
                name=name,
                classes=classes,
                dim=dim,
                batch=batch,
                ranks=world,
                seconds=median,
                images_per_second=batch / median,
                extra_mb=max(each["extra_mb"] for each in told),
                resident_mb=max(each["resident_mb"] for each in told),
                barriers=told[0]["barriers"],
                sent_bytes=told[0]["sent_bytes"],
            )
        )
    for team in teams:
        _ask(team, "end")
    for process in processes:
        process.join()
    return results


def _ask(team: Sequence[Connection], what: str) -> list:  # type: ignore[type-arg]  # any answer
    for connection in team:
        connection.send(what)
    return [connection.recv() for connection in team]


def _work(
    orders: Connection,
    name: str,
    dim: int,
    classes: int,
    batch: int,
    threads: int,
    rank: int,
    ranks: int,
    port: int,
) -> None:
    import torch

    from benchmarks.contenders import build, held_bytes
    from sphereface2.heads.sharding import class_shards

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    bare = _resident()
    if ranks > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    with class_shards(rank, ranks):
        step, head = build(name, dim, classes)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, dim, generator=generator).chunk(ranks)[rank]
    y = torch.randint(0, classes, (batch,), generator=generator).chunk(ranks)[rank]
    held = held_bytes(name, dim, classes) / ranks
    _reset_peak()
    steps = 0
    while (order := orders.recv()) != "end":
        if order == "step":
            start = time.perf_counter()
            step(x.clone(), y)
            steps += 1
            orders.send(time.perf_counter() - start)
        elif order == "tell":
            peak = _resident("VmHWM")
            traffic = head.exchange.traffic if head is not None and head.exchange else None
            orders.send(
                {
                    "extra_mb": max(0.0, (peak - bare - held) / 1e6),
                    "resident_mb": peak / 1e6,
                    "barriers": traffic.barriers / steps if traffic else 0.0,
                    "sent_bytes": traffic.bytes_sent / steps if traffic else 0.0,
                }
            )
        else:
            orders.send(None)
    orders.send(None)


def _resident(entry: str = "VmRSS") -> int:
    """Resident memory of this process in bytes: now (VmRSS), or at its peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(entry):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {entry}: this benchmark needs Linux")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
