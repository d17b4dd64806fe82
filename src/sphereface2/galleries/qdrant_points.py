"""Points of Qdrant, through its client (a server, or its local mode) or its engine in process."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import parse_qsl, urlsplit

from sphereface2.files import file_lock, printable
from sphereface2.registry import resolve_options

if TYPE_CHECKING:
    import qdrant_edge as edge
    from qdrant_client import QdrantClient, models
else:

    class _Lazy:
        """A package that is imported when it is first used: few galleries are of Qdrant."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    edge, models = _Lazy("qdrant_edge"), _Lazy("qdrant_client.models")

Closable = TypeVar("Closable", "QdrantClient", "EdgePoints")

FACE, NEGATIVE = "face", "negative"  # the two vectors that a point may have
PREFIX = "sphereface2_"
_INDEXED = ("kind", "name", "person")
_PAGE = 1_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an address may say after the question mark.

    index: 'exact' looks at every embedding; 'hnsw' is approximate and fast
    m, ef_construction: how the HNSW index of a new collection is built
    ef_search: how many embeddings it looks at in a search
    """

    index: Literal["exact", "hnsw"] = "exact"
    m: int = 16
    ef_construction: int = 100
    ef_search: int = 128


@dataclass(frozen=True, eq=False)
class Point:
    """id: a UUID; vectors: FACE or NEGATIVE or neither; payload: plain JSON"""

    id: str
    payload: dict[str, Any]
    vectors: dict[str, list[float]] = field(default_factory=dict)


class _Points(ABC):
    """The points of one collection; each writer is one operation, done as a whole or not at all."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # of writers in this process

    @abstractmethod
    def _retrieve(self, ids: list[str], *, vectors: bool) -> Sequence[Any]: ...

    @abstractmethod
    def _scroll(
        self, where: Mapping[str, str], offset: Any, rows: int, *, vectors: bool
    ) -> tuple[Sequence[Any], Any]:
        """Some records from an offset on, and the next offset; None at the end."""

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Point]:
        found = self._retrieve(list(ids), vectors=vectors)
        return {point.id: point for point in map(_point, found)}

    def pages(
        self, *, vectors: bool = False, rows: int = _PAGE, **where: str
    ) -> Iterator[list[Point]]:
        """All points with these values in their payload, some at a time."""
        offset: Any = None
        while True:
            found, offset = self._scroll(where, offset, rows, vectors=vectors)
            if found:
                yield [_point(each) for each in found]
            if offset is None:
                return

    def all(self, *, vectors: bool = False, **where: str) -> Iterator[Point]:
        """All points with these values, one by one."""
        for page in self.pages(vectors=vectors, rows=_PAGE, **where):
            yield from page


class ClientPoints(_Points):
    """Points behind qdrant-client."""

    def __init__(self, client: QdrantClient, collection: str, folder: Path | None) -> None:
        super().__init__()
        self._client = client
        self._name = collection
        self._folder = folder  # of the local mode

    @staticmethod
    def create(client: QdrantClient, collection: str, dim: int, options: Options) -> None:
        if client.collection_exists(collection):  # a process was killed before it was complete
            client.delete_collection(collection)
        params = models.VectorParams(size=dim, distance=models.Distance.DOT)  # kept as they are
        client.create_collection(
            collection,
            vectors_config={FACE: params, NEGATIVE: params},
            shard_number=1,  # else one operation could be done on one shard and not on another
            hnsw_config=models.HnswConfigDiff(m=options.m, ef_construct=options.ef_construction),
            optimizers_config=models.OptimizersConfigDiff(
                deleted_threshold=0.001, vacuum_min_vector_number=100
            ),
        )

    def index(self) -> None:
        if self._folder is None:  # the local mode has none
            for name in _INDEXED:
                kind = models.PayloadSchemaType.KEYWORD
                self._client.create_payload_index(self._name, name, field_schema=kind, wait=True)

    def put(self, points: Sequence[Point]) -> None:
        self._client.upsert(
            self._name,
            [
                models.PointStruct(id=each.id, payload=each.payload, vector=dict(each.vectors))
                for each in points
            ],
            wait=True,
        )

    def delete(self, ids: Sequence[str]) -> None:
        chosen = models.PointIdsList(points=list(ids))
        self._client.delete(self._name, chosen, wait=True)

    def delete_where(self, **where: str) -> None:
        chosen = models.FilterSelector(filter=_client_filter(where))
        self._client.delete(self._name, chosen, wait=True)

    def _retrieve(self, ids: list[str], *, vectors: bool) -> Sequence[Any]:
        return self._client.retrieve(self._name, ids, with_payload=True, with_vectors=vectors)

    def _scroll(
        self, where: Mapping[str, str], offset: Any, rows: int, *, vectors: bool
    ) -> tuple[Sequence[Any], Any]:
        return self._client.scroll(
            self._name,
            scroll_filter=_client_filter(where),
            limit=rows,
            offset=offset,
            with_payload=True,
            with_vectors=vectors,
        )

    def nearest(
        self, query: list[float], count: int, options: Options
    ) -> list[tuple[str, str, float]]:
        """Of the photos nearest to a query: the person's id, the photo's, score."""
        params = models.SearchParams(exact=options.index == "exact", hnsw_ef=options.ef_search)
        found = self._client.query_points(
            self._name,
            query=query,
            using=FACE,
            limit=count,
            with_payload=["person"],
            search_params=None if self._folder is not None else params,  # local: always exact
        )
        return [((each.payload or {})["person"], str(each.id), each.score) for each in found.points]

    def count(self, **where: str) -> int:
        return self._client.count(self._name, _client_filter(where), exact=True).count

    def photos_of_people(self) -> dict[str, int]:
        chosen = _client_filter({"kind": "photo"})
        most = max(1, self.count(kind="person"))
        hits = self._client.facet(
            self._name, "person", facet_filter=chosen, limit=most, exact=True
        ).hits
        return {str(each.value): each.count for each in hits}

    def purge(self) -> None:
        """Rewrite what still holds deleted points, as far as it can be done from here."""
        if self._folder is not None:  # a table of SQLite, of which deleting leaves the bytes
            for path in self._folder.glob(f"collection/{self._name}/*.sqlite"):
                with closing(sqlite3.connect(path)) as db:
                    db.execute("VACUUM")

    def build(self) -> None:
        """Nothing: a server builds its index by itself."""


