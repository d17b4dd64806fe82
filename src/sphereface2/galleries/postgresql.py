"""A gallery in PostgreSQL with pgvector, for many machines: postgresql://USER@HOST/DATABASE.

Each collection is a schema of its own. Options follow the address (?index=hnsw&ef_search=200);
all others, such as sslmode, are PostgreSQL's.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, LiteralString
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np

from sphereface2.galleries.gallery import (
    BrokenGalleryError,
    CheckedPhoto,
    Embeddings,
    Hit,
    best_of_people,
    check_format,
)
from sphereface2.galleries.sql import SqlGallery
from sphereface2.registry import nearest, resolve_options

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composable, Composed

    Database = Connection[tuple[Any, ...]]

_PREFIX = "sphereface2_"
_FORMAT = 1
_PATIENCE = 60.0  # seconds to wait for transactions that began before a removal
_INLINE = 1_800  # values that fit into a page of 8 kB beside the rest; more are kept apart

_TABLES: LiteralString = """
CREATE TABLE state (format integer NOT NULL, identity bytea NOT NULL, model text NOT NULL,
  dim integer NOT NULL, unfinished boolean NOT NULL);
CREATE TABLE person (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE,
  metadata text NOT NULL, added text NOT NULL);
CREATE TABLE photo (
  serial bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text COLLATE "C" NOT NULL UNIQUE,
  person bigint NOT NULL REFERENCES person ON DELETE CASCADE, embedding vector NOT NULL,
  crop bytea NOT NULL, source text NOT NULL, facts text NOT NULL, added text NOT NULL);
CREATE INDEX photo_of_person ON photo (person);
CREATE TABLE negative (
  serial bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text COLLATE "C" NOT NULL UNIQUE,
  person bigint REFERENCES person ON DELETE CASCADE, embedding vector NOT NULL,
  source text NOT NULL, added text NOT NULL);
CREATE INDEX negative_of_person ON negative (person);
CREATE TABLE request (
  key text COLLATE "C" PRIMARY KEY, operation text NOT NULL, result text NOT NULL);
"""
# Statistics for the planner would be copies of names that no removal reaches.
_NO_STATISTICS = {
    "person": ("name", "metadata"),
    "photo": ("id", "embedding", "crop", "source", "facts"),
    "negative": ("id", "embedding", "source"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an address may say after the question mark.

    index: 'exact' looks at every embedding; 'hnsw' is approximate and fast, and is built if missing
    m, ef_construction: how the HNSW index is built; ef_search: how many it looks at in a search
    type: of the numbers in the HNSW index; with 'halfvec' it is half as large, and the people that
        it finds are ordered by the full numbers
    removal: 'full' rewrites the tables, so that no byte is left; 'vacuum' frees the place only
    """

    index: Literal["exact", "hnsw"] = "exact"
    m: int = 16
    ef_construction: int = 64
    ef_search: int = 100
    type: Literal["vector", "halfvec"] = "vector"
    removal: Literal["full", "vacuum"] = "full"


