"""What every gallery does, wherever it keeps its people.

A gallery is one collection of people whose photos were embedded by one model. It stores and
searches; what a score means is decided by its callers (`recognition`).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sphereface2.files import printable
from sphereface2.registry import near, nearest

Embeddings = NDArray[np.float32]
MAX_NAME = 200  # characters
MAX_COLLECTION = 40
MAX_TEXT = 65_536  # characters of a photo's facts or a person's metadata as JSON
MAX_SOURCE = 4_096
MAX_CROP = 16 << 20  # bytes


class OtherModelError(ValueError):
    """A collection holds embeddings of another model than is asked for."""


class BrokenGalleryError(ValueError):
    """A gallery fails, whatever is asked of it: damaged, closed, replaced or busy for too long."""


@dataclass(frozen=True, eq=False)
class NewPhoto:
    """A photo to add.

    embedding: (D,), of unit length
    crop: the aligned face as PNG, from which another model can embed it; empty if it is not kept
    source: where it came from, such as a file name
    facts: what was measured when it was added, as plain JSON values
    """

    embedding: Embeddings
    crop: bytes = b""
    source: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


CheckedPhoto = tuple[NewPhoto, str]
"""A photo to add, with a float32 embedding and a source that can be kept; its facts as JSON."""


@dataclass(frozen=True)
class KeptPhoto:
    """A photo that a gallery holds; added: ISO 8601 in UTC."""

    id: str
    person: str
    source: str
    facts: Mapping[str, Any]
    added: str


@dataclass(frozen=True)
class Person:
    """Somebody whom a gallery knows; metadata: the user's own, as plain JSON values."""

    name: str
    photos: int
    metadata: Mapping[str, Any]
    added: str


@dataclass(frozen=True)
class Hit:
    """A person whom a search found, by the best of their photos; score: its cosine."""

    person: str
    photo: str
    score: float


@dataclass(frozen=True, eq=False)
class Negative:
    """A face that is not `person`, or a stranger to everybody (None)."""

    id: str
    person: str | None
    embedding: Embeddings
    source: str
    added: str


