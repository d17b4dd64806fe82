"""Open a gallery by its address, wherever it is: a folder, PostgreSQL, Qdrant."""

from __future__ import annotations

import re
from typing import Protocol

from sphereface2.galleries.embedded import EmbeddedGallery
from sphereface2.galleries.gallery import Gallery, check_collection
from sphereface2.galleries.postgresql import PostgreSQLGallery
from sphereface2.galleries.qdrant import QdrantGallery
from sphereface2.registry import look_up


class Engine(Protocol):
    """What keeps galleries: a class of theirs that opens, lists and drops collections."""

    def open(
        self, url: str, collection: str, *, model: str | None, dim: int | None, create: bool
    ) -> Gallery: ...

    def collections(self, url: str) -> list[str]: ...

    def drop(self, url: str, collection: str) -> None: ...


ENGINES: dict[str, Engine] = {
    "postgresql": PostgreSQLGallery,
    "qdrant": QdrantGallery,
    "qdrants": QdrantGallery,
    "qdrant+local": QdrantGallery,
    "qdrant+edge": QdrantGallery,
}
"""By the scheme of the address; a plain path is a folder."""


def open_gallery(
    url: str,
    *,
    collection: str = "default",
    model: str | None = None,
    dim: int | None = None,
    create: bool = False,
) -> Gallery:
    """A collection at an address; with `create` it is made if it is not there.

    model: the digest of the model whose embeddings are searched and added; another is refused
    dim: how many values an embedding has
    """
    check_collection(collection)
    return _engine(url).open(url, collection, model=model, dim=dim, create=create)


def list_collections(url: str) -> list[str]:
    """The names of the collections at an address, in order."""
    return _engine(url).collections(url)


def drop_collection(url: str, name: str) -> None:
    """Remove a collection with everybody in it."""
    _engine(url).drop(url, check_collection(name))


def _engine(url: str) -> Engine:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(?!\\)", url)
    if scheme is None or len(scheme[1]) == 1:  # C:\ is a drive
        if not url:
            raise ValueError("a gallery's address must not be empty")
        return EmbeddedGallery
    return look_up("kind of gallery", ENGINES, scheme[1])
