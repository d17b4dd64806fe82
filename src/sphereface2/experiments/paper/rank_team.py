"""A few processes that are the ranks of one measurement, told step by step what to do.

Several teams can be alive at once and take turns, so that what else the machine does meets all of
them alike. Whatever ends the block that holds a team ends its processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sphereface2.training.distributed import Team

_PATIENCE = 10.0  # seconds for a process to leave by itself


class RankFailedError(OSError):
    """A rank could not do its work, or is gone."""


class Work(Protocol):
    """What a rank does: steps that are timed, and what it can tell of them afterwards."""

    def step(self) -> None:
        """One step, finished when it returns."""
        ...

    def told(self) -> Mapping[str, float]:
        """Numbers about the steps so far."""
        ...


class RankTeam:
    """The processes of one contender; see `rank_team`."""

    def __init__(self, name: str, processes: list[BaseProcess], orders: list[Connection]) -> None:
        self.name = name
        self._processes = processes
        self._orders = orders

    def step(self) -> float:
        """One step on all ranks at once: the seconds of the slowest."""
        seconds: list[float] = self._ask("step")
        return max(seconds)

    def told(self) -> list[Mapping[str, float]]:
        """What each rank has to tell of its steps."""
        return self._ask("tell")

    def _ask(self, what: str) -> list[Any]:
        answers = []
        try:
            for connection in self._orders:
                connection.send(what)
            for connection in self._orders:
                error, answer = connection.recv()
                if error:
                    raise RankFailedError(f"{self.name}: {error}")
                answers.append(answer)
        except (EOFError, ConnectionError):
            raise RankFailedError(
                f"{self.name}: a rank has ended before its time, most likely for want of memory; "
                "free some and try again"
            ) from None
        return answers

    def _end(self, *, kindly: bool) -> None:
        for connection in self._orders:
            connection.close()  # a rank that waits for an order takes this as the last one
        for process in self._processes:
            if kindly:
                process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
            process.join()


@contextmanager
def rank_team(
    name: str, start: Callable[[Team], Work], *, ranks: int, threads: int = 1
) -> Iterator[RankTeam]:
    """Start `ranks` processes of `threads` threads, each of which makes its `Work` by `start`.

    `start` is called in the new processes, so it must pickle; all of them have it done when the
    block begins.
    """
    context = multiprocessing.get_context("spawn")
    team = RankTeam(name, [], [])
    port = _free_port()
    try:
        for rank in range(ranks):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, start, rank, ranks, threads, port), daemon=True
            )
            team._processes.append(process)
            team._orders.append(here)
            with _interrupts_held_back():
                process.start()
            there.close()  # else nobody would notice that the process has ended
        team._ask("ready")
        yield team
    except BaseException:
        team._end(kindly=False)
        raise
    team._end(kindly=True)


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
                orders.send(("", _obey(work, orders.recv())))
    except (EOFError, ConnectionError):
        pass  # the orders have ended, and so does this process
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]  # torch goes on with traces of its own
        orders.send((f"{type(error).__name__} on rank {rank}: {said}", None))
    # A rank that failed may leave a collective under way, whose thread Python's own way out would
    # abort (see `training.distributed.leave_group`); what there is to tell has been sent.
    os._exit(0)


def _obey(work: Work, order: str) -> Any:
    if order == "step":
        began = time.perf_counter()
        work.step()
        return time.perf_counter() - began
    return dict(work.told()) if order == "tell" else None


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C waits; a process that is started inside never gets it, for the first one ends it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port