class Gallery(Protocol):
    """A collection of people.

    What `add`, `remove` and the other writers have returned from survives a crash. A repeated
    `key` changes nothing and returns what the first call returned. Readers see the state before a
    write or after it, never a part of it, and continue while another process writes.
    An unknown person or photo is a ValueError that names the nearest right spelling.
    """

    name: str
    model: str
    """The digest of the model whose embeddings it holds."""
    dim: int

    def __init__(self, url: str, name: str) -> None:
        """Open a collection that is there."""

    # What a place keeps.

    @classmethod
    def shown(cls, url: str) -> str:
        """An address in a sentence, without what is secret."""

    @classmethod
    def where(cls, url: str, collection: str) -> str:
        """What a collection is called in a sentence."""
        return f"collection '{collection}' of {cls.shown(url)}"

    @classmethod
    def collections(cls, url: str) -> list[str]: ...

    @classmethod
    def missing(cls, url: str, collection: str) -> Exception:
        """The error for a collection that is not there."""
        known = cls.collections(url)
        listed = f" (there: {', '.join(known[:20])})" if known else ""
        return FileNotFoundError(
            f"{cls.shown(url)} has no collection '{collection}'{nearest(collection, known)}"
            f"{listed}; enrolling makes it"
        )

    @classmethod
    def create(cls, url: str, collection: str, model: str, dim: int) -> None: ...

    @classmethod
    def drop(cls, url: str, collection: str) -> None: ...

    # Writers.

    def add(
        self,
        person: str,
        photos: Sequence[NewPhoto],
        *,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> list[str]:
        """Add photos to a person, who is made if new; the photos' ids, all or none of them."""
        facts = [plain_json(photo.facts, "a photo's facts") for photo in photos]
        described = None if metadata is None else plain_json(metadata, "a person's metadata")
        name, rows = check_name(person), check_photos(photos, self.dim)
        checked = [
            (replace(photo, embedding=row, source=plain_source(photo.source)), text)
            for photo, row, text in zip(photos, rows, facts, strict=True)
        ]
        return self._add(name, checked, described, key)

    def _add(
        self, name: str, photos: Sequence[CheckedPhoto], metadata: str | None, key: str | None
    ) -> list[str]: ...

    def remove(self, person: str, *, key: str | None = None) -> int:
        """Remove a person with all photos and negatives; how many photos that were.

        No byte of them stays: not in the files, the journal or an index.
        """

    def remove_photos(self, ids: Sequence[str], *, key: str | None = None) -> int:
        """Remove photos; a person whose last photo it is stays, without any."""

    def rename(self, person: str, to: str, *, key: str | None = None) -> None:
        """Give a person another name, which nobody must have."""

    def describe(self, person: str, metadata: Mapping[str, Any], *, key: str | None = None) -> None:
        """Replace a person's metadata."""

    # Readers.

    def people(self) -> list[Person]:
        """Everybody, by name."""

    def person(self, name: str) -> Person: ...

    def count(self) -> tuple[int, int]:
        """How many people and how many photos there are."""

    def photos(self, person: str | None = None) -> list[KeptPhoto]:
        """The photos of a person, or all, in the order in which they were added."""

    def embeddings(self, ids: Sequence[str]) -> Embeddings:
        """(N, D), a row for each id."""

    def crop(self, photo: str) -> bytes:
        """The PNG of a photo's aligned face; empty if none was kept."""

    def blocks(self, rows: int = 65_536) -> Iterator[tuple[list[str], Embeddings]]:
        """All ids and embeddings, some rows at a time; a block is of one state, all need not be."""

    def search(self, queries: Embeddings, people: int = 1) -> list[list[Hit]]:
        """The nearest people of each row of (Q, D), best first."""
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise ValueError(
                f"queries have the shape {queries.shape}; this gallery holds embeddings of "
                f"{self.dim} values, so give rows of as many"
            )
        if people < 1:
            raise ValueError(f"a search finds at least 1 person, not {people}")
        rows = np.ascontiguousarray(queries, dtype=np.float32)
        if not np.isfinite(rows).all():
            raise ValueError("queries must be finite")
        return self._search(rows, people)

    def _search(self, queries: Embeddings, people: int) -> list[list[Hit]]: ...

    def add_negative(
        self,
        person: str | None,
        embedding: Embeddings,
        *,
        source: str = "",
        key: str | None = None,
    ) -> str:
        """Keep a face that is not this person, or a stranger to all; its id."""
        (row,) = check_photos([NewPhoto(embedding)], self.dim)
        return self._add_negative(person, row, plain_source(source), key)

    def _add_negative(
        self, person: str | None, row: Embeddings, source: str, key: str | None
    ) -> str: ...

    def negatives(self, person: str | None = None) -> list[Negative]:
        """What is not this person, without the strangers; with None the strangers."""

    def remove_negative(self, negative: str, *, key: str | None = None) -> None: ...

    def close(self) -> None: ...


def check_name(name: str, what: str = "a person's name") -> str:
    """The name, normalised (NFC, no blanks around it); a ValueError if it cannot be one."""
    plain = unicodedata.normalize("NFC", name).strip()
    if not plain:
        raise ValueError(f"{what} must not be empty")
    if len(plain) > MAX_NAME:
        raise ValueError(f"{what} has {len(plain):,} characters; at most {MAX_NAME} are allowed")
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in plain):
        raise ValueError(f"{what} must not have control characters: {plain!r}")
    return plain


