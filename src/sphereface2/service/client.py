"""A recognizer elsewhere: the methods of `Recognizer`, answered by a service.

recognizer = Client("http://127.0.0.1:8000", key)  # instead of Recognizer("runs/own-faces")
answer = recognizer.verify("a.jpg", "b.jpg").answer
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from sphereface2.data.sources.image_file import decode, encode, read_file
from sphereface2.evaluation.decision import Answer
from sphereface2.faces.face import Face
from sphereface2.galleries.gallery import KeptPhoto, Negative, Person
from sphereface2.recognition.answers import Candidate, Identification, Rule, Verification
from sphereface2.recognition.enrolment import Enrolment, PhotoOutcome
from sphereface2.recognition.gate import Gate
from sphereface2.recognition.photos import (
    FoundFace,
    Kind,
    Photo,
    as_array,
    photo_name,
    require_list,
)
from sphereface2.recognition.rejection import Objection
from sphereface2.service.errors import CODES
from sphereface2.workers import install_command

if TYPE_CHECKING:
    import httpx

_LONGEST_PAUSE = 30.0  # seconds before a request is tried again
_PAGE = 1000  # people of an answer


class ServiceError(ValueError):
    """A service has refused a request.

    status, code, details: as the service says; request_id: what its log calls the request
    """

    def __init__(self, status: int, content: Mapping[str, Any]) -> None:
        error = content.get("error", {})
        self.status = status
        self.code = str(error.get("code", "unknown"))
        self.details: Mapping[str, Any] = error.get("details") or {}
        self.request_id = str(content.get("request_id", ""))
        super().__init__(str(error.get("message", f"the service answered {status}")))


class RemoteGallery:
    """A collection that a service keeps; for `Client`, as a `Gallery` is for a recognizer."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client
        self._path = f"/v1/collections/{_part(name)}"

    @cached_property
    def model(self) -> str:
        return str(self._client.ask("GET", self._path)["model"])

    def people(self) -> list[Person]:
        """Everybody, by name."""
        found: list[Person] = []
        after = ""
        while True:
            params = {"limit": _PAGE, "after": after}
            answer = self._client.ask("GET", f"{self._path}/people", params=params)
            found += [Person(**each) for each in answer["people"]]
            if answer["next"] is None:
                return found
            after = answer["next"]

    def person(self, name: str) -> Person:
        answer = self._client.ask("GET", self._person(name))
        return Person(answer["name"], len(answer["photos"]), answer["metadata"], answer["added"])

    def count(self) -> tuple[int, int]:
        """How many people and how many photos there are."""
        answer = self._client.ask("GET", self._path)
        return answer["people"], answer["photos"]

    def photos(self, person: str) -> list[KeptPhoto]:
        """The photos of a person, in the order in which they were added."""
        answer = self._client.ask("GET", self._person(person))
        return [KeptPhoto(**each) for each in answer["photos"]]

    def crop(self, photo: str) -> bytes:
        """The PNG of a photo's aligned face; empty if none was kept."""
        try:
            return self._client.download(f"{self._path}/photos/{_part(photo)}/crop")
        except ServiceError as error:
            if error.code == "no_crop":
                return b""
            raise

    def remove(self, person: str, *, key: str | None = None) -> int:
        """Remove a person with all photos and negatives; how many photos that were."""
        return int(self._client.write("DELETE", self._person(person), key=key)["photos"])

    def remove_photos(self, ids: Sequence[str], *, key: str | None = None) -> int:
        """Remove photos, one after the other."""
        removed = 0
        for number, each in enumerate(ids):
            own = None if key is None else f"{key}-{number}"
            path = f"{self._path}/photos/{_part(each)}"
            removed += int(self._client.write("DELETE", path, key=own)["photos"])
        return removed

    def rename(self, person: str, to: str, *, key: str | None = None) -> None:
        """Give a person another name, which nobody must have."""
        self._client.write("PATCH", self._person(person), key=key, json={"name": to})

    def describe(self, person: str, metadata: Mapping[str, Any], *, key: str | None = None) -> None:
        """Replace a person's metadata."""
        content = {"metadata": dict(metadata)}
        self._client.write("PATCH", self._person(person), key=key, json=content)

    def remove_negative(self, negative: str, *, key: str | None = None) -> None:
        """Forget a face that was marked as not somebody."""
        path = f"/v1/feedback/{_part(negative)}"
        self._client.write("DELETE", path, key=key, params={"collection": self.name})

    def close(self) -> None:
        """Nothing: the connection is the client's."""

    def _person(self, name: str) -> str:
        return f"{self._path}/people/{_part(name)}"


