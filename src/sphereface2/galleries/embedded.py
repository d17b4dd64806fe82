"""The default gallery: a folder with SQLite for people and a memory-mapped file of embeddings.

FOLDER/COLLECTION/ holds `people.sqlite`, `embeddings.f32` (a row for each photo) and `crops.bin`.

Adding writes rows and crops to places that nobody uses, syncs them, and then commits: until then
nobody sees them, and after a kill the next one gets the same places. Removing commits first, then
overwrites the places with zeros and rebuilds the database, then hands the places out again. So a
reader whose state is older than a removal may read zeros, or somebody else's row: it notices by the
number of removals that its answer is void, and searches again.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sphereface2.files import file_lock, printable, remove, replacing, require_writable
from sphereface2.galleries.gallery import (
    BrokenGalleryError,
    CheckedPhoto,
    Embeddings,
    Hit,
    check_format,
)
from sphereface2.galleries.parts_file import NOBODY, Owners, PartsFile, nearest_people
from sphereface2.galleries.sql import SqlGallery
from sphereface2.registry import did_you_mean, near

T = TypeVar("T")

DATABASE, ROWS, CROPS = "people.sqlite", "embeddings.f32", "crops.bin"
_APPLICATION = 0x5F2FACE5 & 0x7FFFFFFF
_FORMAT = 1
_PATIENCE = 60.0  # seconds to wait for another process
_TRIES = 3  # searches that removals may void before writers have to wait for one

_TABLES = """
CREATE TABLE state (
  identity BLOB NOT NULL, model TEXT NOT NULL, dim INTEGER NOT NULL,
  row_end INTEGER NOT NULL, crop_end INTEGER NOT NULL, removals INTEGER NOT NULL);
CREATE TABLE person (
  number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
  metadata TEXT NOT NULL, added TEXT NOT NULL);
CREATE TABLE photo (
  serial INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
  person INTEGER NOT NULL REFERENCES person ON DELETE CASCADE,
  row INTEGER NOT NULL UNIQUE, crop_start INTEGER NOT NULL, crop_stop INTEGER NOT NULL,
  source TEXT NOT NULL, facts TEXT NOT NULL, added TEXT NOT NULL);
CREATE INDEX photo_of_person ON photo (person);
CREATE TABLE negative (
  serial INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
  person INTEGER REFERENCES person ON DELETE CASCADE,
  embedding BLOB NOT NULL, source TEXT NOT NULL, added TEXT NOT NULL);
CREATE INDEX negative_of_person ON negative (person);
CREATE TABLE request (key TEXT PRIMARY KEY, operation TEXT NOT NULL, result TEXT NOT NULL)
  WITHOUT ROWID;
-- Places in the two files: to be overwritten, and to be handed out again.
CREATE TABLE wipe (
  number INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT NOT NULL, start INTEGER, stop INTEGER);
CREATE TABLE free (file TEXT NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL,
  PRIMARY KEY (file, start)) WITHOUT ROWID;
CREATE INDEX free_by_end ON free (file, stop);
CREATE INDEX free_by_size ON free (file, stop - start);
"""


class _VoidError(Exception):
    """A removal has changed rows while they were read."""


@dataclass(frozen=True, eq=False)
class _Index:
    """Who owns each row, after so many removals and up to one photo's serial number."""

    removals: int
    serial: int
    owners: Owners
    serials: Owners


