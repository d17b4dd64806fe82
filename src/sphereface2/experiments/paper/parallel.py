"""The parallelisation figure: images per second of a head alone, its classes over 1 to N ranks.

There is no network: random embeddings go in. A step is forward, backward and SGD with momentum on
the class weights. The same batch is shared out over however many ranks there are. The ranks are
processes that step on demand, so that several contenders can be alive at once and take turns:
what else the machine does meets all of them alike.
"""

from __future__ import annotations

import itertools
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sphereface2.evaluation.experiment_results import ParallelResult, ParallelRun
from sphereface2.evaluation.verification import installed_versions
from sphereface2.heads import HEADS, build_head
from sphereface2.heads.proxy import ProxyHead
from sphereface2.heads.sharding import class_shards
from sphereface2.registry import look_up
from sphereface2.training.distributed import Team, joined
from sphereface2.workers import LostWorkerError, Progress, Worker, unseen, usable_cores

METHODS = ("sphereface2-c", "cosface", "arcface")
LEARNING_RATE, MOMENTUM, DECAY = 0.1, 0.9, 5e-4
BATCH = 256
_LEAST_ROUNDS = 3  # a median of fewer says little
_MOST_PROCESSES = 8  # ranks on the CPU: each has a torch of its own, in one team per method


def measure_parallel(
    methods: Sequence[str] = METHODS,
    *,
    ranks: Sequence[int] | None = None,
    identities: int = 100_000,
    dim: int = 512,
    batch: int = BATCH,
    repeats: int = 9,
    seconds: float = 200.0,
    device: str = "cpu",
    progress: Progress = unseen,
) -> ParallelResult:
    """Time a step of each head on each number of ranks, by default on the `possible_ranks`.

    After its share of `seconds` a number of ranks begins no further round, once there are three.
    On the CPU a rank is a process of one thread, and the heads on one number of ranks are alive at
    once and take turns; on GPUs, which nobody shares, they come one after another: a GPU has
    to hold them.
    """
    worlds = tuple(ranks or possible_ranks(device, batch=batch))
    _check(methods, worlds, identities=identities, batch=batch, repeats=repeats, device=device)
    together = [[(method, world) for method in methods] for world in worlds]
    if device != "cpu":
        together = [[each] for some in together for each in some]
    count = len(worlds) * len(methods)
    total = count * (repeats + 2)
    turns = itertools.count(1)

    def took() -> None:
        progress(next(turns), total)

    runs: list[ParallelRun] = []
    for some in together:
        with ExitStack() as alive:
            teams = []
            for method, world in some:
                work = partial(
                    _HeadWork, method, dim=dim, identities=identities, batch=batch, device=device
                )
                name = f"{method} on {world} rank{'s' if world > 1 else ''}"
                teams.append(alive.enter_context(rank_team(name, work, ranks=world)))
                took()
            share = seconds * len(some) / count
            times = take_turns(teams, repeats=repeats, seconds=share, took=took)
            for (method, world), team, steps in zip(some, teams, times, strict=True):
                runs.append(ParallelRun(method, world, tuple(steps), **team.numbers()[0]))
    progress(total, total)  # also where fewer rounds were enough
    return ParallelResult(
        identities=identities,
        dim=dim,
        batch=batch,
        device=device,
        threads=1,
        runs=tuple(runs),
        machine=describe_machine(device),
        versions=installed_versions(),
    )


def take_turns(
    teams: Sequence[RankTeam],
    *,
    repeats: int,
    seconds: float = float("inf"),
    took: Callable[[], None] = lambda: None,
) -> list[list[float]]:
    """The seconds of `repeats` steps of each team, a step of each in turn, after one to warm up.

    After `seconds` in all no further round begins, once there are three.
    """
    began = time.monotonic()
    times: list[list[float]] = [[] for _ in teams]
    for number in range(repeats + 1):
        if number > _LEAST_ROUNDS and time.monotonic() - began > seconds:
            break
        for steps, team in zip(times, teams, strict=True):
            step = team.step()
            took()
            if number:
                steps.append(step)
    return times


def possible_ranks(device: str = "cpu", *, batch: int = BATCH) -> tuple[int, ...]:
    """Of 1, 2, 4 and so on up to all cores (at most 8) or GPUs, those that divide the batch."""
    on_gpus = device == "cuda"
    most = torch.cuda.device_count() if on_gpus else min(_MOST_PROCESSES, usable_cores())
    doubled = [2**power for power in range(most.bit_length())]
    return tuple(count for count in dict.fromkeys([*doubled, max(1, most)]) if batch % count == 0)


class HeadStep:
    """One training step of a head alone; the class weights move inside its forward pass."""

    def __init__(
        self,
        method: str,
        dim: int,
        identities: int,
        *,
        sample_rate: float = 1,
        device: str = "cpu",
        compiled: bool = False,
    ) -> None:
        head = build_head(method, dim, identities).to(device)
        if not isinstance(head, ProxyHead):
            raise ValueError(
                f"the head '{method}' keeps no weights of classes to share out over ranks"
            )
        self.head = head
        head.fused_sgd(lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=DECAY)
        head.sample_negatives(sample_rate)
        if compiled:
            head.compile_maps()
        # The bias is one number and has an ordinary optimiser.
        rest = [parameter for parameter in head.parameters() if parameter is not head.weight]
        self._optimizer = (
            torch.optim.SGD(rest, lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=DECAY)
            if rest
            else None
        )

    def __call__(self, embeddings: Tensor, labels: Tensor) -> None:
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        self.head(embeddings.requires_grad_(), labels).backward()
        if self._optimizer is not None:
            self._optimizer.step()