class Client:
    """A service as a recognizer.

    url: such as http://127.0.0.1:8000; key: an API key, where the service wants one
    kind, choose: how the face of a photo is found, as of `Recognizer`
    timeout: seconds for an answer
    retries: how often a request is repeated after 429, 503 or a lost connection. Each write has an
        idempotency key, so that it is done once however often it is sent
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        kind: Kind = "auto",
        choose: str = "prominent",
        timeout: float = 60.0,
        retries: int = 5,
    ) -> None:
        try:
            import httpx
        except ModuleNotFoundError:
            raise ValueError(f"the client needs a package: {install_command('serve')}") from None
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        self._asked = {"kind": kind, "choose": choose}
        self._retries = retries

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    @cached_property
    def digest(self) -> str:
        """Stands for the network: embeddings of another digest cannot be compared with these."""
        return str(self.ask("GET", "/v1/models")["models"][0]["digest"])

    def embed(self, photos: Sequence[Photo]) -> NDArray[np.float32]:
        """Unit embeddings (N, D) of N photos."""
        require_list(photos)
        files = [("photos", photo) for photo in photos]
        answer = self._send("/v1/embed", files, params={"encoding": "base64"})
        flat = np.frombuffer(base64.b64decode(answer["embeddings"]), "<f4")
        return flat.reshape(len(photos), answer["dim"]).astype(np.float32)

    def verify(
        self,
        photo: Photo,
        person: Photo | Sequence[Photo],
        *,
        false_accepts: float | None = None,
        prior: float | None = None,
    ) -> Verification:
        """Whether a photo shows the person of another photo, or of a list of photos."""
        known = list(person) if isinstance(person, list | tuple) else [person]
        if not known:
            raise ValueError("there is no photo of the person to compare with")
        files = [("photo", photo), *(("person", each) for each in known)]
        options = {"false_accepts": false_accepts, "prior": prior}
        answer = self._send("/v1/verify", files, options, params={"crops": True})
        return _verification(answer, [photo, *known])

    def verify_person(
        self,
        photo: Photo,
        gallery: RemoteGallery,
        name: str,
        *,
        false_accepts: float | None = None,
        prior: float | None = None,
    ) -> Verification:
        """Whether a photo shows somebody who is enrolled, by all of their photos."""
        path = f"/v1/collections/{_part(gallery.name)}/people/{_part(name)}/verify"
        options = {"false_accepts": false_accepts, "prior": prior}
        answer = self._send(path, [("photo", photo)], options, params={"crops": True})
        return _verification(answer, [photo])

    def identify(
        self,
        photo: Photo,
        gallery: RemoteGallery,
        *,
        false_alarms: float | None = None,
        false_accepts: float | None = None,
        people: int = 3,
        prior: float | None = None,
    ) -> Identification:
        """Who of a gallery a photo shows."""
        options = {
            "collection": gallery.name,
            "false_alarms": false_alarms,
            "false_accepts": false_accepts,
            "people": people,
            "prior": prior,
        }
        answer = self._send("/v1/identify", [("photo", photo)], options, params={"crops": True})
        found = [{**each, "answer": _answer(each)} for each in answer["candidates"]]
        return Identification(
            TypeAdapter(tuple[Candidate, ...]).validate_python(found),
            Rule(**answer["rule"]),
            _face(answer["photo"], photo_name(photo, 1)),
            answer["gallery"],
            answer["model"],
        )

    def enroll(
        self,
        person: str,
        photos: Sequence[Photo],
        gallery: RemoteGallery,
        *,
        gate: Gate | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Enrolment:
        """Add photos to a person, who is made if new; those that the gate lets through."""
        require_list(photos)
        allow, limits = _gate_in_words(gate or Gate())
        options = {
            "name": person,
            "metadata": json.dumps(dict(metadata or {})),
            "allow": allow,
            "limits": limits,
        }
        path = f"/v1/collections/{_part(gallery.name)}/people"
        files = [("photos", each) for each in photos]
        try:
            answer = self._send(path, files, options, key=key)
        except ServiceError as error:
            if error.code != "not_enrolled":
                raise
            answer = dict(error.details)  # a recognizer, too, says so in its answer
        names = [photo_name(each, number) for number, each in enumerate(photos, start=1)]
        outcomes = TypeAdapter(tuple[PhotoOutcome, ...]).validate_python(
            [{**each, "photo": name} for each, name in zip(answer["photos"], names, strict=True)]
        )
        notes = tuple(answer["notes"])
        return Enrolment(answer["person"], outcomes, answer["gallery"], answer["model"], notes)

    def reject(
        self, photo: Photo, person: str | None, gallery: RemoteGallery, *, key: str | None = None
    ) -> Negative:
        """Keep a face as not this person, or with None as a stranger to all."""
        options = {"collection": gallery.name, "person": person}
        answer = self._send("/v1/feedback", [("photo", photo)], options, key=key)
        nothing = np.empty(0, np.float32)  # the service keeps the embedding to itself
        source = photo_name(photo, 1)
        return Negative(answer["id"], answer["person"], nothing, source, answer["added"])

    def open_gallery(
        self, url: Path | str | None = None, *, collection: str = "default", create: bool = False
    ) -> RemoteGallery:
        """A collection of the service; where it is kept is the service's business, not `url`'s."""
        path = f"/v1/collections/{_part(collection)}"
        self.ask("PUT" if create else "GET", path)
        return RemoteGallery(self, collection)

    # Requests.

    def ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The JSON that the service answers; a ServiceError if it refuses.

        options: as httpx has them
        """
        answer: dict[str, Any] = self._request(method, path, **options).json()
        return answer

    def write(self, method: str, path: str, *, key: str | None, **options: Any) -> dict[str, Any]:
        """As `ask`, for a request that changes something: done once, however often it is sent."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.ask(method, path, headers=headers, **options)

    def download(self, path: str) -> bytes:
        return bytes(self._request("GET", path).content)

    def _send(
        self,
        path: str,
        photos: Sequence[tuple[str, Photo]],
        options: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> dict[str, Any]:
        files = [
            (field, ("photo", _encoded(photo, number)))
            for number, (field, photo) in enumerate(photos, start=1)
        ]
        stated = {name: value for name, value in (options or {}).items() if value is not None}
        send = self.write if "key" in request else self.ask
        return send("POST", path, files=files, data={**self._asked, **stated}, **request)

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        import httpx

        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            pause = min(_LONGEST_PAUSE, 0.25 * 2**attempt)
            try:
                answer = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if last:
                    where = self._http.base_url
                    reason = str(error) or type(error).__name__
                    raise OSError(f"no answer from the service at {where}: {reason}") from None
            else:
                if answer.is_success:
                    return answer
                if last or answer.status_code not in (429, 503):
                    raise _refusal(answer)
                after = answer.headers.get("retry-after", "")
                pause = min(_LONGEST_PAUSE, float(after)) if after.isdecimal() else pause
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


# A refusal that a recognizer has an error of its own for is that error as well.
_KINDS: dict[str, type[ServiceError]] = {
    code: type(f"Service{kind.__name__}", (ServiceError, kind), {}) for code, kind in CODES.items()
}


def _refusal(answer: httpx.Response) -> ServiceError:
    try:
        content = answer.json()
    except ValueError:
        content = {}  # a proxy's page, say
    content = content if isinstance(content, dict) else {}
    error = ServiceError(answer.status_code, content)
    return _KINDS.get(error.code, ServiceError)(answer.status_code, content)


def _part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _encoded(photo: Photo, number: int) -> bytes:
    """A photo as it travels: a file as it is, pixels as PNG."""
    if isinstance(photo, str | Path):
        return read_file(photo)
    return encode(as_array(photo, photo_name(photo, number)), ".png")


def _face(facts: Mapping[str, Any], name: str) -> FoundFace:
    face = None
    if facts["box"] is not None:
        landmarks = np.array(facts["landmarks"], np.float64)
        face = Face(tuple(facts["box"]), landmarks, facts["detector_score"])
    points = None if facts["points"] is None else np.array(facts["points"], np.float64)
    return FoundFace(
        name,
        decode(base64.b64decode(facts["crop"]), name),
        points,
        face,
        0 if facts["faces"] is None else facts["faces"] - 1,
        aligned=facts["aligned"],
    )


def _answer(facts: Mapping[str, Any]) -> Answer:
    """The answer by the score alone, as it was before an objection."""
    threshold = facts["threshold"]
    by_score = None if threshold is None else facts["score"] >= threshold
    return TypeAdapter(Answer).validate_python({**facts, "accepted": by_score})


def _verification(facts: Mapping[str, Any], photos: Sequence[Photo]) -> Verification:
    names = [photo_name(each, number) for number, each in enumerate(photos, start=1)]
    # Faces of somebody enrolled have the names that the gallery has for them.
    names += [each["photo"] for each in facts["photos"][len(names) :]]
    found, *person = (_face(each, name) for each, name in zip(facts["photos"], names, strict=True))
    return Verification(
        _answer(facts),
        tuple(facts["scores"]),
        found,
        tuple(person),
        facts["model"],
        facts["person"],
        TypeAdapter(Objection | None).validate_python(facts["objection"]),
    )


def _gate_in_words(gate: Gate) -> tuple[list[str], list[str]]:
    """The checks that are switched off, and the limits of the others, as `Gate.of` takes them."""
    limits = {each.name: getattr(gate, each.name) for each in fields(gate)}
    off = [name for name, limit in limits.items() if limit is None]
    return off, [f"{name}={limit}" for name, limit in limits.items() if limit is not None]
