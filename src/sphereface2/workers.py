"""Work in processes and threads: started, fed, watched and ended in one way."""

from __future__ import annotations

import math
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.metadata import PackageNotFoundError, requires
from multiprocessing.connection import Connection, wait
from typing import IO, Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2  # tasks that a worker has, so that it need not wait for the next one
_MOMENT = 0.05  # seconds for a destructor to end
_FAREWELL = 10.0  # seconds for a worker to finish what it is at


class LostWorkerError(OSError):
    """A worker process has ended before its time."""

    task: object = None
    """What it was at, if that is known."""


class Worker:
    """A spawned process that answers what it is sent: `serve` is called there with its pipe.

    Spawned, not forked: this process may hold threads of torch or OpenCV. A pipe of its own, not a
    pool: when this process is killed, its end closes and the worker ends; a pool's would wait for
    ever. Ctrl-C is for this process alone.
    """

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(serve, there, *arguments), daemon=True)
        with _held_back({signal.SIGINT}):  # forever: the first process ends it
            self._process.start()
        there.close()  # else nobody would notice that the process has ended

    def send(self, message: object) -> None:
        with suppress(BrokenPipeError):  # it is gone, which is reported where its answer is due
            self.connection.send(message)

    def receive(self) -> Any:
        """The next answer; an error that the worker met is raised here."""
        try:
            answer = self.connection.recv()
        except (EOFError, ConnectionError):
            raise LostWorkerError("a worker process died, perhaps for lack of memory") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    @staticmethod
    def end(workers: Iterable[Worker], *, patience: float = _FAREWELL) -> None:
        """End workers, which may first finish what they are at."""
        workers = list(workers)
        for worker in workers:
            worker.connection.close()  # a worker that waits for a task takes this as the end
        for worker in workers:
            worker._process.join(patience)
            if worker._process.is_alive():
                worker._process.kill()
            worker._process.join()


def _serve(serve: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):  # the process that started this one is done
        serve(connection, *arguments)


def in_processes(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int
) -> Generator[tuple[Task, Result], None, None]:
    """Each task with what `work` makes of it, as they are done; closing it ends the processes.

    `work` is sent to each process once, so what it keeps (a network, say) serves all its tasks
    there. With fewer than two workers it runs here. A LostWorkerError has the `task` at which a
    process has died.
    """
    upcoming = iter(tasks)
    if workers < 2:
        yield from ((task, work(task)) for task in upcoming)
        return
    given: dict[Connection, tuple[Worker, list[Task]]] = {}

    def give(worker: Worker, tasks: list[Task]) -> None:
        for task in upcoming:
            tasks.append(task)
            worker.send(task)
            return

    try:
        for _ in range(workers):
            worker = Worker(_answer, work)
            given[worker.connection] = worker, []
        for worker, open_tasks in _AHEAD * list(given.values()):
            give(worker, open_tasks)
        while busy := [each for each, (_, open_tasks) in given.items() if open_tasks]:
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                worker, open_tasks = given[ready]
                task = open_tasks.pop(0)
                try:
                    answer = worker.receive()
                except LostWorkerError as error:
                    error.task = task
                    raise
                yield task, answer
                give(worker, open_tasks)
    finally:
        Worker.end(worker for worker, _ in given.values())


def _answer(connection: Connection, work: Callable[[Any], Any]) -> None:
    import cv2

    # Beside as many workers as processors, OpenCV's own threads are in the way.
    cv2.setNumThreads(1)
    while True:
        task = connection.recv()
        try:
            answer = work(task)
        except Exception as error:
            answer = sendable(error)
        connection.send(answer)


class Program:
    """A Python program with an environment, a log or open files of its own, unlike a `Worker`.

    A session of its own: a Ctrl-C in the terminal is for this process alone, and what the program
    has started can be killed with it.

    words: what follows `python`
    environment: what it gets besides the environment of this process
    log: where it writes; without one, errors go where those of this process do
    files: numbers of open files, which it gets under the same numbers
    held_back: signals that wait until it lets them through
    """

    def __init__(
        self,
        *words: str,
        environment: Mapping[str, str],
        log: IO[bytes] | None = None,
        files: Collection[int] = (),
        held_back: Collection[int] = (),
    ) -> None:
        with _held_back(held_back):
            self._process = subprocess.Popen(
                # -P: a copy.py in the user's folder is not Python's.
                [sys.executable, "-P", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if log is None else log,
                stderr=log,
                env={**os.environ, **environment},
                pass_fds=files,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def code(self, *, patience: float = 0.0) -> int | None:
        """Its exit code, less than 0 for a signal; None if it still runs after so many seconds."""
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return None

    def ask_to_stop(self) -> None:
        """End its input, as the end of this process would: see `stop_with_input`."""
        # Not a signal from here: it could come before a new process can handle it.
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self, *, patience: float = 0.0) -> None:
        """Ask it to stop; unless it ends well in so many seconds, kill it and what it started."""
        self.ask_to_stop()
        if self.code(patience=patience) != 0:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


def stop_with_input() -> None:
    """In a `Program`: a SIGINT comes when its input ends."""

    def read() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=read, daemon=True).start()


def signal_name(number: int) -> str:
    """SIGKILL, say, or the number of a signal that has no name."""
    known = {each.value: each.name for each in signal.Signals}
    return known.get(number, f"signal {number}")


