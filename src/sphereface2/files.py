"""Files that more than one process may want: locks of the operating system, and places to write."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter, ValidationError

_PAUSE = 0.02  # seconds between two tries to get a lock
_WIDTH = 256  # every note has the same length, so that none shows the end of the one before


class LockedError(ValueError):
    """Another process holds a lock."""


class Lock:
    """A held lock, whose file says who holds it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.note()

    def note(self, **facts: Any) -> None:
        """Let the file say more than the process and its host, such as how far the work is."""
        facts = {"pid": os.getpid(), "host": socket.gethostname(), **facts}
        os.pwrite(self.handle, json.dumps(facts).ljust(_WIDTH).encode(), 0)


def read_note(path: Path, *, patience: float = 0.0) -> dict[str, Any]:
    """What the process that holds a lock, or was killed while it did, says; {}: nothing.

    patience: in seconds; a lock is held for a moment before its file says by whom
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            note = json.loads(path.read_bytes())
        except (OSError, ValueError):
            note = {}
        if note or time.monotonic() >= deadline:
            return note if isinstance(note, dict) else {}
        time.sleep(_PAUSE)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; nothing is written to find out."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


@contextmanager
def file_lock(
    path: Path,
    *,
    patience: float = math.inf,
    while_waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[Lock]:
    """Hold the lock of a file; the second process waits, or gets a LockedError.

    The system releases the lock when the process ends, however that ends, so a file that a killed
    process leaves behind locks nothing. Otherwise the file goes with the lock, and so do folders
    that were made for it and are still empty.

    patience: how long to wait, in seconds
    while_waiting: entered only if another process has the lock, and left when it is free
    """
    folders = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
    handle = _try_lock(path)
    if handle is None:
        deadline = time.monotonic() + patience
        with while_waiting():
            while (handle := _try_lock(path)) is None:
                if time.monotonic() > deadline:
                    raise LockedError(f"another process holds {path}")
                time.sleep(_PAUSE)
    _close_in_forks()
    _held.add(handle)
    try:
        yield Lock(handle)
    finally:
        if handle in _held:  # else this is a fork of the process that holds it
            # Before it is released: who opens the file now waits, and then finds that it is gone.
            path.unlink(missing_ok=True)
            _held.remove(handle)
            os.close(handle)
            with suppress(OSError):
                for folder in folders:
                    folder.rmdir()


def _try_lock(path: Path) -> int | None:
    """The handle of the locked file, or None if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:
        if path.parent.exists():
            raise
        return None  # the process before has just removed the folder
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process before may have removed the file that was opened here.
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None


_held: set[int] = set()


@cache
def _close_in_forks() -> None:
    """Let no forked process keep a lock when the process that took it is gone."""

    def close() -> None:
        for handle in _held:
            os.close(handle)
        _held.clear()

    os.register_at_fork(after_in_child=close)


def require_writable(path: Path, *, is_file: bool = False) -> None:
    """One sentence before the work, not after it, if nothing can be written at `path`.

    It is to be a folder, or with `is_file` a file; neither is made here.
    """
    if is_file and path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "not a plain file"
        raise ValueError(f"{path} cannot be written: it is {what}; give the name of a file")
    folder = path.parent if is_file else path
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise ValueError(
            f"{path} cannot be written: {folder} is not a folder; choose another place"
        )
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"\n")  # an empty file fits on a full disk
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OSError(
            f"{path} cannot be written: {reason} (in {folder}); choose another place"
        ) from None


# A disk that fills up: one sentence that says what is kept and how to go on.

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def telling_how_to_go_on(path: Path, *, kept: str) -> Iterator[None]:
    """Turn a full disk into a sentence; `kept` is what of the work at `path` is not lost."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        reason = os.strerror(error.errno or errno.ENOSPC).lower()
        raise OSError(
            f"cannot write to {printable(path)}: {reason}; {kept}: make room and run the same "
            "command again to go on"
        ) from None


# Results as JSON files: written whole or not at all, and read back with a sentence if wrong.


@dataclass(frozen=True)
class JsonResult:
    """A frozen dataclass that round-trips through JSON."""

    IS: ClassVar[str] = "a result"
    """What the file holds, for messages."""
    WRITTEN_BY: ClassVar[str] = "sphereface2"
    """The command that writes such a file."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return TypeAdapter(cls).validate_json(text)

    def save(self, path: Path) -> None:
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Self:
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist; `{cls.WRITTEN_BY}` writes it")
        try:
            return cls.from_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ValueError(
                f"{path} is not {cls.IS} ({where}: {first['msg'].lower()}); "
                f"make it again with `{cls.WRITTEN_BY}`"
            ) from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write to a file beside `path`, then rename: a reader finds the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        Path(temporary).chmod(0o644)  # mkstemp gives 0600, unlike every other file of a run
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            # A write that fails, on a full disk say, does not know the name of its file.
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def printable(path: Path | str) -> str:
    """A path as text that can always be printed; bytes that are not UTF-8 come as \\xNN."""
    # Python keeps such bytes as lone surrogates, which no UTF-8 terminal or file accepts.
    return os.fsencode(path).decode("utf-8", "backslashreplace")