class EmbeddedGallery(SqlGallery[sqlite3.Connection]):
    """A collection in a folder; any number of threads and processes may use it at once."""

    _MARK = "?"

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._folder = _folder(url) / name
        _check_database(self._folder / DATABASE)
        self._connections: deque[sqlite3.Connection] = deque()
        self._index: _Index | None = None
        self._index_lock = threading.Lock()
        self._closed = False
        self._files: dict[str, PartsFile] = {}
        with self._transaction() as db:
            _check_schema(db)
            state = "SELECT identity, model, dim, row_end, crop_end FROM state"
            self._identity, self.model, self.dim, row_end, crop_end = self._one(db, state)
            self._require(bytes, self._identity)
            self._require(str, self.model)
            if not self._require(int, self.dim, row_end, crop_end)[0]:
                raise self._damaged("its embeddings have no values")
            unfinished = db.execute("SELECT 1 FROM wipe LIMIT 1").fetchone()
        try:
            for file, called, unit in (("row", ROWS, 4 * self.dim), ("crop", CROPS, 1)):
                path = self._folder / called
                self._files[file] = PartsFile(path, unit=unit, identity=self._identity)
            self._rows, self._crops = self._files["row"], self._files["crop"]
            self._rows.require(row_end)
            self._crops.require(crop_end)
        except BaseException:
            self.close()
            raise
        if unfinished and os.access(self._folder, os.W_OK):
            self._finish_removals()

    # What a place keeps.

    @classmethod
    def shown(cls, url: str) -> str:
        return printable(_folder(url))

    @classmethod
    def where(cls, url: str, collection: str) -> str:
        return printable(_folder(url) / collection)

    @classmethod
    def collections(cls, url: str) -> list[str]:
        return sorted(each.parent.name for each in _folder(url).glob(f"[!.]*/{DATABASE}"))

    @classmethod
    def missing(cls, url: str, collection: str) -> Exception:
        folder, known = _folder(url), cls.collections(url)
        if folder.is_file():
            return ValueError(f"{printable(folder)} is a file; a gallery is a folder")
        if known:
            return super().missing(url, collection)
        beside = folder.absolute().parent
        galleries = {each.parent.parent.name for each in beside.glob(f"[!.]*/[!.]*/{DATABASE}")}
        likely = near(folder.absolute().name, galleries)
        meant = did_you_mean([printable(folder.with_name(each)) for each in likely])
        return FileNotFoundError(
            f"{printable(folder)} is not a gallery{meant}; enrolling makes one"
        )

    @classmethod
    def create(cls, url: str, collection: str, model: str, dim: int) -> None:
        folder = _folder(url)
        require_writable(folder)
        with file_lock(folder / ".lock"):
            if (folder / collection / DATABASE).exists():
                return  # another process was faster
            others = [each.name for each in folder.iterdir() if not each.name.startswith(".")]
            if others and not cls.collections(url):
                raise ValueError(
                    f"{printable(folder)} is not a gallery and holds other files, such as "
                    f"{printable(min(others))}; give a new folder"
                )
            _write_collection(folder / collection, model, dim)

    @classmethod
    def drop(cls, url: str, collection: str) -> None:
        """Overwrite and remove all files of a collection."""
        folder = _folder(url)
        aside = folder / f".{collection}.dropped"
        gallery = cls(url, collection)
        try:
            with gallery._transaction(write=True):  # nobody adds to what goes
                if aside.exists():
                    remove(aside)
                (folder / collection).rename(aside)
        finally:
            gallery.close()
        for path in aside.iterdir():
            with path.open("r+b") as file:
                for _ in range(0, path.stat().st_size, 1 << 20):
                    file.write(bytes(min(1 << 20, path.stat().st_size - file.tell())))
                file.flush()
                os.fsync(file.fileno())
        remove(aside)

    # Writers.

    def _add_photos(
        self, db: sqlite3.Connection, person: int, photos: Mapping[str, CheckedPhoto], stamp: str
    ) -> None:
        for id_, (photo, facts) in photos.items():
            place, _ = self._place(db, "row", 1)
            start, stop = self._place(db, "crop", len(photo.crop))
            self._rows.write(place, photo.embedding.tobytes())
            self._crops.write(start, photo.crop)
            db.execute(
                "INSERT INTO photo (id, person, row, crop_start, crop_stop, source, facts, "
                "added) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (id_, person, place, start, stop, photo.source, facts, stamp),
            )
        self._rows.sync()
        if any(photo.crop for photo, _ in photos.values()):
            self._crops.sync()

    def _remove_where(self, db: sqlite3.Connection, which: str, value: int | str) -> int:
        for what in ("'row', row, row + 1", "'crop', crop_start, crop_stop"):
            places = f"SELECT {what} FROM photo WHERE {which}"
            db.execute(f"INSERT INTO wipe (file, start, stop) {places}", (value,))
        db.execute("UPDATE state SET removals = removals + 1")
        return db.execute(f"DELETE FROM photo WHERE {which}", (value,)).rowcount

    def _note_removal(self, db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO wipe (file, start, stop) VALUES ('row', 0, 0)")

    def _read(self, stored: bytes) -> Embeddings:
        if len(*self._require(bytes, stored)) != 4 * self.dim:
            raise self._damaged("an embedding has another length")
        return np.frombuffer(stored, dtype=np.float32)

    # Readers.

    def embeddings(self, ids: Sequence[str]) -> Embeddings:
        def work(db: sqlite3.Connection) -> Embeddings:
            places = self._require(int, *(self._photo(db, each, "row")[0] for each in ids))
            if not places:
                return np.empty((0, self.dim), dtype=np.float32)
            return self._rows.rows(max(places) + 1)[list(places)]

        return self._in_one_state(work)

    def crop(self, photo: str) -> bytes:
        def work(db: sqlite3.Connection) -> bytes:
            return self._crops.read(*self._photo(db, photo, "crop_start, crop_stop"))

        return self._in_one_state(work)

    def blocks(self, rows: int = 65_536) -> Iterator[tuple[list[str], Embeddings]]:
        last = 0

        def work(db: sqlite3.Connection) -> tuple[int, list[str], Embeddings]:
            more = "SELECT serial, id, row FROM photo WHERE serial > ? ORDER BY serial LIMIT ?"
            found = db.execute(more, (last, rows)).fetchall()
            places = self._require(int, *(row for _, _, row in found))
            values = self._rows.rows(max(places, default=-1) + 1)[list(places)]
            return (found[-1][0] if found else last), [id_ for _, id_, _ in found], values

        while True:
            last, ids, values = self._in_one_state(work)
            if not ids:
                return
            yield ids, values

    def _search(self, queries: Embeddings, people: int) -> list[list[Hit]]:
        named = (
            "SELECT person.name, photo.id FROM photo JOIN person ON photo.person = person.number "
            "WHERE photo.serial = ?"
        )

        def work(db: sqlite3.Connection) -> list[list[Hit]]:
            index = self._index_of(db)
            rows = self._rows.rows(len(index.owners))

            def hit(row: int, score: float) -> Hit:
                person, photo = self._one(db, named, int(index.serials[row]))
                return Hit(person, photo, score)

            found = nearest_people(rows, index.owners, queries, people)
            return [[hit(row, score) for _, row, score in each] for each in found]

        return self._in_one_state(work)

    def close(self) -> None:
        super().close()
        for file in self._files.values():
            file.close()

    # Transactions.

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise BrokenGalleryError(f"the gallery {printable(self._folder)} is closed")
        self._require_in_place()
        with _sentences(self._folder / DATABASE):
            try:
                db = self._connections.pop()
            except IndexError:
                db = _connect(self._folder / DATABASE)
            try:
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                if write:
                    self._require_in_place()  # from here on nobody can drop it
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    with suppress(sqlite3.Error):  # which must not hide the error
                        db.execute("ROLLBACK")
                if self._closed:
                    db.close()
                else:
                    self._connections.append(db)

    def _require_in_place(self) -> None:
        if self._files and not self._rows.is_in_place():
            raise BrokenGalleryError(
                f"the gallery {printable(self._folder)} was removed or replaced; open it again"
            )

    def _in_one_state(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` reads, with all its rows of one state."""
        count = "SELECT removals FROM state"
        for _ in range(_TRIES):
            with suppress(_VoidError):
                with self._transaction() as db:
                    (before,) = self._one(db, count)
                    result = work(db)
                with self._transaction() as db:
                    if self._one(db, count) == (before,):
                        return result
        with self._transaction(write=True) as db:  # nothing is removed meanwhile
            return work(db)

    def _index_of(self, db: sqlite3.Connection) -> _Index:
        """Who owns which row in the state that `db` sees; only what is new is read."""
        removals, row_end = self._require(
            int, *self._one(db, "SELECT removals, row_end FROM state")
        )
        self._rows.require(row_end)
        (serial,) = self._one(db, "SELECT ifnull(max(serial), 0) FROM photo")
        with self._index_lock:
            known = self._index
            if known is not None and known.removals > removals:
                raise _VoidError
            if known is None or known.removals < removals:
                nobody = np.empty(0, dtype=np.int64)
                known = _Index(removals, 0, nobody, nobody)
            if known.serial > serial or len(known.owners) > row_end:  # of a later state
                later = known.serials[:row_end] > serial
                owners = np.where(later, NOBODY, known.owners[:row_end])
                return _Index(removals, serial, owners, known.serials[:row_end])
            if known.serial < serial or len(known.owners) < row_end:
                missing = row_end - len(known.owners)
                owners, serials = (
                    np.concatenate((old, np.full(missing, NOBODY, dtype=np.int64)))
                    for old in (known.owners, known.serials)
                )
                new = db.execute(
                    "SELECT row, person, serial FROM photo WHERE serial > ?", (known.serial,)
                )
                while some := new.fetchmany(65_536):
                    rows, people, numbers = self._columns(some, below=row_end)
                    owners[rows], serials[rows] = people, numbers
                known = _Index(removals, serial, owners, serials)
            self._index = known
            return known

    def _columns(self, some: Sequence[tuple[Any, ...]], *, below: int) -> npt.NDArray[np.int64]:
        """Rows, people and serial numbers of photos."""
        try:
            found = np.array(some, dtype=np.int64).T
        except (ValueError, TypeError, OverflowError):
            raise self._damaged("rows of photos are not whole numbers") from None
        if found.min() < 0 or found[0].max() >= below:
            raise self._damaged("rows of photos are not in the file")
        return found

    # Places in the two files.

    def _place(self, db: sqlite3.Connection, file: str, size: int) -> tuple[int, int]:
        """A place that nobody uses: the smallest free one that is large enough, or the end."""
        if not size:
            return 0, 0
        fits = (
            "SELECT start, stop FROM free WHERE file = ? AND stop - start >= ? "
            "ORDER BY stop - start LIMIT 1"
        )
        found = db.execute(fits, (file, size)).fetchone()
        if found is None:
            (start,) = self._one(db, f"SELECT {file}_end FROM state")
            db.execute(f"UPDATE state SET {file}_end = ?", (start + size,))
            return start, start + size
        start, stop = found
        db.execute("DELETE FROM free WHERE file = ? AND start = ?", (file, start))
        if stop > start + size:
            db.execute("INSERT INTO free VALUES (?, ?, ?)", (file, start + size, stop))
        return start, start + size

    def _finish_removals(self) -> None:
        """Overwrite what was removed, here or by a process that was killed, and free its places.

        SQLite's secure_delete is not enough: pages that it has split or merged keep parts of rows
        that have moved, so the database is rebuilt.
        """
        with self._transaction(write=True) as db:
            (last,) = self._one(db, "SELECT ifnull(max(number), 0) FROM wipe")
            # A killed process may have written to free places and behind the end.
            every = (
                "SELECT file, start, stop FROM wipe UNION ALL SELECT file, start, stop FROM free"
            )
            for file, start, stop in db.execute(every):
                if file not in self._files:
                    raise self._damaged("it has a place in an unknown file")
                self._files[file].wipe(start, stop)
            for name, file in self._files.items():
                (end,) = self._one(db, f"SELECT {name}_end FROM state")
                file.require(end)
                file.wipe(end, file.units())
                file.sync()
        self._rebuild()
        with self._transaction(write=True) as db:
            done = "DELETE FROM wipe WHERE number <= ? RETURNING file, start, stop"
            for file, start, stop in db.execute(done, (last,)).fetchall():
                if stop > start:
                    _release(db, file, start, stop)

    def _rebuild(self) -> None:
        path = self._folder / DATABASE
        with _sentences(path):
            db = _connect(path)
            try:
                db.execute("VACUUM")
                deadline = time.monotonic() + _PATIENCE
                # A reader of an older state holds the journal until it has done.
                while db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    if time.monotonic() > deadline:
                        raise ValueError(
                            f"removed, but other processes keep the journal of {printable(path)} "
                            "in use, which still holds what was removed; close them and remove "
                            "again, or open the gallery once more"
                        )
            finally:
                db.close()


def _check_schema(db: sqlite3.Connection) -> None:
    """Refuse other tables than ours: a view or a trigger runs whatever it says, without an end."""
    read = "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(_TABLES)
        expected = ours.execute(read).fetchall()
    if db.execute(read).fetchall() != expected:
        raise sqlite3.DatabaseError("its tables are not those of a gallery")


def _release(db: sqlite3.Connection, file: str, start: int, stop: int) -> None:
    """Make a place free, in one piece with the free ones beside it."""
    for side, at in (("stop", start), ("start", stop)):
        beside = f"DELETE FROM free WHERE file = ? AND {side} = ? RETURNING start, stop"
        for left, right in db.execute(beside, (file, at)).fetchall():
            start, stop = min(start, left), max(stop, right)
    db.execute("INSERT INTO free VALUES (?, ?, ?)", (file, start, stop))


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=rw"  # never a new file where one has gone
    db = sqlite3.connect(
        uri, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
    )
    try:
        for setting in ("foreign_keys=ON", "synchronous=FULL", "secure_delete=ON"):
            db.execute(f"PRAGMA {setting}")
        db.execute("PRAGMA temp_store=MEMORY")  # no temporary file that nobody wipes
        db.execute("PRAGMA trusted_schema=OFF")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """SQLite's errors in words."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise BrokenGalleryError(
                f"another process has been writing to {printable(path)} for {_PATIENCE:g} seconds; "
                "try again"
            ) from None
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")):
            what = "read" if "READ" in name.removeprefix("SQLITE_READ") else "written"
            raise OSError(f"{printable(path)} cannot be {what}: {error}") from None
        raise BrokenGalleryError(
            f"{printable(path)} is damaged or cannot be read ({error}); try again, or restore the "
            "gallery from a copy"
        ) from None


def _check_database(path: Path) -> None:
    """Refuse what is not our database by its first bytes, before SQLite writes beside it."""
    with path.open("rb") as file:
        head = file.read(100)
    size = path.stat().st_size
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        raise BrokenGalleryError(
            f"{printable(path)} is damaged or not the database of a gallery; restore it from a copy"
        )
    version, application = struct.unpack(">I4xI", head[60:72])
    if application != _APPLICATION:
        raise ValueError(f"{printable(path)} is the database of another program; move it")
    check_format(printable(path), version, _FORMAT)
    (page,), (pages,) = struct.unpack(">H", head[16:18]), struct.unpack(">I", head[28:32])
    journal = path.with_name(f"{path.name}-wal")
    whole = pages * (65_536 if page == 1 else page)
    if size < whole and not (journal.exists() and journal.stat().st_size):
        raise BrokenGalleryError(
            f"{printable(path)} is damaged: it has been cut after {size:,} bytes; restore it from "
            "a copy"
        )


def _folder(url: str) -> Path:
    return Path(url).expanduser()


def _write_collection(folder: Path, model: str, dim: int) -> None:
    identity = secrets.token_bytes(16)
    with _sentences(folder / DATABASE), replacing(folder) as made:
        made.mkdir()
        PartsFile.create(made / ROWS, unit=4 * dim, identity=identity)
        PartsFile.create(made / CROPS, unit=1, identity=identity)
        db = sqlite3.connect(made / DATABASE, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(
                f"PRAGMA application_id={_APPLICATION}; PRAGMA user_version={_FORMAT};{_TABLES}"
            )
            db.execute("INSERT INTO state VALUES (?, ?, ?, 0, 0, 0)", (identity, model, dim))
            # To close it would do the same, and be silent if it fails.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            db.close()
