"""What galleries in SQL databases do alike: people, their photos' facts and negatives.

Both databases have the tables person, photo and negative. Questions are written with `?` for a
value, whichever mark the database itself has.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, TypeVar

from sphereface2.files import parse_json
from sphereface2.galleries.gallery import (
    BrokenGalleryError,
    CheckedPhoto,
    Embeddings,
    Gallery,
    KeptPhoto,
    Negative,
    Person,
    check_name,
    now,
    plain_json,
    taken_name,
    unknown_person,
    unknown_photo,
    used_key,
)

T = TypeVar("T")
Database = TypeVar("Database")

NEAR = 5_000  # names or ids among which the nearest spelling is looked for
_TAKEN = ("IntegrityError", "UniqueViolation")  # what databases call a name that already exists
_PEOPLE = (
    "SELECT name, (SELECT count(*) FROM photo WHERE person = number), metadata, added FROM person"
)


class SqlGallery(Gallery, ABC, Generic[Database]):
    """A collection in a database; any number of threads may use it at once."""

    _identity: bytes
    _connections: deque[Database]
    _closed: bool

    _MARK: ClassVar[str]
    """What stands for a value."""
    _LOCK: ClassVar[str] = ""
    """What keeps a row that is read for others until the transaction ends."""

    # What differs.

    @abstractmethod
    def _transaction(self, *, write: bool = False) -> AbstractContextManager[Database]:
        """Readers see one state throughout; errors are sentences."""

    @abstractmethod
    def _add_photos(
        self, db: Database, person: int, photos: Mapping[str, CheckedPhoto], stamp: str
    ) -> None:
        """Keep photos by their ids; stamp: when they were added."""

    @abstractmethod
    def _remove_where(self, db: Database, which: str, value: int | str) -> int:
        """Remove photos by a condition with one value; how many there were."""

    @abstractmethod
    def _note_removal(self, db: Database) -> None:
        """Keep in mind that bytes of a negative have yet to be overwritten."""

    @abstractmethod
    def _finish_removals(self) -> None:
        """Overwrite what was removed, here or by a process that was killed."""

    @abstractmethod
    def _read(self, stored: Any) -> Embeddings:
        """An embedding as the database gives it."""

    def _run(self, db: Database, query: str, *values: Any) -> Any:
        connection: Any = db
        return connection.execute(query.replace("?", self._MARK), values)

    def _one(self, db: Database, query: str, *values: Any) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._run(db, query, *values).fetchone()
        if row is None:
            raise self._damaged(f"there is nothing for {query}")
        return row

    # Writers.

    def _write(self, operation: str, key: str | None, work: Callable[[Database], T]) -> T:
        """Do it in one transaction, once for each key, which is not kept but by its digest."""
        with self._transaction(write=True) as db:
            if key is None:
                return work(db)
            text = key.encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(text, key=bytes(self._identity)).hexdigest()
            # A second process with this key waits here until the first has committed.
            new = "INSERT INTO request VALUES (?, ?, 'null') ON CONFLICT DO NOTHING"
            if self._run(db, new, digest, operation).rowcount:
                result = work(db)
                keep = "UPDATE request SET result = ? WHERE key = ?"
                self._run(db, keep, json.dumps(result), digest)
                return result
            ask = "SELECT operation, result FROM request WHERE key = ?"
            before, answer = self._one(db, ask, digest)
            if before != operation:
                raise used_key(key, before)
            first: T = parse_json(answer)
            return first

    def _add(
        self, name: str, photos: Sequence[CheckedPhoto], metadata: str | None, key: str | None
    ) -> list[str]:
        def work(db: Database) -> list[str]:
            stamp = now()
            (number,) = self._one(
                db,
                "INSERT INTO person (name, metadata, added) VALUES (?, ?, ?) "
                "ON CONFLICT (name) DO UPDATE SET metadata = coalesce(?, person.metadata) "
                "RETURNING number",
                name, metadata or "{}", stamp, metadata,
            )  # fmt: skip
            made = {uuid.uuid4().hex: photo for photo in photos}
            self._add_photos(db, number, made, stamp)
            return list(made)

        return self._write("add", key, work)

    def remove(self, person: str, *, key: str | None = None) -> int:
        def work(db: Database) -> int:
            number = self._number(db, person, lock=True)
            count = self._remove_where(db, "person = ?", number)
            self._run(db, "DELETE FROM person WHERE number = ?", number)
            return count

        count = self._write("remove", key, work)
        self._finish_removals()
        return count

    def remove_photos(self, ids: Sequence[str], *, key: str | None = None) -> int:
        wanted = list(dict.fromkeys(ids))

        def work(db: Database) -> int:
            for each in wanted:
                if not self._remove_where(db, "id = ?", each):
                    raise self._unknown_photo(db, each)
            return len(wanted)

        count = self._write("remove_photos", key, work)
        self._finish_removals()
        return count

    def rename(self, person: str, to: str, *, key: str | None = None) -> None:
        name = check_name(to)

        def work(db: Database) -> None:
            number = self._number(db, person, lock=True)
            try:
                self._run(db, "UPDATE person SET name = ? WHERE number = ?", name, number)
            except Exception as error:
                raise taken_name(name) if type(error).__name__ in _TAKEN else error from None

        self._write("rename", key, work)

    def describe(self, person: str, metadata: Mapping[str, Any], *, key: str | None = None) -> None:
        text = plain_json(metadata, "a person's metadata")

        def work(db: Database) -> None:
            number = self._number(db, person, lock=True)
            self._run(db, "UPDATE person SET metadata = ? WHERE number = ?", text, number)

        self._write("describe", key, work)

    def _add_negative(
        self, person: str | None, row: Embeddings, source: str, key: str | None
    ) -> str:
        def work(db: Database) -> str:
            number = None if person is None else self._number(db, person, lock=True)
            id_ = uuid.uuid4().hex
            self._run(
                db,
                "INSERT INTO negative (id, person, embedding, source, added) "
                "VALUES (?, ?, ?, ?, ?)",
                id_, number, row, source, now(),
            )  # fmt: skip
            return id_

        return self._write("add_negative", key, work)

    def remove_negative(self, negative: str, *, key: str | None = None) -> None:
        def work(db: Database) -> None:
            if not self._run(db, "DELETE FROM negative WHERE id = ?", negative).rowcount:
                raise unknown_photo(negative, what="negative")
            self._note_removal(db)

        self._write("remove_negative", key, work)
        self._finish_removals()

    # Readers.

    def people(self) -> list[Person]:
        with self._transaction() as db:
            return [self._person(row) for row in self._run(db, f"{_PEOPLE} ORDER BY name")]

    def person(self, name: str) -> Person:
        with self._transaction() as db:
            number = self._number(db, name)
            return self._person(self._one(db, f"{_PEOPLE} WHERE number = ?", number))

    def count(self) -> tuple[int, int]:
        with self._transaction() as db:
            both = "SELECT (SELECT count(*) FROM person), (SELECT count(*) FROM photo)"
            people, photos = self._one(db, both)
            return people, photos

    def photos(self, person: str | None = None) -> list[KeptPhoto]:
        with self._transaction() as db:
            whose = [] if person is None else [self._number(db, person)]
            rows = self._run(
                db,
                "SELECT photo.id, person.name, photo.source, photo.facts, photo.added "
                "FROM photo JOIN person ON photo.person = person.number "
                f"{'WHERE photo.person = ? ' if whose else ''}ORDER BY serial",
                *whose,
            )
            return [
                KeptPhoto(id_, name, source, self._parsed(facts), added)
                for id_, name, source, facts, added in rows
                if self._require(str, id_, name, source, added)
            ]

    def negatives(self, person: str | None = None) -> list[Negative]:
        with self._transaction() as db:
            whose = [] if person is None else [self._number(db, person)]
            rows = self._run(
                db,
                "SELECT negative.id, person.name, negative.embedding, negative.source, "
                "negative.added FROM negative LEFT JOIN person ON person = number "
                f"WHERE negative.person {'= ?' if whose else 'IS NULL'} ORDER BY serial",
                *whose,
            )
            return [
                Negative(id_, name, self._read(embedding), source, added)
                for id_, name, embedding, source, added in rows
            ]

    def close(self) -> None:
        self._closed = True
        while self._connections:
            connection: Any = self._connections.pop()
            connection.close()

    # Names to numbers.

    def _number(self, db: Database, person: str, *, lock: bool = False) -> int:
        name = check_name(person)
        ask = f"SELECT number FROM person WHERE name = ?{self._LOCK if lock else ''}"
        found = self._run(db, ask, name).fetchone()
        if found is None:
            like = "SELECT name FROM person ORDER BY abs(length(name) - ?) LIMIT ?"
            known = self._run(db, like, len(name), NEAR)
            raise unknown_person(name, [each for (each,) in known])
        number: int = found[0]
        return number

    def _photo(self, db: Database, photo: str, what: str) -> tuple[Any, ...]:
        """Some columns of a photo."""
        found = self._run(db, f"SELECT {what} FROM photo WHERE id = ?", photo).fetchone()
        if found is None:
            raise self._unknown_photo(db, photo)
        row: tuple[Any, ...] = found
        return row

    def _unknown_photo(self, db: Database, photo: str) -> ValueError:
        like = "SELECT id FROM photo WHERE substr(id, 1, 4) = ? LIMIT ?"
        known = self._run(db, like, photo[:4].replace("\0", ""), NEAR)
        return unknown_photo(photo, [each for (each,) in known])

    # What a database holds is not trusted: SQLite keeps a value of any type in any column.

    def _damaged(self, how: str) -> ValueError:
        return BrokenGalleryError(
            f"the database of the collection '{self.name}' is damaged: {how}; restore it from a "
            "copy"
        )

    def _require(self, kind: type[Any], *values: Any) -> tuple[Any, ...]:
        """The values, all of one type; numbers are of rows, places and sizes: not negative."""
        if not all(isinstance(each, kind) and (kind is not int or each >= 0) for each in values):
            raise self._damaged(f"it holds a value that is not {kind.__name__}")
        return values

    def _parsed(self, text: Any) -> dict[str, Any]:
        try:
            found = parse_json(text)
        except (ValueError, TypeError):
            found = None
        if not isinstance(found, dict):
            raise self._damaged("facts or metadata are not a JSON object")
        return found

    def _person(self, row: tuple[Any, ...]) -> Person:
        name, photos, metadata, added = row
        self._require(str, name, added)
        return Person(name, photos, self._parsed(metadata), added)