class PostgreSQLGallery(SqlGallery["Database"]):
    """A collection in a PostgreSQL database; any number of threads may use it at once."""

    _MARK = "%s"
    _LOCK = " FOR UPDATE"

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._address, self._options = _parsed(url)
        self._shown = self.shown(url)
        self._schema = _PREFIX + name
        self._connections: deque[Database] = deque()
        self._closed = False
        try:
            with self._transaction() as db:
                state = self._one(db, "SELECT format, identity, model, dim, unfinished FROM state")
            version, self._identity, self.model, self.dim, unfinished = state
            check_format(self.where(url, name), version, _FORMAT)
            if self._options.index == "hnsw":
                self._build_index()
            if unfinished:
                self._finish_removals()
        except BaseException:
            self.close()
            raise

    # What a place keeps.

    @classmethod
    def shown(cls, url: str) -> str:
        """An address without its password and options, for messages."""
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        return f"{parts.scheme}://{user.partition(':')[0]}{at}{host}{parts.path}"

    @classmethod
    def create(cls, url: str, collection: str, model: str, dim: int) -> None:
        schema = _PREFIX + collection
        with _connected(url) as db, db.transaction():
            _lock(db)
            exists = "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'state'"
            if db.execute(exists, (schema,)).fetchone():
                return  # another process was faster
            db.execute("CREATE EXTENSION IF NOT EXISTS vector")
            db.execute(_sql("CREATE SCHEMA {}", schema))
            _look_in(db, schema)
            db.execute(_TABLES)
            for table in ("photo", "negative"):
                db.execute(_sql("ALTER TABLE {} ALTER embedding TYPE vector({})", table, dim))
                if dim <= _INLINE:  # fetched with the row: a search is several times faster
                    db.execute(_sql("ALTER TABLE {} ALTER embedding SET STORAGE PLAIN", table))
            for table, columns in _NO_STATISTICS.items():
                for column in columns:
                    db.execute(_sql("ALTER TABLE {} ALTER {} SET STATISTICS 0", table, column))
            identity = uuid.uuid4().bytes
            db.execute(
                "INSERT INTO state VALUES (%s, %s, %s, %s, false)", (_FORMAT, identity, model, dim)
            )

    @classmethod
    def collections(cls, url: str) -> list[str]:
        with _connected(url) as db:
            found = db.execute(
                "SELECT schemaname FROM pg_tables WHERE tablename = 'state' "
                "AND starts_with(schemaname, %s)",
                (_PREFIX,),
            ).fetchall()
        return sorted(name.removeprefix(_PREFIX) for (name,) in found)

    @classmethod
    def drop(cls, url: str, collection: str) -> None:
        with _connected(url) as db:
            db.execute(_sql("DROP SCHEMA {} CASCADE", _PREFIX + collection))

    # Writers.

    def _add_photos(
        self, db: Database, person: int, photos: Mapping[str, CheckedPhoto], stamp: str
    ) -> None:
        with db.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO photo (id, person, embedding, crop, source, facts, added) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s)",
                [
                    (id_, person, photo.embedding, photo.crop, photo.source, facts, stamp)
                    for id_, (photo, facts) in photos.items()
                ],
            )

    def _remove_where(self, db: Database, which: str, value: int | str) -> int:
        self._note_removal(db)
        count: int = self._run(db, f"DELETE FROM photo WHERE {which}", value).rowcount
        return count

    def _note_removal(self, db: Database) -> None:
        db.execute("UPDATE state SET unfinished = true")

    def _read(self, stored: Any) -> Embeddings:
        row: Embeddings = _rows([stored], self.dim)[0]
        return row

    # Readers.

    def embeddings(self, ids: Sequence[str]) -> Embeddings:
        with self._transaction() as db:
            found = dict(
                db.execute(
                    "SELECT id, embedding FROM photo WHERE id = ANY(%s)", (list(ids),)
                ).fetchall()
            )
            for id_ in ids:
                if id_ not in found:
                    raise self._unknown_photo(db, id_)
        return _rows([found[id_] for id_ in ids], self.dim)

    def crop(self, photo: str) -> bytes:
        with self._transaction() as db:
            (crop,) = self._photo(db, photo, "crop")
            return bytes(crop)

    def blocks(self, rows: int = 65_536) -> Iterator[tuple[list[str], Embeddings]]:
        last = 0
        while True:
            with self._transaction() as db:
                found = db.execute(
                    "SELECT serial, id, embedding FROM photo WHERE serial > %s "
                    "ORDER BY serial LIMIT %s",
                    (last, rows),
                ).fetchall()
            if not found:
                return
            last = found[-1][0]
            yield [id_ for _, id_, _ in found], _rows([each for *_, each in found], self.dim)

    def _search(self, queries: Embeddings, people: int) -> list[list[Hit]]:
        with self._transaction() as db:
            if self._options.index == "hnsw":
                for name, value in (
                    ("hnsw.ef_search", str(self._options.ef_search)),
                    ("hnsw.iterative_scan", "strict_order"),  # until there are enough
                    ("enable_seqscan", "off"),  # the index was asked for
                    ("enable_sort", "off"),
                ):
                    db.execute("SELECT set_config(%s, %s, true)", (name, value))
            else:
                db.execute("SELECT set_config('enable_indexscan', 'off', true)")
            return [self._nearest(db, query, people) for query in queries]

    def _nearest(self, db: Database, query: Embeddings, people: int) -> list[Hit]:
        order = _sql("embedding <#> %s")
        if self._options.type == "halfvec":
            order = _sql("embedding::halfvec({}) <#> %s::halfvec({})", self.dim, self.dim)
        ask = _sql(
            "SELECT person.name, found.id, found.score FROM (SELECT id, person, "
            "-(embedding <#> %s) AS score FROM photo ORDER BY {} LIMIT %s) AS found "
            "JOIN person ON found.person = person.number ORDER BY found.score DESC",
            order,
        )
        return best_of_people(
            lambda count: db.execute(ask, (query, query, count)).fetchall(), people
        )

    # Transactions.

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[Database]:
        import psycopg

        if self._closed:
            raise BrokenGalleryError(f"the gallery {self._shown} is closed")
        with _sentences(self._shown):
            db = self._connection()
            try:
                db.isolation_level = (
                    psycopg.IsolationLevel.READ_COMMITTED
                    if write
                    else psycopg.IsolationLevel.REPEATABLE_READ
                )
                with db.transaction():
                    yield db
            finally:
                if self._closed or db.closed:
                    db.close()
                else:
                    self._connections.append(db)

    def _connection(self) -> Database:
        while self._connections:
            db = self._connections.pop()
            try:
                db.execute("SELECT 1")  # the server may have been started again
                return db
            except Exception:
                db.close()
        return _connect(self._address, self._schema)

    # Removals and the index.

    def _finish_removals(self) -> None:
        """Rewrite the tables without what was removed.

        A plain VACUUM marks the place as free and leaves the bytes in it.
        """
        full = self._options.removal == "full"
        with _sentences(self._shown):
            db = self._connection()
            try:
                self._wait_for_older(db)
                for table in _NO_STATISTICS:
                    db.execute(f"VACUUM (FULL) {table}" if full else f"VACUUM {table}")
                db.execute("UPDATE state SET unfinished = false")
                if full:
                    db.execute("VACUUM (FULL) state")
            finally:
                self._connections.append(db)

    def _wait_for_older(self, db: Database) -> None:
        """Until nobody can see the state before: VACUUM would keep it for them."""
        (xid,) = self._one(db, "SELECT pg_current_xact_id()::xid::text")
        deadline = time.monotonic() + _PATIENCE
        while True:
            (older,) = self._one(
                db,
                "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
                "datname = current_database() AND age(backend_xmin) >= age(?::xid)",
                xid,
            )
            if not older:
                return
            if time.monotonic() > deadline:
                raise ValueError(
                    f"removed, but {older} other transactions in {self._shown} keep the server "
                    "from overwriting it; end them and open the gallery once more"
                )
            time.sleep(0.05)

    def _build_index(self) -> None:
        options = self._options
        name, column = f"photo_hnsw_{options.type}", _sql("embedding vector_ip_ops")
        if options.type == "halfvec":
            column = _sql("(embedding::halfvec({})) halfvec_ip_ops", self.dim)
        with self._transaction(write=True) as db:
            _lock(db)
            db.execute(
                _sql(
                    "CREATE INDEX IF NOT EXISTS {} ON photo USING hnsw ({}) "
                    "WITH (m = {}, ef_construction = {})",
                    name, column, options.m, options.ef_construction,
                )
            )  # fmt: skip
            if options.type == "halfvec":  # an expression has statistics of its own
                db.execute(_sql("ALTER INDEX {} ALTER COLUMN 1 SET STATISTICS 0", name))


