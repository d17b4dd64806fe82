"""A few processes that are the ranks of one measurement and take their steps on demand.

Several teams can be alive at once and take turns, so that what else the machine does meets all of
them alike. Whatever ends the block that holds a team ends its processes.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from sphereface2.workers import LostWorkerError, Worker

if TYPE_CHECKING:
    from sphereface2.training.distributed import Team


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
    """The processes of one contender; see `rank_team`."""

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
                f"{self.name}: a rank has ended before its time, most likely for want of memory; "
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
    block begins.
    """
    workers: list[Worker] = []
    patience = 0.0  # one that another rank has failed would wait for it for ever
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
    import torch

    from sphereface2.training.distributed import joined

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
