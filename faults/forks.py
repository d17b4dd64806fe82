"""Commands in forks of this process, which has loaded what they import: a start takes no time."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from faults.tasks import PRINTED, Result, Task, environment, lay_out

SECONDS = 120.0
"""After which a command is called hung."""
_SAID = "said.txt"


@dataclass(frozen=True)
class Ended:
    """How a command ended; code: None if it had to be killed."""

    code: int | None
    said: str
    printed: str = ""

    @property
    def sentence(self) -> str:
        """What the command said at last, if it was that it cannot continue."""
        lines = [line for line in self.said.splitlines() if line.startswith("sphereface2: ")]
        return lines[-1].removeprefix("sphereface2: ") if lines else ""

    @property
    def reports(self) -> bool:
        """Whether the command says that it did without something."""
        return bool(re.search(r"[1-9]\d* left out|unreadable", self.printed))

    def fault(self) -> str:
        """What is wrong with this end; empty if it is a success or one sentence."""
        if self.code is None:
            return f"hung for {SECONDS:.0f} seconds"
        if "Traceback (most recent call last)" in self.said:
            return f"traceback: {self.said.strip().splitlines()[-1]}"
        if self.code == 0:
            return ""
        if self.code != 2 and not (self.code == 1 and "the same command" in self.sentence):
            return f"exit code {self.code}: {self.said.strip()[-300:]}"
        return "" if self.sentence else f"no sentence: {self.said.strip()[-300:]}"


class Fork:
    """`sphereface2 WORDS` in a fork of this process, which waits for `go`.

    logs: the folder for what it prints and says, beside that of the trial
    """

    def __init__(
        self, words: Sequence[str], folder: Path, logs: Path, modules: Path | None = None
    ) -> None:
        self.folder, self.logs = folder, logs
        for name in (PRINTED, _SAID):
            (logs / name).write_text("")  # those of the command before
        ready, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            _become_command(words, folder, logs, ready, modules)
        os.close(ready)

    def go(self) -> None:
        os.write(self._go, b"\n")
        os.close(self._go)

    def is_over(self) -> bool:
        """Whether it has ended; then `wait` returns at once."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self, seconds: float = SECONDS) -> Ended:
        deadline = time.monotonic() + seconds
        code: int | None = None
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            time.sleep(0.005)
        printed = (self.logs / PRINTED).read_text(errors="replace")
        with suppress(OSError):  # the place of the trial may be full, or read-only
            (self.folder / PRINTED).write_text(printed)
        return Ended(code, (self.logs / _SAID).read_text(errors="replace"), printed)


def _become_command(
    words: Sequence[str], folder: Path, logs: Path, ready: int, modules: Path | None
) -> NoReturn:
    """Do in this fork what a new process of the command line would do."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.update(environment())
        for number, path, flags in (
            (0, Path(os.devnull), os.O_RDONLY),
            (1, logs / PRINTED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, logs / _SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            opened = os.open(path, flags, 0o644)
            os.dup2(opened, number)
            os.close(opened)
        for stream, number in (("stdout", 1), ("stderr", 2)):
            setattr(sys, stream, os.fdopen(number, "w", encoding="utf-8", closefd=False))
        sys.argv = ["sphereface2", *words]
        os.read(ready, 1)
        os.close(ready)
        from sphereface2.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
            code = 120  # as Python ends itself where what was printed cannot be written
        if modules is not None:
            modules.write_text("\n".join(sorted(sys.modules)))
        os._exit(code)


def load_modules(listed: Path) -> None:
    """Import what a command imported, so that its next fork need not."""
    for name in listed.read_text().splitlines():
        if name != "__main__" and name not in sys.modules:
            with suppress(Exception):  # some are made by others, and come with them
                import_module(name)


def converse(talk: Callable[[str, Path], None], fork: Fork) -> Ended:
    """Ask a service; after an error again, for a fault must not outlast its request."""
    printed = fork.logs / PRINTED
    deadline = time.monotonic() + SECONDS
    while not printed.read_text().endswith("\n"):
        pid, status = os.waitpid(fork.pid, os.WNOHANG)
        if pid:
            said = (fork.logs / _SAID).read_text(errors="replace")
            return Ended(os.waitstatus_to_exitcode(status), said)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    trouble = ""
    for _ in range(2):
        try:
            talk(printed.read_text().strip(), fork.folder)
            trouble = ""
            break
        except Exception as error:
            trouble = f"the service: {type(error).__name__}: {error}"
    with suppress(ProcessLookupError):
        os.kill(fork.pid, signal.SIGTERM)
    ended = fork.wait()
    if trouble:
        return Ended(1 if ended.code == 0 else ended.code, f"{ended.said}\n{trouble}")
    return ended


def accompany(task: Task, fork: Fork) -> Ended:
    """Wait for the end of a command; of a service, ask it what a client asks, then end it."""
    return fork.wait() if task.talk is None else converse(task.talk, fork)


def rehearse(task: Task, folder: Path, logs: Path, materials: Path) -> Result:
    """Run a task undisturbed, and load what it imports; its result."""
    modules = logs / "modules.txt"
    lay_out(materials, folder)
    fork = Fork(task.command, folder, logs, modules)
    fork.go()
    ended = accompany(task, fork)
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


def resumed(task: Task, folder: Path, logs: Path, expected: Result) -> str:
    """What is wrong after the command that resumes a task; empty if its result is the expected."""
    fork = Fork(task.resume(folder), folder, logs)
    fork.go()
    ended = accompany(task, fork)
    if ended.code != 0:
        return f"does not resume: {ended.fault() or ended.sentence}"
    wrong = compare(task, folder, expected)
    return f"resumed, {wrong}" if wrong else ""