class _HeadWork:
    """A rank's part of the classes and of one random batch, stepped again and again."""

    def __init__(
        self, method: str, team: Team, *, dim: int, identities: int, batch: int, device: str
    ) -> None:
        device = team.device_name(device)
        self._on_gpu = device.startswith("cuda")
        if self._on_gpu:
            torch.cuda.set_device(device)
        with class_shards(team.rank, team.world):
            self._step = HeadStep(method, dim, identities, device=device)
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(batch, dim, generator=generator)
        labels = torch.randint(0, identities, (batch,), generator=generator)
        self._rows = rows.chunk(team.world)[team.rank].to(device)
        self._labels = labels.chunk(team.world)[team.rank].to(device)
        self._steps = 0

    def step(self) -> None:
        self._step(self._rows.clone(), self._labels)
        self._steps += 1
        if self._on_gpu:
            torch.cuda.synchronize()

    def numbers(self) -> Mapping[str, float]:
        traffic = self._step.head.exchange.traffic
        return {
            "exchanges": traffic.barriers / self._steps,
            "bytes_sent": traffic.bytes_sent / self._steps,
        }


def _check(
    methods: Sequence[str],
    ranks: Sequence[int],
    *,
    identities: int,
    batch: int,
    repeats: int,
    device: str,
) -> None:
    for method in methods:
        look_up("head", HEADS, method)
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got '{device}'")
    if device == "cuda" and torch.cuda.device_count() < max(ranks):
        raise ValueError(
            f"every rank needs a GPU of its own, {max(ranks)} in all, and torch finds "
            f"{torch.cuda.device_count()}; leave out --scale paper to measure on the CPU"
        )
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    for world in ranks:
        if world < 1 or batch % world or identities < world:
            raise ValueError(
                f"a batch of {batch} and {identities:,} identities cannot be shared out over "
                f"{world} ranks; take a number of ranks that divides the batch"
            )


def describe_machine(device: str = "cpu") -> dict[str, str]:
    """What a measurement of time ran on, in words."""
    found = {"processor": _processor(), "cores": str(os.cpu_count()), "system": platform.system()}
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


# -- the ranks -------------------------------------------------------------------------------------


class RankFailedError(OSError):
    """A rank could not do its work, or is gone."""


class Work(Protocol):
    """What a rank does: steps that are timed, and numbers about them."""

    def step(self) -> None:
        """One step, finished when it returns."""
        ...

    def numbers(self) -> Mapping[str, float]:
        """Numbers about the steps so far."""
        ...


class RankTeam:
    """The processes of one contender, which take their steps on demand; see `rank_team`."""

    def __init__(self, name: str, ranks: list[Worker]) -> None:
        self.name = name
        self._ranks = ranks

    def step(self) -> float:
        """One step on all ranks at once: the seconds of the slowest."""
        seconds: list[float] = self.ask("step")
        return max(seconds)

    def numbers(self) -> list[Mapping[str, float]]:
        """What each rank says about its steps."""
        return self.ask("numbers")

    def ask(self, what: str) -> list[Any]:
        """The answer of each rank to a word that `_serve` knows."""
        try:
            for rank in self._ranks:
                rank.send(what)
            return [rank.receive() for rank in self._ranks]
        except LostWorkerError:
            raise RankFailedError(
                f"{self.name}: a rank has ended before its time, most likely for lack of memory; "
                "free some and try again"
            ) from None
        except RuntimeError as error:
            raise RankFailedError(f"{self.name}: {error}") from None


@contextmanager
def rank_team(
    name: str, start: Callable[[Team], Work], *, ranks: int, threads: int = 1
) -> Iterator[RankTeam]:
    """Start `ranks` processes of `threads` threads, each of which makes its `Work` by `start`.

    `start` is called in the new processes, so it must pickle; all of them have it done when the
    block begins, and whatever ends the block ends them.
    """
    workers: list[Worker] = []
    patience = 0.0  # one that another rank has failed would wait for it forever
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        for rank in range(ranks):
            workers.append(Worker(_serve, start, rank, ranks, threads, port))
        team = RankTeam(name, workers)
        team.ask("ready")
        yield team
        patience = 10.0
    finally:
        Worker.end(workers, patience=patience)


def _serve(
    orders: Connection,
    start: Callable[[Team], Work],
    rank: int,
    ranks: int,
    threads: int,
    port: int,
) -> None:
    """What a rank does all its life."""
    torch.set_num_threads(threads)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    try:
        with joined() as team:
            work = start(team)
            while True:
                orders.send(_answer(work, orders.recv()))
    except (EOFError, ConnectionError):
        pass  # the orders have ended, and so does this process
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]  # torch adds traces of its own
        orders.send(RuntimeError(f"{type(error).__name__} on rank {rank}: {first_line}"))
    # A rank that failed may leave a collective under way, whose thread Python's own way out would
    # abort (see `training.distributed.leave_group`); its last message has been sent.
    os._exit(0)


def _answer(work: Work, order: str) -> Any:
    if order == "step":
        began = time.perf_counter()
        work.step()
        return time.perf_counter() - began
    return dict(work.numbers()) if order == "numbers" else None
