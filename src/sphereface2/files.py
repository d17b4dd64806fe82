"""How files are written: whole or not at all, by one process at a time, resumable after a stop."""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import re
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter, ValidationError

_LOCK = "lock"
_PAUSE = 0.02  # seconds between two tries to get a lock
_MANY = 100  # files, beyond which one wait for all of the disk is shorter than one for each
_WIDTH = 256  # every note has the same length, so that none shows the end of the one before


class LockedError(ValueError):
    """Another process holds a lock."""


class Lock:
    """A held lock, whose file says who holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.note()

    def note(self, **facts: Any) -> None:
        """Let the file say more than the process and its host, such as how far the work is."""
        facts = {"pid": os.getpid(), "host": socket.gethostname(), **facts}
        with suppress(FileNotFoundError), naming(self.path), self.path.open("r+b") as file:
            file.write(json.dumps(facts).ljust(_WIDTH).encode())


def read_note(path: Path, *, patience: float = 0.0) -> dict[str, Any]:
    """What the process that holds a lock, or was killed while it did, says; {}: nothing.

    patience: in seconds; a lock is held for a moment before its file says by whom
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            note = parse_json(path.read_bytes())
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
    refusal: str = "",
) -> Iterator[Lock]:
    """Hold the lock of a file; the second process waits, or gets a LockedError.

    The system releases the lock when the process ends, however that ends, so a file that a killed
    process leaves behind locks nothing. Otherwise the file goes with the lock, and so do folders
    that were made for it and are still empty.

    patience: how long to wait, in seconds
    while_waiting: entered only if another process has the lock, and left when it is free
    refusal: what the LockedError says, if not which file is held
    """
    from filelock import FileLock, Timeout

    folders = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
    lock = FileLock(path, poll_interval=_PAUSE)

    def acquire(timeout: float) -> bool:
        while True:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with naming(path):
                    lock.acquire(timeout=timeout)
                return True
            except Timeout:
                return False
            except FileNotFoundError:
                pass  # the process before has just removed the folder

    if not acquire(0):
        with while_waiting():
            if not acquire(-1 if math.isinf(patience) else patience):
                raise LockedError(refusal or f"another process holds {path}")
    try:
        yield Lock(path)
    finally:
        if lock.is_locked:  # else this is a fork of the process that holds it
            # Before it is released: who opens the file now waits, and then finds that it is gone.
            with suppress(OSError):  # it locks nothing if it stays, and the work is done
                path.unlink(missing_ok=True)
            with suppress(OSError):  # the end of the process releases it, too
                lock.release()
            with suppress(OSError):
                for folder in folders:
                    folder.rmdir()


def written_elsewhere(path: Path) -> str:
    """A `refusal`: the folder at `path` is another process's own."""
    return f"another process is writing to {printable(path)}; wait for it"


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


@contextmanager
def naming(path: Path | str, *, instead: Path | None = None) -> Iterator[None]:
    """Say which file an error is about: a read or a write that fails does not know its name.

    instead: a name that nobody knows, in whose place `path` is given
    """
    try:
        yield
    except OSError as error:
        below = str(error.filename or instead)
        if error.errno is None or (error.filename and not below.startswith(str(instead))):
            raise
        name = f"{path}{below.removeprefix(str(instead))}"
        raise OSError(error.errno, error.strerror, name) from None


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A folder for what processes of one program share while it runs; then it goes."""
    with tempfile.TemporaryDirectory(prefix=f"sphereface2-{name}-") as folder:
        yield Path(folder)


# Whole or not at all.


@contextmanager
def replacing(path: Path, *, by: Path | None = None, durable: bool = True) -> Iterator[Path]:
    """A name to write a file or a folder under, which takes the place of `path` at the end.

    Readers find the old one or the new one, never a part; after an error the old one stays.

    by: that name, on the same disk; only where one process at a time writes `path`
    durable: also after a power cut; False is for one of many files, with a `reach_disk` for all
    """
    made = by or path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{uuid.uuid4().hex[:8]}.part")
    try:
        with naming(path, instead=made):
            if by is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                _remove_abandoned(path.parent)
            yield made
            put_in_place(made, path, durable=durable)
    except BaseException:
        with suppress(OSError):  # which must not hide the error
            remove(made)
        raise


_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
_looked_through: set[tuple[int, Path]] = set()


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes of this host that were killed have half written in a folder.

    Once per process and folder: it may hold a million files.
    """
    if (os.getpid(), folder) in _looked_through:
        return
    _looked_through.add((os.getpid(), folder))
    for entry in os.scandir(folder):
        found = re.fullmatch(rf"\..+\.{_HOST}-(\d+)-[0-9a-f]{{8}}\.part", entry.name)
        if found is not None and not _is_running(int(found[1])):
            with suppress(OSError):  # another process does the same
                remove(Path(entry.path))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is somebody else's
    return True


