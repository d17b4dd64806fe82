"""A trial: a task is disturbed, then resumed, and its result is compared with the undisturbed."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from faults.forks import SECONDS, Ended, Fork, load_modules
from faults.tasks import PRINTED, Result, Task, lay_out


def start(
    words: Sequence[str],
    folder: Path,
    logs: Path,
    *,
    modules: Path | None = None,
    waits: bool = False,
    forks: bool = False,
) -> Fork:
    """A fork that says and prints into another folder than that of its trial."""
    printed = logs / PRINTED
    said = str(logs / "said.txt")
    return Fork(
        words, folder, modules=modules, said=said, printed=printed, waits=waits, forks=forks
    )


def wait_for_address(fork: Fork) -> str:
    """What a service says first; "" if it ends before, or says nothing."""

    def said() -> str:
        try:
            text = fork.printed.read_text()
        except FileNotFoundError:
            return ""
        return text.strip() if text.endswith("\n") else ""

    fork.until(lambda: bool(said()))
    return said()


def converse(talk: Callable[[str, Path], None], fork: Fork) -> Ended:
    """Ask a service; after an error again, for a fault must not outlast its request.

    Several times: a fault may come once in each of its threads.
    """
    address = wait_for_address(fork)
    if not address:
        return fork.wait(seconds=0)
    trouble = ""
    for _ in range(4):
        try:
            talk(address, fork.folder)
            trouble = ""
            break
        except Exception as error:
            trouble = f"the service: {type(error).__name__}: {error}"
    fork.signal(signal.SIGTERM)
    ended = fork.wait()
    if trouble:
        return Ended(1 if ended.code == 0 else ended.code, f"{ended.said}\n{trouble}")
    return ended


def accompany(task: Task, fork: Fork, *, seconds: float = SECONDS) -> Ended:
    """Wait for the end of a command; of a service, ask it what a client asks, then end it."""
    ended = fork.wait(seconds) if task.talk is None else converse(task.talk, fork)
    with suppress(OSError):  # the place of the trial may be full, or read-only
        shutil.copy(fork.printed, fork.folder / PRINTED)
    return ended


def rehearse(
    task: Task, folder: Path, logs: Path, materials: Path, *, forks: bool = False
) -> Result:
    """Run a task undisturbed, and load what it imports; its result."""
    modules = logs / "modules.txt"
    lay_out(materials, folder)
    fork = start(task.command, folder, logs, modules=modules, forks=forks)
    ended = accompany(task, fork, seconds=10 * SECONDS)  # it imports all, on a busy machine
    if ended.code != 0:
        raise RuntimeError(f"{task.name} fails undisturbed: {ended}")
    load_modules(modules)
    return task.result(folder)


def compare(task: Task, folder: Path, expected: Result) -> str:
    """In what the result in a folder is another than the expected one; empty if in nothing."""
    try:
        found = task.result(folder)
    except Exception as error:
        return f"the result cannot be read: {type(error).__name__}: {error}"
    other = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    return f"another result: {', '.join(other)}" if other else ""


def resumed(task: Task, folder: Path, logs: Path, expected: Result, *, forks: bool = False) -> str:
    """What is wrong after the command that resumes a task; empty if its result is the expected.

    Where all was done before the fault, the command may also say that the output is there.
    """
    fork = start(task.resume(folder), folder, logs, forks=forks)
    ended = accompany(task, fork)
    wrong = compare(task, folder, expected)
    if ended.code != 0 and (wrong or ended.fault()):
        return f"does not resume: {ended.fault() or ended.sentence}"
    return f"resumed, {wrong}" if wrong else ""