class EdgePoints(_Points):
    """Points in a folder, by Qdrant's engine in this process; no other may open them meanwhile."""

    def __init__(self, shard: edge.EdgeShard) -> None:
        super().__init__()
        self._shard = shard

    @staticmethod
    def create(folder: Path, dim: int, options: Options) -> None:
        if folder.exists():  # a process was killed before it was complete
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        params = edge.EdgeVectorParams(size=dim, distance=edge.Distance.Dot)
        config = edge.EdgeConfig(
            vectors={FACE: params, NEGATIVE: params},
            hnsw_config=edge.HnswIndexConfig(options.m, options.ef_construction, 1_000),
            optimizers=edge.EdgeOptimizersConfig(
                deleted_threshold=1e-9, vacuum_min_vector_number=1, default_segment_number=1
            ),
            wal_enabled=False,  # it would keep what is removed; every operation is flushed instead
        )
        edge.EdgeShard.create(str(folder), config).close()

    def index(self) -> None:
        for name in _INDEXED:
            kind = edge.PayloadSchemaType.Keyword
            self._update(edge.UpdateOperation.create_field_index(name, kind))

    def _update(self, operation: edge.UpdateOperation) -> None:
        self._shard.update(operation)
        self._shard.flush()

    def put(self, points: Sequence[Point]) -> None:
        made = [edge.Point(each.id, dict(each.vectors), each.payload) for each in points]
        self._update(edge.UpdateOperation.upsert_points(made))

    def delete(self, ids: Sequence[str]) -> None:
        self._update(edge.UpdateOperation.delete_points(list(ids)))

    def delete_where(self, **where: str) -> None:
        self._update(edge.UpdateOperation.delete_points_by_filter(_edge_filter(where)))

    def _retrieve(self, ids: list[str], *, vectors: bool) -> Sequence[Any]:
        return self._shard.retrieve([*ids], True, vectors)

    def _scroll(
        self, where: Mapping[str, str], offset: Any, rows: int, *, vectors: bool
    ) -> tuple[Sequence[Any], Any]:
        request = edge.ScrollRequest(offset, rows, _edge_filter(where), True, vectors)
        return self._shard.scroll(request)

    def nearest(
        self, query: list[float], count: int, options: Options
    ) -> list[tuple[str, str, float]]:
        found = self._shard.query(
            edge.QueryRequest(
                limit=count,
                query=edge.Query.Nearest(query, using=FACE),
                with_payload=["person"],
                params=edge.SearchParams(hnsw_ef=options.ef_search, exact=options.index == "exact"),
            )
        )
        return [((each.payload or {})["person"], str(each.id), each.score) for each in found]

    def count(self, **where: str) -> int:
        return self._shard.count(edge.CountRequest(True, _edge_filter(where)))

    def photos_of_people(self) -> dict[str, int]:
        most = max(1, self.count(kind="person"))
        chosen = _edge_filter({"kind": "photo"})
        hits = self._shard.facet(edge.FacetRequest("person", most, True, chosen)).hits
        return {str(each.value): each.count for each in hits}

    def purge(self) -> None:
        self.build()  # segments with deleted points are written again

    def build(self) -> None:
        self._shard.optimize()
        self._shard.flush()

    def close(self) -> None:
        self._shard.close()