def check_photos(photos: Sequence[NewPhoto], dim: int) -> Embeddings:
    """The embeddings (N, D); a ValueError unless they are finite, of length 1 and of D values."""
    if not photos:
        raise ValueError("there is no photo to add")
    for number, photo in enumerate(photos, start=1):
        if photo.embedding.shape != (dim,):
            raise ValueError(
                f"photo {number} has an embedding of shape {photo.embedding.shape}; this gallery "
                f"holds embeddings of {dim} values"
            )
        if len(photo.crop) > MAX_CROP:
            raise ValueError(f"the crop of photo {number} has {len(photo.crop):,} bytes: too many")
    rows = np.stack([photo.embedding for photo in photos]).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1)
    if not np.all(np.abs(lengths - 1) < 1e-3):  # nan and inf fail, too
        raise ValueError("embeddings must be finite and of length 1")
    return rows


def check_collection(name: str) -> str:
    """The name, if it can be one of a collection: it becomes part of paths and tables."""
    if re.fullmatch(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_COLLECTION - 1}}}", name):
        return name
    likely = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:MAX_COLLECTION]
    hint = f"; did you mean '{likely}'?" if likely and len(name) <= MAX_COLLECTION else ""
    shown = repr(name if len(name) <= MAX_COLLECTION else name[:MAX_COLLECTION] + "...")
    raise ValueError(
        f"a collection's name has up to {MAX_COLLECTION} lower-case letters, digits, - and _, "
        f"not {shown}{hint}"
    )


def check_format(where: str, found: int, known: int = 1) -> None:
    """A ValueError if a newer version of this package has written what is there."""
    if found > known:
        raise ValueError(
            f"{where} has format {found}, which this version of sphereface2 does not know (it "
            f"knows {known}); use a newer one"
        )


def unknown_person(name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that nobody has; known: some thousand names at most."""
    meant = near(name, known)
    hint = f"; did you mean {' or '.join(repr(each) for each in meant)}?" if meant else ""
    return ValueError(f"nobody in this gallery is called {name[:MAX_NAME]!r}{hint}")


def unknown_photo(photo: str, known: Iterable[str] = (), what: str = "photo") -> ValueError:
    return ValueError(f"this gallery has no {what} {photo[:MAX_NAME]!r}{nearest(photo, known)}")


def taken_name(name: str) -> ValueError:
    return ValueError(f"somebody in this gallery is already called {name!r}; choose another name")


def used_key(key: str, before: str) -> ValueError:
    return ValueError(
        f"the idempotency key {key[:MAX_NAME]!r} was used for another request ({before}); every "
        "request needs a key of its own"
    )


def plain_json(value: Mapping[str, Any], what: str) -> str:
    """Metadata or facts as the text that is kept; a ValueError if they are not plain JSON."""
    try:
        text = json.dumps(dict(value), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} must be plain JSON values: {error}") from None
    if len(text) > MAX_TEXT:
        raise ValueError(f"{what} has {len(text):,} characters; at most {MAX_TEXT:,} are allowed")
    return text


def plain_source(source: str) -> str:
    """Where a photo came from, as text that every engine can keep."""
    return printable(source).replace("\0", "")[:MAX_SOURCE]


def best_of_people(
    photos: Callable[[int], Sequence[tuple[str, str, float]]], people: int
) -> list[Hit]:
    """The nearest people, each by the best photo.

    photos: so many of the nearest photos, best first: whose, which, score. More of them are asked
        for until they are of enough people.
    """
    count = 4 * people
    while True:
        rows = photos(count)
        best: dict[str, Hit] = {}
        for person, photo, score in rows:
            best.setdefault(person, Hit(person, photo, float(score)))
        if len(best) >= people or len(rows) < count:
            return list(best.values())[:people]
        count *= 4


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def embeddings_of(gallery: Gallery, person: str) -> Embeddings:
    """(N, D): the embeddings of a person's photos, in the order in which they were added."""
    return gallery.embeddings([photo.id for photo in gallery.photos(person)])


def knows(gallery: Gallery, name: str) -> bool:
    """Whether somebody has this name."""
    return any(each.name == name for each in gallery.people())


def photos_of(gallery: Gallery, name: str) -> list[KeptPhoto]:
    """The photos of a person; none if nobody has this name."""
    return gallery.photos(name) if knows(gallery, name) else []
