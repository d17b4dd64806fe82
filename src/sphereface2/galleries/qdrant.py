"""A gallery in Qdrant: qdrant://HOST:PORT, qdrants://, qdrant+local:FOLDER or qdrant+edge:FOLDER.

People, photos, negatives and requests are points of one collection. Qdrant has no transactions, so
whatever belongs together is one operation on one shard: a person with the photos and the request's
result. A removal with a key is noted first, and done again if it was interrupted.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from sphereface2.files import remove
from sphereface2.galleries.gallery import (
    BrokenGalleryError,
    CheckedPhoto,
    Embeddings,
    Gallery,
    Hit,
    KeptPhoto,
    Negative,
    Person,
    best_of_people,
    check_format,
    check_name,
    now,
    plain_json,
    taken_name,
    unknown_person,
    unknown_photo,
    used_key,
)
from sphereface2.galleries.qdrant_points import (
    FACE,
    NEGATIVE,
    PREFIX,
    ClientPoints,
    EdgePoints,
    Place,
    Point,
    Points,
    connected,
    opened,
)

T = TypeVar("T")

_FORMAT = 1
_STATE = str(uuid.UUID(int=0x5F2FACE))
_NEAR = 5_000


class QdrantGallery(Gallery):
    """A collection of Qdrant; any number of threads may use it at once."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._place = place = Place.of(url)
        self._stack = ExitStack()
        self._closed = False
        with _sentences(place):
            self._points = self._stack.enter_context(opened(place, name))
            try:
                state = self._points.get([_STATE])[_STATE].payload
                check_format(self.where(url, name), state["format"], _FORMAT)
                if place.options.index == "hnsw":
                    self._points.build()
            except BaseException:
                self._stack.close()
                raise
        self.model: str = state["model"]
        self.dim: int = state["dim"]
        self._identity = uuid.UUID(state["identity"])

    # What a place keeps.

    @classmethod
    def shown(cls, url: str) -> str:
        return Place.of(url).shown

    @classmethod
    def create(cls, url: str, collection: str, model: str, dim: int) -> None:
        place = Place.of(url)
        state = {
            "kind": "state",
            "format": _FORMAT,
            "model": model,
            "dim": dim,
            "identity": str(uuid.uuid4()),
        }
        with _sentences(place), ExitStack() as held:
            if place.edge is not None:
                EdgePoints.create(place.edge / collection, dim, place.options)
            else:
                client = held.enter_context(connected(place))
                ClientPoints.create(client, PREFIX + collection, dim, place.options)
            points = held.enter_context(opened(place, collection))
            points.index()
            points.put([Point(_STATE, state)])
        if place.edge is not None:
            (place.edge / collection / "complete").touch()

    @classmethod
    def collections(cls, url: str) -> list[str]:
        place = Place.of(url)
        with _sentences(place):
            if place.folder is not None and not place.folder.exists():
                return []
            if place.edge is not None:
                return sorted(each.parent.name for each in place.edge.glob("[!.]*/complete"))
            with connected(place) as client:
                names = [each.name for each in client.get_collections().collections]
                return sorted(
                    name.removeprefix(PREFIX)
                    for name in names
                    if name.startswith(PREFIX) and client.retrieve(name, [_STATE])
                )

    @classmethod
    def drop(cls, url: str, collection: str) -> None:
        place = Place.of(url)
        with _sentences(place):
            if place.edge is not None:
                (place.edge / collection / "complete").unlink()
                remove(place.edge / collection)
                return
            with connected(place) as client:
                client.delete_collection(PREFIX + collection)

    # Writers.

    def _add(
        self, name: str, photos: Sequence[CheckedPhoto], metadata: str | None, key: str | None
    ) -> list[str]:
        # With a key two processes that send it at once write the same points.
        ids = [self._id("add", key, number) for number in range(len(photos))]

        def work(points: Points) -> tuple[list[str], list[Point]]:
            stamp, order = now(), time.time_ns()
            made = []
            whose = self._find(points, name)
            if whose is None or metadata is not None:
                known = whose.payload if whose else {"added": stamp, "metadata": "{}"}
                id_ = whose.id if whose else self._new_person(points, name)
                fields = {"kind": "person", "person": id_, "name": name}
                payload = {**known, **fields, "metadata": metadata or known["metadata"]}
                whose = Point(id_, payload)
                made.append(whose)
            for number, (id_, (photo, facts)) in enumerate(zip(ids, photos, strict=True)):
                payload = {
                    "kind": "photo",
                    "person": whose.id,
                    "crop": base64.b64encode(photo.crop).decode(),
                    "source": photo.source,
                    "facts": facts,
                    "added": stamp,
                    "order": order + number,
                }
                made.append(Point(id_, payload, {FACE: photo.embedding.tolist()}))
            return ids, made

        return self._write("add", key, work)

    def remove(self, person: str, *, key: str | None = None) -> int:
        def which(points: Points) -> tuple[int, list[str]]:
            whose = self._person(points, person)
            return points.count(kind="photo", person=whose.id), [whose.id]

        def delete(points: Points, ids: Sequence[str]) -> None:
            points.delete_where(person=ids[0])

        return self._remove("remove", key, which, delete)

    def remove_photos(self, ids: Sequence[str], *, key: str | None = None) -> int:
        wanted = list(dict.fromkeys(ids))

        def which(points: Points) -> tuple[int, list[str]]:
            self._get(points, wanted, "photo")
            return len(wanted), wanted

        return self._remove("remove_photos", key, which, lambda points, ids: points.delete(ids))

    def remove_negative(self, negative: str, *, key: str | None = None) -> None:
        def which(points: Points) -> tuple[None, list[str]]:
            self._get(points, [negative], "negative")
            return None, [negative]

        self._remove("remove_negative", key, which, lambda points, ids: points.delete(ids))

    def rename(self, person: str, to: str, *, key: str | None = None) -> None:
        name = check_name(to)

        def work(points: Points) -> tuple[None, list[Point]]:
            whose = self._person(points, person)
            other = self._find(points, name)
            if other is not None and other.id != whose.id:
                raise taken_name(name)
            return None, [Point(whose.id, {**whose.payload, "name": name})]

        self._write("rename", key, work)

    def describe(self, person: str, metadata: Mapping[str, Any], *, key: str | None = None) -> None:
        text = plain_json(metadata, "a person's metadata")

        def work(points: Points) -> tuple[None, list[Point]]:
            whose = self._person(points, person)
            return None, [Point(whose.id, {**whose.payload, "metadata": text})]

        self._write("describe", key, work)

    def _add_negative(
        self, person: str | None, row: Embeddings, source: str, key: str | None
    ) -> str:
        id_ = self._id("add_negative", key)

        def work(points: Points) -> tuple[str, list[Point]]:
            whose = "" if person is None else self._person(points, person).id
            payload = {
                "kind": "negative",
                "person": whose,
                "source": source,
                "added": now(),
                "order": time.time_ns(),
            }
            return id_, [Point(id_, payload, {NEGATIVE: row.tolist()})]

        return self._write("add_negative", key, work)

    # Readers.

    def people(self) -> list[Person]:
        with self._using() as points:
            counts = points.photos_of_people()
            people = [_person(each, counts.get(each.id, 0)) for each in points.all(kind="person")]
        return sorted(people, key=lambda each: each.name)

    def person(self, name: str) -> Person:
        with self._using() as points:
            found = self._person(points, name)
            return _person(found, points.count(kind="photo", person=found.id))

    def count(self) -> tuple[int, int]:
        with self._using() as points:
            return points.count(kind="person"), points.count(kind="photo")

    def photos(self, person: str | None = None) -> list[KeptPhoto]:
        with self._using() as points:
            if person is None:
                names = {each.id: each.payload["name"] for each in points.all(kind="person")}
                all_photos = points.all(kind="photo")
            else:
                whose = self._person(points, person)
                names = {whose.id: whose.payload["name"]}
                all_photos = points.all(kind="photo", person=whose.id)
            theirs = (each for each in all_photos if each.payload["person"] in names)
            found = sorted(theirs, key=_order)
        return [
            KeptPhoto(
                each.id,
                names[each.payload["person"]],
                each.payload["source"],
                json.loads(each.payload["facts"]),
                each.payload["added"],
            )
            for each in found
        ]

    def embeddings(self, ids: Sequence[str]) -> Embeddings:
        with self._using() as points:
            found = self._get(points, ids, "photo", vectors=True)
        return _rows([found[id_] for id_ in ids], FACE, self.dim)

    def crop(self, photo: str) -> bytes:
        with self._using() as points:
            return base64.b64decode(self._get(points, [photo], "photo")[photo].payload["crop"])

    def blocks(self, rows: int = 65_536) -> Iterator[tuple[list[str], Embeddings]]:
        with self._using() as points:
            for page in points.pages(kind="photo", vectors=True, rows=rows):
                yield [each.id for each in page], _rows(page, FACE, self.dim)

    def _search(self, queries: Embeddings, people: int) -> list[list[Hit]]:
        with self._using() as points:
            return [self._nearest(points, query.tolist(), people) for query in queries]

    def _nearest(self, points: Points, query: list[float], people: int) -> list[Hit]:
        while True:
            hits = best_of_people(
                lambda count: points.nearest(query, count, self._place.options), people
            )
            found = points.get([hit.person for hit in hits]) if hits else {}
            if all(hit.person in found for hit in hits):  # else one was removed meanwhile
                return [replace(hit, person=found[hit.person].payload["name"]) for hit in hits]

    def negatives(self, person: str | None = None) -> list[Negative]:
        with self._using() as points:
            whose = None if person is None else self._person(points, person)
            of = whose.id if whose else ""
            found = sorted(points.all(kind="negative", person=of, vectors=True), key=_order)
        rows = _rows(found, NEGATIVE, self.dim)
        name = whose.payload["name"] if whose else None
        return [
            Negative(each.id, name, row, each.payload["source"], each.payload["added"])
            for each, row in zip(found, rows, strict=True)
        ]

    def close(self) -> None:
        self._closed = True
        self._stack.close()

    # Requests.

    @contextmanager
    def _using(self) -> Iterator[Points]:
        if self._closed:
            raise BrokenGalleryError(f"the gallery {self._place.shown} is closed")
        with _sentences(self._place):
            yield self._points

    def _id(self, operation: str, key: str | None, number: int = 0) -> str:
        if key is None:
            return str(uuid.uuid4())
        text = key.encode("utf-8", "backslashreplace").decode()
        return str(uuid.uuid5(self._identity, f"{operation} {number} {text}"))

    def _write(
        self,
        operation: str,
        key: str | None,
        work: Callable[[Points], tuple[T, list[Point]]],
    ) -> T:
        """Put the points that `work` makes, with the request, in one operation."""
        with self._using() as points, points.lock:
            done = self._done(points, operation, key)
            if done is not None:
                first: T = json.loads(done.payload["result"])
                return first
            result, made = work(points)
            points.put([*made, *self._request(operation, key, result)])
            return result

    def _remove(
        self,
        operation: str,
        key: str | None,
        which: Callable[[Points], tuple[T, list[str]]],
        delete: Callable[[Points, Sequence[str]], None],
    ) -> T:
        with self._using() as points, points.lock:
            done = self._done(points, operation, key)
            if done is None:
                result, ids = which(points)
                if key is not None:
                    points.put(self._request(operation, key, result, unfinished=ids))
            else:
                result, ids = json.loads(done.payload["result"]), done.payload["unfinished"]
            if ids:
                delete(points, ids)
                points.purge()
                if key is not None:
                    points.put(self._request(operation, key, result))
            return result

    def _request(
        self, operation: str, key: str | None, result: Any, *, unfinished: Sequence[str] = ()
    ) -> list[Point]:
        if key is None:
            return []
        payload = {
            "kind": "request",
            "operation": operation,
            "result": json.dumps(result),
            "unfinished": list(unfinished),
        }
        return [Point(self._id("request", key), payload)]

    def _done(self, points: Points, operation: str, key: str | None) -> Point | None:
        if key is None:
            return None
        id_ = self._id("request", key)
        found = points.get([id_]).get(id_)
        if found is not None and found.payload["operation"] != operation:
            raise used_key(key, found.payload["operation"])
        return found

    # Names to points.

    def _find(self, points: Points, name: str) -> Point | None:
        return next(points.all(kind="person", name=name), None)

    def _person(self, points: Points, person: str) -> Point:
        name = check_name(person)
        found = self._find(points, name)
        if found is None:
            some = islice(points.all(kind="person"), _NEAR)
            raise unknown_person(name, [each.payload["name"] for each in some])
        return found

    def _new_person(self, points: Points, name: str) -> str:
        """An id that two processes which add the same new person at once both choose."""
        number = 0
        while True:
            id_ = str(uuid.uuid5(self._identity, f"person {number} {name}"))
            if not points.get([id_]):
                return id_
            number += 1  # of somebody who has another name by now

    def _get(
        self, points: Points, ids: Sequence[str], kind: str, *, vectors: bool = False
    ) -> dict[str, Point]:
        known = [id_ for id_ in ids if _is_uuid(id_)]
        found = points.get(known, vectors=vectors) if known else {}
        for id_ in ids:
            if id_ not in found or found[id_].payload.get("kind") != kind:
                raise unknown_photo(id_, what=kind)
        return found


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _order(point: Point) -> int:
    """When a photo or a negative was added."""
    order: int = point.payload["order"]
    return order


def _person(point: Point, photos: int) -> Person:
    payload = point.payload
    return Person(payload["name"], photos, json.loads(payload["metadata"]), payload["added"])


def _rows(points: Sequence[Point], vector: str, dim: int) -> Embeddings:
    rows = np.array([each.vectors[vector] for each in points], dtype=np.float32)
    return rows.reshape(len(points), dim)


@contextmanager
def _sentences(place: Place) -> Iterator[None]:
    """The packages' errors in one line."""
    package = "qdrant_client" if place.edge is None else "qdrant_edge"
    try:
        __import__(package)
    except ImportError:
        extra = package.replace("_", "-").removesuffix("-client")
        raise ValueError(
            f"a gallery at {place.scheme}: needs {package}: pip install 'sphereface2[{extra}]'"
        ) from None
    try:
        yield
    except (ValueError, OSError) as error:
        if type(error) in (ValueError, FileNotFoundError) and "\n" not in str(error):
            raise
        raise ValueError(f"{place.shown}: {' '.join(str(error).split())[:300]}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in (
            "qdrant_client",
            "qdrant_edge",
            "httpx",
        ):
            raise
        said = " ".join(str(error).split())[:300]
        raise OSError(f"Qdrant at {place.shown} does not answer: {said}") from None