Points = ClientPoints | EdgePoints


def _point(found: Any) -> Point:
    """A record of either package."""
    vectors = found.vector if isinstance(found.vector, dict) else {}
    return Point(str(found.id), dict(found.payload or {}), dict(vectors))


def _client_filter(where: Mapping[str, str]) -> models.Filter:
    return models.Filter(
        must=[
            models.FieldCondition(key=key, match=models.MatchValue(value=value))
            for key, value in where.items()
        ]
    )


def _edge_filter(where: Mapping[str, str]) -> edge.Filter:
    return edge.Filter(
        must=[
            edge.FieldCondition(key, match=edge.MatchValue(value)) for key, value in where.items()
        ]
    )


# Addresses.


@dataclass(frozen=True)
class Place:
    """An address, taken apart; shown: without its key."""

    scheme: str
    folder: Path | None
    host: str
    port: int | None
    key: str | None
    options: Options

    @classmethod
    def of(cls, url: str) -> Place:
        parts = urlsplit(url)
        scheme, _, rest = url.partition(":")
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        options = Options(**resolve_options("gallery", scheme, Options, given))
        if "+" in scheme:
            path = rest.partition("?")[0].removeprefix("//")
            if not path:
                raise ValueError(f"{scheme}: must name a folder, such as {scheme}:faces")
            return cls(scheme, Path(path).expanduser(), "", None, None, options)
        if not parts.hostname:
            raise ValueError(f"{scheme}:// must name a server, such as {scheme}://localhost:6333")
        if parts.password and scheme == "qdrant":
            raise ValueError("a key must not go over plain HTTP: give the address as qdrants://")
        return cls(scheme, None, parts.hostname, parts.port, parts.password, options)

    @property
    def edge(self) -> Path | None:
        """The folder of Qdrant's engine in this process; None where a client is asked."""
        return self.folder if self.scheme == "qdrant+edge" else None

    @property
    def shown(self) -> str:
        if self.folder is not None:
            return f"{self.scheme}:{printable(self.folder)}"
        return f"{self.scheme}://{self.host}" + (f":{self.port}" if self.port else "")

    def client(self) -> QdrantClient:
        from qdrant_client import QdrantClient

        if self.folder is not None:
            return QdrantClient(path=str(self.folder))
        secure = self.scheme == "qdrants"
        return QdrantClient(
            host=self.host,
            port=self.port or 6333,
            https=secure,
            api_key=self.key,
            timeout=60,
            check_compatibility=False,  # it warns where the server does not answer
        )


_open: dict[tuple[type, Path], tuple[Any, ExitStack, int]] = {}
_opening = threading.Lock()


@contextmanager
def _shared(folder: Path, kind: type, make: Callable[[], Closable]) -> Iterator[Closable]:
    """What `make` opens in a folder, which this process can open once only, for all galleries."""
    at = (kind, folder.absolute())
    refusal = (
        f"another process has {printable(folder)} open, and Qdrant's engine allows one only; "
        "wait for it, or run a Qdrant server"
    )
    with _opening:
        if at not in _open:
            with ExitStack() as stack:
                # Keeps other processes away, which the engine does not.
                lock = folder.with_name(f".{folder.name}.lock")
                stack.enter_context(file_lock(lock, patience=0, refusal=refusal))
                made = stack.enter_context(closing(make()))
                _open[at] = (made, stack.pop_all(), 0)
        found, held, uses = _open[at]
        _open[at] = (found, held, uses + 1)
    try:
        yield found
    finally:
        with _opening:
            found, held, uses = _open.pop(at)
            if uses > 1:
                _open[at] = (found, held, uses - 1)
            else:
                held.close()


@contextmanager
def connected(place: Place) -> Iterator[QdrantClient]:
    """A client of a server, or of the local mode."""
    if place.folder is None:
        made: AbstractContextManager[QdrantClient] = closing(place.client())
    else:
        made = _shared(place.folder, ClientPoints, place.client)
    with made as client:
        yield client


@contextmanager
def opened(place: Place, collection: str) -> Iterator[Points]:
    """The points of a collection."""
    if place.edge is None:
        with connected(place) as client:
            yield ClientPoints(client, PREFIX + collection, place.folder)
        return
    folder = place.edge / collection
    with _shared(folder, EdgePoints, lambda: EdgePoints(edge.EdgeShard.load(str(folder)))) as shard:
        yield shard