def write_atomically(
    path: Path, content: str | bytes | memoryview, *, by: Path | None = None, durable: bool = True
) -> None:
    """Write a file by `replacing`; text is UTF-8, and names that are not keep their bytes."""
    with replacing(path, by=by, durable=durable) as made:
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogateescape")
        made.write_bytes(content)


def put_in_place(made: Path, place: Path, *, durable: bool = True) -> None:
    """Rename a complete file or folder to `place`; what is there goes.

    One folder cannot replace another in one step: the old one stands aside for a moment, where
    `whole_folder` finds it, and comes back if the new one cannot take its place.
    """
    if durable:
        reach_disk(made)
    old = _old(place)
    if not made.is_dir():
        try:
            made.replace(place)
        except FileNotFoundError:
            place.parent.mkdir(parents=True, exist_ok=True)
            made.replace(place)
    else:
        if place.exists():
            remove(old)
            place.rename(old)
        try:
            made.rename(place)
        except OSError:
            if old.exists():
                old.rename(place)
            raise
    if durable:
        _sync(place.parent)
    remove_replaced(place)


def remove_replaced(place: Path) -> None:
    """Remove the folder that stood aside for the one at `place`: a kill can leave it there."""
    with suppress(OSError):  # the new one is in place: the work is done
        if place.is_dir():
            remove(_old(place))


def whole_folder(place: Path) -> Path:
    """Where a folder written by `put_in_place` is: a kill can leave the old one aside."""
    return place if place.exists() or not _old(place).exists() else _old(place)


def _old(place: Path) -> Path:
    return place.with_name(f".{place.name}.replaced")


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def reach_disk(path: Path) -> None:
    """Let a file, or a folder with all that is in it, reach the disk."""
    below = list(islice(path.rglob("*"), _MANY + 1)) if path.is_dir() else []
    if len(below) > _MANY:
        os.sync()
        return
    for each in (*below, path):
        if not each.is_symlink():
            _sync(each)


def _sync(path: Path) -> None:
    """Let the content of a file, or the names in a folder, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def on_full_disk(path: Path, *, kept: str) -> Iterator[None]:
    """Turn a full disk into a sentence; `kept` is what of the work at `path` is not lost."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            with naming(path):
                raise
        reason = os.strerror(error.errno or errno.ENOSPC).lower()
        raise OSError(
            f"cannot write to {printable(path)}: {reason}; {kept}: make room and run the same "
            "command again to resume"
        ) from None


def take_room(path: Path) -> None:
    """Let a file of holes, such as a new memory map, have its place on the disk.

    A disk that fills up later would otherwise end the process by a signal.
    """
    with naming(path), path.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


# An output that takes long: prepared beside its place, and taken up again after a stop.


