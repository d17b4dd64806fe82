"""People and their embeddings, kept and searched: open a gallery by its address, wherever it is."""

from __future__ import annotations

import re

from sphereface2.galleries.embedded import EmbeddedGallery
from sphereface2.galleries.gallery import Gallery, OtherModelError, check_collection
from sphereface2.galleries.postgresql import PostgreSQLGallery
from sphereface2.galleries.qdrant import QdrantGallery
from sphereface2.registry import look_up

ENGINES: dict[str, type[Gallery]] = {
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
    engine = _engine(url)
    where = engine.where(url, collection)
    if check_collection(collection) not in engine.collections(url):
        if not create:
            raise engine.missing(url, collection)
        if not model or dim is None or dim < 1:
            raise ValueError(f"{where} is new: say the model's digest and how many values it gives")
        engine.create(url, collection, model, dim)
    gallery = engine(url, collection)
    try:
        if model is not None and model != gallery.model:
            raise OtherModelError(
                f"{where} holds embeddings of another model ({gallery.model[:12]}, not "
                f"{model[:12]}): use that one, migrate the gallery to this one, or choose another "
                "collection"
            )
        if dim is not None and dim != gallery.dim:
            raise ValueError(f"{where} holds embeddings of {gallery.dim} values, not {dim}")
    except ValueError:
        gallery.close()
        raise
    return gallery


def list_collections(url: str) -> list[str]:
    """The names of the collections at an address, in order."""
    return _engine(url).collections(url)


def drop_collection(url: str, name: str) -> None:
    """Remove a collection with everybody in it."""
    engine = _engine(url)
    if check_collection(name) not in engine.collections(url):
        raise engine.missing(url, name)
    engine.drop(url, name)


def _engine(url: str) -> type[Gallery]:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(?!\\)", url)
    if scheme is None or len(scheme[1]) == 1:  # C:\ is a drive
        if not url:
            raise ValueError("a gallery's address must not be empty")
        return EmbeddedGallery
    return look_up("kind of gallery", ENGINES, scheme[1])
