"""What an input must not do: run code, reach for other files or the network, take all memory."""

from __future__ import annotations

import mimetypes
import os
import re
import resource
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from faults.fuzzing.parser import ALLOWED, PARTS, Parser, emptied

_FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
    "subprocess.Popen", "socket.connect", "socket.bind", "webbrowser.open",
    "sqlite3.enable_load_extension", "sqlite3.load_extension", "code.__new__",
)  # fmt: skip
_EVALUATING = ("/typing.py", "/inspect.py", "/dataclasses.py", "/_typing_extra.py")
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "os.mkdir", "os.link")


_SCRATCH = ("/dev/shm", tempfile.gettempdir())
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class HostileError(Exception):
    """The reader did what no file may make it do."""


@dataclass(frozen=True)
class Crash:
    """What an input did; `place` tells crashes apart: the error and the innermost line of ours."""

    place: str
    trace: str


class Watch:
    """An audit hook that is on while an input is read.

    Hooks stay for as long as the process lives, so this one belongs into a process of its own. A
    reader may swallow what the hook raises: what happened is kept in `seen`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.on = False
        self.seen: list[str] = []
        source = Path(__file__).resolve().parents[2]
        self._readable = (
            self.folder, sys.prefix, sys.base_prefix, str(source), "/proc", "/sys", "/dev", "/usr",
            "/lib", "/etc/localtime", "/etc/os-release", *map(str, mimetypes.knownfiles), *_SCRATCH,
        )  # fmt: skip
        warnings.simplefilter("ignore")
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or not self._is_hostile(event, arguments):
            return
        frames = traceback.extract_stack(limit=12)[:-1]
        where = " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(frames))
        self.seen.append(f"{event} {_ADDRESS.sub('', repr(arguments))[:200]} from {where}")
        raise HostileError(self.seen[-1])

    def _is_hostile(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event.startswith(_FORBIDDEN):
            return True
        if event in ("exec", "ctypes.dlopen"):
            return not _is_of_an_import(sys._getframe(2))
        if event == "pickle.find_class":
            # The names that safe_pickle lists are torch's own.
            return not str(arguments[0]).startswith("torch")
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = _absolute(arguments[0])
            writes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            places = (self.folder, "/dev/null", *_SCRATCH) if writes else self._readable
            return not path.startswith(places)
        if event in _CHANGES and isinstance(arguments[0], str | bytes | os.PathLike):
            if isinstance(arguments[-1], int) and arguments[-1] >= 0 and event != "os.mkdir":
                return False  # within a folder that is open: shutil.rmtree was asked before
            path = _absolute(arguments[0])
            return not path.startswith((self.folder, *_SCRATCH))
        return False

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.seen.clear()
        self.on = True
        try:
            yield
        finally:
            self.on = False


def _absolute(path: str | bytes | os.PathLike[str]) -> str:
    """Without a look at the disk, where links lead elsewhere: `..` counts as written."""
    return os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))  # noqa: PTH109, PTH118


def _is_of_an_import(frame: FrameType | None) -> bool:
    """Whether code is run to import a module, or to read its annotations; data never is."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib") or file.endswith(_EVALUATING):
            return True
        frame = frame.f_back
    return False


def examine(parser: Parser, content: bytes, watch: Watch) -> Crash | None:
    """Read one input; what it did, if that is more than an error of ours."""
    folder = emptied(Path(watch.folder))
    found: BaseException | None = None
    try:
        with watch.watching():
            parser.read(folder, content.split(PARTS))
    except ALLOWED as error:
        # Of a sentence; what the system says without the name of a file is none.
        nameless = isinstance(error, OSError) and error.errno and not error.filename
        found = error if nameless or not str(error) else None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a crash of whatever kind is what is looked for
        found = error
    if watch.seen:
        return Crash(f"HostileError {watch.seen[0][:80]}", "\n".join(watch.seen))
    return None if found is None else crash_of(found)


def crash_of(error: BaseException) -> Crash:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if "sphereface2" in each.filename] or list(frames)
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}" if ours else ""
    trace = "".join(traceback.format_exception(error, limit=-12))[-4_000:]
    return Crash(f"{type(error).__name__} at {where}", trace)


def limit_memory(more: int) -> None:
    """From now on the process takes at most so many bytes more; beyond that is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