class WorkFolder:
    """NAME.partial beside an output: all is made in there and gets its name at the end.

    A note in it says what is being made and how far that is. An interrupted run leaves the folder;
    the next one reads the note and decides whether it can continue.
    """

    NOTE = "what.json"
    OWN: ClassVar[tuple[str, ...]] = ()
    """Files that a run may leave there before its first note."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f"{target.name}.partial")

    def noted(self) -> dict[str, Any] | None:
        """What the last `note` said; None where there is none."""
        try:
            known = parse_json((self.path / self.NOTE).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return known if isinstance(known, dict) else None

    def note(self, facts: Mapping[str, Any]) -> None:
        """Keep what the next run must know, should this one be stopped."""
        text = json.dumps(facts, indent=1, sort_keys=True)
        write_atomically(self.path / self.NOTE, text)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes away; a folder that is empty at the end is removed."""
        self.require_own()
        try:
            with file_lock(self.path / _LOCK, patience=0, refusal=written_elsewhere(self.path)):
                yield
        finally:
            with suppress(OSError):
                self.path.rmdir()

    def require_own(self) -> None:
        """Refuse a folder with anything that a run does not leave before its first note."""
        if self.noted() is not None or not os.path.lexists(self.path):
            return
        if self.path.is_dir():
            names = {each.name for each in self.path.iterdir()} - {_LOCK, *self.OWN}
            if all(name.startswith(f".{self.NOTE}.") for name in names):
                return
        raise ValueError(
            f"{printable(self.path)} is in the way and holds no interrupted work; move it"
        )

    def tidy(self) -> None:
        """Remove what a run leaves that is killed when all is in place: a folder without a note."""
        if self.path.is_dir():
            with suppress(ValueError, OSError), self.locked():
                pass

    def empty(self) -> None:
        """Remove all but the note."""
        for entry in self.path.iterdir():
            if entry.name not in (_LOCK, self.NOTE):
                remove(entry)

    def deliver(self, products: Sequence[tuple[Path, Path]]) -> None:
        """Give each product, (made, place), its name: when the last is in place, all are.

        Called again after a stop in the middle, it does the rest.
        """
        old = self.path / "replaced"
        old.mkdir(exist_ok=True)
        # What is replaced goes first, and the last product's first of all: an old .rec must never
        # stand beside a new .idx.
        for number, (made, place) in reversed(list(enumerate(products))):
            if made.exists() and os.path.lexists(place):
                place.rename(old / str(number))
        for made, place in products:
            if made.exists():  # otherwise a run that was stopped here had moved it
                reach_disk(made)
                made.replace(place)
        for folder in {place.parent for _, place in products}:
            _sync(folder)
        # The note goes last: as long as it is there, the folder is known as ours.
        self.empty()
        (self.path / self.NOTE).unlink()


# A file that only grows.


class JsonLines:
    """A file with a JSON value per line, to which lines are added; what was added is not lost.

    lines: the values that are there; a last line that a kill or a full disk has torn is dropped
    remedy: what to do about a file that is damaged
    durable: what `add` has returned from is there after a power cut, too
    """

    def __init__(self, path: Path, *, remedy: str, durable: bool = False) -> None:
        self.path = path
        self._remedy = remedy
        self._durable = durable
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        self._file.seek(0)
        *whole, torn = self._file.read().split(b"\n")
        if torn:
            self._file.truncate(self._file.tell() - len(torn))
        with self.read_as():
            self.lines: list[Any] = [parse_json(line) for line in whole]

    @contextmanager
    def read_as(self, what: str = "") -> Iterator[None]:
        """Close the file and say in a sentence that it is damaged, if its lines cause any error.

        what: whose lines they are to be, where the errors do not say what is wrong
        """
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.close()
            why = f"its lines are not those of {what}" if what else error
            raise ValueError(f"{printable(self.path)} is damaged: {why}; {self._remedy}") from None

    def add(self, *values: Any) -> None:
        """Add lines; a kill after this loses nothing."""
        with naming(self.path):
            self._file.write("".join(f"{json.dumps(value)}\n" for value in values).encode("ascii"))
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())
        self.lines.extend(values)

    def close(self) -> None:
        self._file.close()


def csv_text(titles: Sequence[str], rows: Iterable[Sequence[object]], *, end: str = "\n") -> str:
    """A table as CSV, below a line of titles."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end)
    writer.writerow(titles)
    writer.writerows(rows)
    return text.getvalue()


# JSON, read back with a sentence if wrong.


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`, but what is nested too deeply is a ValueError, as all that is wrong is."""
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


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
            raise ValueError(
                f"{path} is not {cls.IS} ({first_fault(error, whole='the file')}); "
                f"make it again with `{cls.WRITTEN_BY}`"
            ) from None


def first_fault(error: ValidationError, *, whole: str) -> str:
    """The first of what is wrong with values, and where: "folds.3: input should be a number"."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or whole
    return f"{where}: {first['msg'].lower()}"


def printable(path: Path | str) -> str:
    """A path as text that can always be printed; bytes that are not UTF-8 come as \\xNN."""
    # Python keeps such bytes as lone surrogates, which no UTF-8 terminal or file accepts.
    return os.fsencode(path).decode("utf-8", "backslashreplace")