def _sql(text: LiteralString, *parts: str | int | Composed) -> Composed:
    """A statement with what goes into its braces: names, numbers, and parts of statements."""
    from psycopg.sql import SQL, Identifier, Literal

    def part(each: str | int | Composed) -> Composable:
        if isinstance(each, str):
            return Identifier(each)
        return Literal(each) if isinstance(each, int) else each

    return SQL(text).format(*map(part, parts))


def _rows(vectors: Sequence[Any], dim: int) -> Embeddings:
    rows = [each.to_numpy() if hasattr(each, "to_numpy") else each for each in vectors]
    return np.array(rows, dtype=np.float32).reshape(len(rows), dim)


def _lock(db: Database) -> None:
    """One process at a time makes schemas and indexes."""
    db.execute("SELECT pg_advisory_xact_lock(hashtext('sphereface2'))")


def _parsed(url: str) -> tuple[str, Options]:
    """The address as PostgreSQL takes it, and our options."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {field.name for field in fields(Options)}
    options = {key: value for key, value in given if key in ours}
    rest = urlencode([(key, value) for key, value in given if key not in ours])
    resolved = Options(**resolve_options("gallery", "postgresql", Options, options))
    if resolved.type == "halfvec" and resolved.index == "exact":
        raise ValueError("type=halfvec is of the HNSW index: add index=hnsw")
    # By hand: `urlunsplit` drops the slashes of postgresql:///people, which is a local server's.
    address = f"{parts.scheme}://{parts.netloc}{parts.path}"
    return f"{address}?{rest}" if rest else address, resolved


def _connect(address: str, schema: str | None = None) -> Database:
    import psycopg
    from pgvector.psycopg import register_vector

    db = psycopg.connect(address, autocommit=True, connect_timeout=10)
    try:
        if schema is not None:
            _look_in(db, schema)
            db.execute("SET synchronous_commit = on")  # what is acknowledged is on disk
            register_vector(db)
    except BaseException:
        db.close()
        raise
    return db


def _look_in(db: Database, schema: str) -> None:
    """Let names mean those of a schema, and those of pgvector."""
    found = db.execute(
        "SELECT nspname FROM pg_extension JOIN pg_namespace ON extnamespace = "
        "pg_namespace.oid WHERE extname = 'vector'"
    ).fetchone()
    path = (schema, *(found or ()))
    db.execute(_sql("SET search_path = " + ", ".join("{}" for _ in path), *path))


@contextmanager
def _connected(url: str) -> Iterator[Database]:
    with _sentences(PostgreSQLGallery.shown(url)):
        db = _connect(_parsed(url)[0])
        try:
            yield db
        finally:
            db.close()


@contextmanager
def _sentences(where: str) -> Iterator[None]:
    """PostgreSQL's errors in one line."""
    try:
        import pgvector  # noqa: F401
        import psycopg
    except ImportError as error:
        raise ValueError(
            f"a gallery in PostgreSQL needs {error.name}: pip install 'sphereface2[postgresql]'"
        ) from None
    try:
        yield
    except psycopg.errors.UndefinedTable:
        raise BrokenGalleryError(f"the collection of {where} was dropped; open it again") from None
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        if isinstance(error, psycopg.ProgrammingError) and "query parameter" in said:
            word = said.rpartition(":")[2].strip(' "')
            hint = nearest(word, [field.name for field in fields(Options)])
            raise ValueError(f"{where} has no option '{word}'{hint}") from None
        if isinstance(error, psycopg.OperationalError):
            raise OSError(f"the PostgreSQL server of {where} does not answer: {said}") from None
        raise BrokenGalleryError(f"the PostgreSQL server of {where} refuses it: {said}") from None
