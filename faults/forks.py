"""Commands in forks of this process: what they import is loaded once, so a trial is a moment.

Only what a command itself does is left to be disturbed, not two seconds of imports before it.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from faults.processes import family, seconds_used, wants_processor
from faults.tasks import PRINTED, environment
from tests.loaded import MODULES, leave_one_waiting, run_program

SECONDS = 300.0
"""After which a command is called hung."""
_LOOK = 0.5  # seconds between two looks at whether it hangs


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

    def fault(self, seconds: float = SECONDS) -> str:
        """What is wrong with this end; empty if it is a success or one sentence."""
        if self.code is None:
            return f"hung for {seconds:.0f} seconds"
        if "Traceback (most recent call last)" in self.said:
            return f"traceback: {self.said.strip()[-600:]}"
        if self.code == 0:
            return ""
        if self.code != 2 and not (self.code == 1 and "the same command" in self.sentence):
            return f"exit code {self.code}: {self.said.strip()[-300:]}"
        return "" if self.sentence else f"no sentence: {self.said.strip()[-300:]}"


class Fork:
    """`sphereface2 WORDS` in a fork of this process; with `waits` it begins at the word `go`.

    What it says on stderr goes to a file beside its folder, `said`. With `forks` the Python
    processes that it starts are such forks as well.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        *,
        modules: Path | None = None,
        variables: Mapping[str, str] | None = None,
        said: str = "said.txt",
        printed: Path | None = None,
        waits: bool = False,
        forks: bool = False,
    ) -> None:
        if forks:
            for name in MODULES:
                import_module(name)
        self.folder, self.said = folder, folder.parent / said
        self.printed = printed or folder / PRINTED
        if printed is not None:
            printed.unlink(missing_ok=True)  # of the command before
        ready, self._go = os.pipe()
        is_set_up, sets_up = os.pipe()
        self.code: int | None = None
        self.seconds = 0.0  # of the processor, once it has ended
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            os.close(is_set_up)
            _become_command(words, self, (ready, sets_up), modules, variables or {}, forks)
        os.close(ready)
        os.close(sets_up)
        os.read(is_set_up, 1)  # a signal now would meet this program and not the command
        os.close(is_set_up)
        self.start = self.used()
        if not waits:
            self.go()

    def go(self) -> None:
        os.write(self._go, b"\n")
        os.close(self._go)

    def used(self) -> float:
        """Seconds of the processor that it and those that it started have used so far."""
        return sum(map(seconds_used, family(self.pid)))

    def poll(self) -> int | None:
        """The exit code, once it has ended; that of a signal is negative."""
        if self.code is None:
            with suppress(ChildProcessError):  # another thread has just asked
                pid, status, used = os.wait4(self.pid, os.WNOHANG)
                if pid:
                    self.seconds = used.ru_utime + used.ru_stime - self.start
                    self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def until(self, is_done: Callable[[], bool], seconds: float = SECONDS) -> bool:
        """Wait for something, or for its end; False where it hangs.

        Time in which it waits for a busy processor does not count.
        """
        looked, rested = time.monotonic(), 0.0
        while self.poll() is None and not is_done():
            time.sleep(0.005)
            since = time.monotonic() - looked
            if since >= _LOOK:
                looked += since
                rested += 0.0 if any(map(wants_processor, family(self.pid))) else since
                if max(rested, self.used() - self.start) > seconds:
                    return False
        return True

    def wait(self, seconds: float = SECONDS) -> Ended:
        """How it ended; it is killed where it does not."""
        hangs = not self.until(lambda: False, seconds)
        if self.code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        return Ended(
            None if hangs else self.code,
            self.said.read_text(errors="replace") if self.said.exists() else "",
            self.printed.read_text(errors="replace") if self.printed.exists() else "",
        )


def _become_command(
    words: Sequence[str],
    fork: Fork,
    pipes: tuple[int, int],
    modules: Path | None,
    variables: Mapping[str, str],
    forks: bool,
) -> NoReturn:
    """Do in this fork what a new process of the command line would do."""
    code = 1
    try:
        os.setsid()
        # In the background of a shell this program would hand down that Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(fork.folder)
        os.environ.update({**environment(), **variables})
        for number, path, flags in (
            (0, Path(os.devnull), os.O_RDONLY),
            (1, fork.printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, fork.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            opened = os.open(path, flags, 0o644)
            os.dup2(opened, number)
            os.close(opened)
        for stream, number in (("stdout", 1), ("stderr", 2)):
            setattr(sys, stream, os.fdopen(number, "w", encoding="utf-8", closefd=False))
        sys.argv = ["sphereface2", *words]
        import_module("sphereface2.cli")  # which the command loads first
        from sphereface2.__main__ import main

        ready, sets_up = pipes
        program = leave_one_waiting() if forks else []
        if program:
            modules = None
            for number in pipes:
                os.close(number)
            run_program(program)
            raise SystemExit(0)
        os.write(sets_up, b"\n")
        os.close(sets_up)
        os.readv(ready, [bytearray(1)])  # not by a call of a kind that a trial counts
        os.close(ready)
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt as stop:
        code = 128 + signal.SIGINT
        last = list(traceback.walk_tb(stop.__traceback__))[-1][0]
        if last.f_code is not _become_command.__code__:  # else it came before the command
            traceback.print_exc()
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
    # Else every fork would look for garbage in all that is loaded, and copy it by that.
    gc.collect()
    gc.freeze()