def survives(trial: Callable[[], bool]) -> bool:
    """Whether a trial gives True, and not False, an error or the end of the process it runs in.

    That is a fork, which runs nothing else, with none of the threads of this process: a spawned
    one would run a user's script again.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child touches no other thread
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if trial() else 1)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def sendable(error: Exception) -> Exception:
    """The error with its kind, as far as callers ask for it, and its text: not all can be sent."""
    if type(error) is RuntimeError:
        return RuntimeError(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    for kind in (FileNotFoundError, OSError, ValueError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")


def in_threads(
    work: Callable[[Task, threading.Event], Result], tasks: Iterable[Task], *, workers: int
) -> Generator[tuple[Task, Result], None, None]:
    """Each task with what `work` makes of it, in their order; closing it ends the threads.

    `work` also gets an event, and stops short when it is set: nobody waits for it any more. Threads
    are a few tasks ahead only: results may be large.
    """
    stopped = threading.Event()
    pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="in_threads")
    waiting: deque[tuple[Task, Future[Result]]] = deque()
    try:
        for task in tasks:
            waiting.append((task, pool.submit(work, task, stopped)))
            if len(waiting) > 4 * workers:
                first, answer = waiting.popleft()
                yield first, answer.result()
        for first, answer in waiting:
            yield first, answer.result()
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _held_back(signals: Collection[int]) -> Iterator[None]:
    """Signals wait; in a process that is started inside, until it lets them through."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def catch_unraisable() -> None:
    """Act on two errors that Python itself would print and forget.

    A Ctrl-C that meets a destructor is raised again. A thread that has no memory for its first
    frame begins again: `Thread.start` would wait for it forever.
    """

    def raise_again() -> None:
        time.sleep(_MOMENT)
        # To that thread as a signal, which ends what it waits for.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def hook(found: sys.UnraisableHookArgs) -> None:
        thread = getattr(found.object, "__self__", None)
        if issubclass(found.exc_type, KeyboardInterrupt):
            # Not here, where it would be forgotten, too.
            threading.Thread(target=raise_again, daemon=True).start()
        elif (
            issubclass(found.exc_type, MemoryError)
            and isinstance(thread, threading.Thread)
            and not thread.is_alive()
            and callable(found.object)
        ):
            found.object()  # in this thread, which by now has memory for frames
        else:
            sys.__unraisablehook__(found)

    sys.unraisablehook = hook


def usable_cores() -> int:
    """The processors that this process may use, which in a container are fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def install_command(extra: str) -> str:
    """The command that installs what an extra of this package needs.

    It names the packages themselves, so it holds for a clone and for a wheel alike.
    """
    try:
        wanted = requires("sphereface2") or []
    except PackageNotFoundError:
        wanted = []
    marks = (f"extra == '{extra}'", f'extra == "{extra}"')
    packages = [each.partition(";")[0].strip() for each in wanted if each.endswith(marks)]
    if not packages:  # run from a clone that is not installed, or was before it had this extra
        return f"pip install -e '.[{extra}]'"
    return shlex.join(["pip", "install", *packages])


# -- the progress of long work ---------------------------------------------------------------------

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is in all."""

Watch = Callable[[str], AbstractContextManager[Progress]]
"""Shows the progress of a named piece of work: `with watch("checking") as progress: ...`."""


def unseen(done: int, total: int) -> None:
    """Progress that nobody looks at."""


def unwatched(title: str) -> AbstractContextManager[Progress]:
    """Work that nobody watches."""
    return nullcontext(unseen)


# A unit, its seconds, the seconds from which the next one is used, and the unit below it.
_UNITS = (
    ("min", 60, 3600, "s", 1),
    ("h", 3600, 86400, "min", 60),
    ("day", 86400, math.inf, "h", 3600),
)


def in_words(seconds: float) -> str:
    """About two figures in the units that suit: "84 ms", "4.2 s", "48 s", "3 min 5 s", "12 h"."""
    if seconds < 1e-6:
        return "0 s"
    if seconds < 0.099:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    for unit, size, limit, lesser, lesser_size in _UNITS:
        # From ten of a unit on, the one below it adds nothing.
        step = lesser_size if seconds < 10 * size else size
        rounded = step * round(seconds / step)
        if rounded < limit:
            count, rest = divmod(rounded, size)
            more = f" {rest // lesser_size} {lesser}" if rest else ""
            return f"{count:,} {unit}{'s' * (unit == 'day' and count > 1)}{more}"
    raise AssertionError("days have no limit")


def counted(count: int, one: str, more: str | None = None) -> str:
    """A count with its noun: "1 crop", "2,000 crops", "3 people" where `more` is given."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def first_of(things: Sequence[object], *, shown: int = 5) -> str:
    """The first few of many, for messages."""
    listing = ", ".join(str(thing) for thing in things[:shown])
    return listing + (", ..." if len(things) > shown else "")


class Pace:
    """The pace of a long piece of work, for whatever prints a line about it now and then."""

    def __init__(
        self, *, seconds_between_lines: float = 20.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._clock = seconds_between_lines, clock
        self._last_line = clock()
        self._first: tuple[float, int] | None = None

    def line_is_due(self, done: int) -> bool:
        """Whether it is time for a line; the first call says how much was done before."""
        now = self._clock()
        if self._first is None:
            self._first = now, done
        if now - self._last_line < self._every:
            return False
        self._last_line = now
        return True

    def rate(self, done: int) -> float:
        """How much was done per second since the first call; 0 where that is not known yet."""
        if self._first is None:
            return 0.0
        began, first = self._first
        seconds = self._clock() - began
        return (done - first) / seconds if seconds > 0 else 0.0
