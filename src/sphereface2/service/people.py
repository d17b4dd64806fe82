"""The routes about people: collections, enrolment, search, and what is not this person."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from sphereface2.galleries.gallery import BrokenGalleryError, Gallery, Negative, Person, photos_of
from sphereface2.recognition.enrolment import Enrolment
from sphereface2.recognition.gate import Gate
from sphereface2.service.bodies import read_body, takes
from sphereface2.service.engine import RequestRecognizer
from sphereface2.service.errors import ApiError, refusing
from sphereface2.service.guard import SLASH
from sphereface2.service.service import Service
from sphereface2.service.shapes import (
    DEFAULT,
    Asked,
    CollectionAnswer,
    CollectionsAnswer,
    DroppedAnswer,
    EnrolAnswer,
    EnrolAsked,
    FeedbackAnswer,
    FeedbackAsked,
    FeedbackListAnswer,
    IdentifyAnswer,
    IdentifyAsked,
    PeopleAnswer,
    PersonAnswer,
    PersonAsked,
    RemovedAnswer,
    VerifyAnswer,
    VerifyPersonAsked,
    face_shape,
    verify_answer,
)

Collection = Annotated[
    str,
    # Said in the OpenAPI alone: the gallery's own sentence about a wrong name says more.
    Path(max_length=200, json_schema_extra={"pattern": "^[a-z0-9][a-z0-9_-]{0,39}$"}),
]
WithCrops = Annotated[bool, Query(description="with the aligned faces as PNG in base64")]
InQuery = Annotated[str, Query(max_length=200)]
Id = Annotated[str, Path(max_length=200)]
Name = Annotated[
    str,
    Path(max_length=10_000, description="a slash in it is written %2F"),
    AfterValidator(lambda name: name.replace(SLASH, "/")),
]
T = TypeVar("T")


async def idempotency_key(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(description="a repeated request with this key changes nothing more"),
    ] = None,
) -> str | None:
    """The key of a write, one for each caller."""
    if idempotency_key is None:
        return None
    if not re.fullmatch(r"[\x21-\x7e]{1,200}", idempotency_key):
        raise ApiError(
            422, "invalid", "an Idempotency-Key has 1 to 200 visible ASCII characters, no blanks"
        )
    caller = getattr(request.state, "caller", "")
    return f"{caller} {idempotency_key}"


Key = Annotated[str | None, Depends(idempotency_key)]


def add_people_routes(routes: APIRouter, service: Service) -> None:
    """Add the routes of a service that keeps people."""
    read = [Depends(service.access.may(write=False))]
    write = [Depends(service.access.may(write=True))]

    async def use(
        collection: str,
        work: Callable[[RequestRecognizer, Gallery], T],
        asked: Asked | None = None,
    ) -> T:
        def request(recognizer: RequestRecognizer) -> T:
            return service.collections.use(collection, lambda gallery: work(recognizer, gallery))

        return await service.run(request, asked)

    @routes.get("/v1/collections", dependencies=read)
    async def collections() -> CollectionsAnswer:
        """The names of all collections."""
        names = await service.run(lambda _: service.collections.names())
        return CollectionsAnswer(collections=names)

    @routes.get("/v1/collections/{collection}", dependencies=read)
    async def collection(collection: Collection) -> CollectionAnswer:
        """How many people and photos a collection holds."""
        return await use(collection, _size)

    @routes.put(
        "/v1/collections/{collection}",
        dependencies=write,
        responses={201: {"model": CollectionAnswer, "description": "it is new"}},
    )
    async def create(collection: Collection, response: Response) -> CollectionAnswer:
        """Make a collection: 201 if it is new, 200 if it is there."""
        new = await service.run(lambda _: service.collections.create(collection))
        response.status_code = 201 if new else 200
        return await use(collection, _size)

    @routes.delete("/v1/collections/{collection}", dependencies=write)
    async def drop(collection: Collection) -> DroppedAnswer:
        """Remove a collection with everybody in it; the default one is made again, empty."""
        there = await service.run(lambda _: service.collections.drop(collection))
        return DroppedAnswer(collection=collection, dropped=there)

    @routes.get("/v1/collections/{collection}/people", dependencies=read)
    async def people(
        collection: Collection,
        search: Annotated[str, Query(max_length=200, description="a part of the name")] = "",
        after: Annotated[str, Query(max_length=10_000, description="names after this one")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> PeopleAnswer:
        """Everybody, by name, some at a time."""

        def work(_: RequestRecognizer, gallery: Gallery) -> PeopleAnswer:
            part = search.casefold()
            found = [each for each in gallery.people() if part in each.name.casefold()]
            rest = [each for each in found if each.name > after] if after else found
            shown = rest[:limit]
            return PeopleAnswer(
                people=shown, total=len(found), next=shown[-1].name if len(rest) > limit else None
            )

        return await use(collection, work)

    @routes.post(
        "/v1/collections/{collection}/people",
        dependencies=write,
        status_code=201,
        openapi_extra=takes(EnrolAsked),
    )
    async def enrol(
        collection: Collection,
        asked: Annotated[EnrolAsked, Depends(read_body(EnrolAsked))],
        key: Key,
    ) -> EnrolAnswer:
        """Add photos to a person, who is made if new; photos that the gate refuses have reasons.

        422 `not_enrolled` if it refuses all of them; `details` then holds the reasons.
        """
        service.require_few(asked.photos)
        with refusing(422, "invalid"):
            gate = Gate.of(allow=asked.allow, limits=asked.limits)

        def work(recognizer: RequestRecognizer, gallery: Gallery) -> EnrolAnswer:
            photos = recognizer.photos(asked.photos)
            done = recognizer.enroll(
                asked.name,
                photos,
                gallery,
                gate=gate,
                metadata=asked.metadata or None,
                key=key,
            )
            if key is not None:
                _require_theirs(gallery, done)
            answer = EnrolAnswer.model_validate({**done.to_mapping(), "words": done.sentences()})
            if not any(each.accepted for each in done.photos):
                raise ApiError(
                    422, "not_enrolled", done.sentences()[0], details=answer.model_dump()
                )
            return answer

        answer = await use(collection, work, asked)
        service.metrics.decisions.labels("enrol", "enrolled").inc(answer.added)
        return answer

    @routes.get("/v1/collections/{collection}/people/{person}", dependencies=read)
    async def show(collection: Collection, person: Name) -> PersonAnswer:
        """A person with all photos."""
        return await use(collection, lambda _, gallery: _person(gallery, person))

    @routes.patch(
        "/v1/collections/{collection}/people/{person}",
        dependencies=write,
        openapi_extra=takes(PersonAsked),
    )
    async def change(
        collection: Collection,
        person: Name,
        asked: Annotated[PersonAsked, Depends(read_body(PersonAsked))],
        key: Key,
    ) -> PersonAnswer:
        """Give a person another name, other metadata, or both."""

        def work(_: RequestRecognizer, gallery: Gallery) -> PersonAnswer:
            with_key = (lambda what: None) if key is None else (lambda what: f"{key} {what}")
            with _changing(gallery, person):
                if asked.metadata is not None:
                    gallery.describe(person, asked.metadata, key=with_key("describe"))
                if asked.name is not None:
                    gallery.rename(person, asked.name, key=with_key("rename"))
            return _person(gallery, person if asked.name is None else asked.name)

        return await use(collection, work)

    @routes.delete("/v1/collections/{collection}/people/{person}", dependencies=write)
    async def remove(collection: Collection, person: Name, key: Key) -> RemovedAnswer:
        """Remove a person with all photos; no byte of them stays."""

        def work(_: RequestRecognizer, gallery: Gallery) -> RemovedAnswer:
            with _changing(gallery, person):
                return RemovedAnswer(photos=gallery.remove(person, key=key))

        return await use(collection, work)

    @routes.post(
        "/v1/collections/{collection}/people/{person}/verify",
        dependencies=read,
        openapi_extra=takes(VerifyPersonAsked),
    )
    async def verify(
        collection: Collection,
        person: Name,
        asked: Annotated[VerifyPersonAsked, Depends(read_body(VerifyPersonAsked))],
        crops: WithCrops = False,
    ) -> VerifyAnswer:
        """Whether a photo shows somebody who is enrolled, by all of their photos."""

        def work(recognizer: RequestRecognizer, gallery: Gallery) -> VerifyAnswer:
            _known(gallery, person)
            (photo,) = recognizer.photos([asked.photo])
            done = recognizer.verify_person(
                photo,
                gallery,
                person,
                false_accepts=service.false_accepts(asked.false_accepts),
                prior=asked.prior,
            )
            return verify_answer(done, crops=crops)

        answer = await use(collection, work, asked)
        service.metrics.decided("verify", answer.accepted)
        return answer

    @routes.get(
        "/v1/collections/{collection}/photos/{photo}/crop",
        dependencies=read,
        response_class=Response,
        responses={200: {"content": {"image/png": {}}}},
    )
    async def crop(collection: Collection, photo: Id) -> Response:
        """The aligned face of a photo that is enrolled, as PNG."""

        def work(_: RequestRecognizer, gallery: Gallery) -> bytes:
            with refusing(404, "unknown_photo"):
                return gallery.crop(photo)

        found = await use(collection, work)
        if not found:
            raise ApiError(404, "no_crop", "no picture of this photo was kept")
        return Response(found, media_type="image/png")

    @routes.delete("/v1/collections/{collection}/photos/{photo}", dependencies=write)
    async def remove_photo(collection: Collection, photo: Id, key: Key) -> RemovedAnswer:
        """Remove one photo; a person whose last photo it is stays, without any."""

        def work(_: RequestRecognizer, gallery: Gallery) -> RemovedAnswer:
            with refusing(404, "unknown_photo"):
                return RemovedAnswer(photos=gallery.remove_photos([photo], key=key))

        return await use(collection, work)

    @routes.post("/v1/identify", dependencies=read, openapi_extra=takes(IdentifyAsked))
    async def identify(
        asked: Annotated[IdentifyAsked, Depends(read_body(IdentifyAsked))], crops: WithCrops = False
    ) -> IdentifyAnswer:
        """Who of a collection a photo shows, with the false alarms of a gallery of its size."""

        def work(recognizer: RequestRecognizer, gallery: Gallery) -> IdentifyAnswer:
            if gallery.count()[1] == 0:
                raise ApiError(409, "nobody_enrolled", "there is nobody in this collection yet")
            (photo,) = recognizer.photos([asked.photo])
            wanted = asked.false_accepts
            if asked.false_alarms is None:
                wanted = service.false_accepts(wanted)
            done = recognizer.identify(
                photo,
                gallery,
                false_alarms=asked.false_alarms,
                false_accepts=wanted,
                people=asked.people,
                prior=asked.prior,
            )
            face = face_shape(done.photo, crops=crops)
            return IdentifyAnswer.model_validate({**done.to_mapping(), "photo": face})

        answer = await use(asked.collection, work, asked)
        first = answer.candidates[0].accepted
        service.metrics.decided("identify", first if answer.person is None else True)
        return answer

    @routes.post(
        "/v1/feedback", dependencies=write, status_code=201, openapi_extra=takes(FeedbackAsked)
    )
    async def feedback(
        asked: Annotated[FeedbackAsked, Depends(read_body(FeedbackAsked))], key: Key
    ) -> FeedbackAnswer:
        """Keep a face as not this person, or without `person` as a stranger to all."""

        def work(recognizer: RequestRecognizer, gallery: Gallery) -> FeedbackAnswer:
            if asked.person is not None:
                _known(gallery, asked.person)
            (photo,) = recognizer.photos([asked.photo])
            kept = recognizer.reject(photo, asked.person, gallery, key=key)
            return _feedback(gallery, kept)

        return await use(asked.collection, work, asked)

    @routes.get("/v1/feedback", dependencies=read)
    async def all_feedback(
        collection: InQuery = DEFAULT,
        person: Annotated[str | None, Query(max_length=10_000)] = None,
    ) -> FeedbackListAnswer:
        """The faces that are not this person, or without `person` the strangers."""

        def work(_: RequestRecognizer, gallery: Gallery) -> FeedbackListAnswer:
            if person is not None:
                _known(gallery, person)
            found = [_feedback(gallery, each) for each in gallery.negatives(person)]
            return FeedbackListAnswer(feedback=found)

        return await use(collection, work)

    @routes.delete("/v1/feedback/{feedback}", dependencies=write)
    async def undo(feedback: Id, key: Key, collection: InQuery = DEFAULT) -> DroppedAnswer:
        """Forget a face that was marked."""

        def work(_: RequestRecognizer, gallery: Gallery) -> DroppedAnswer:
            with refusing(404, "unknown_feedback"):
                gallery.remove_negative(feedback, key=key)
            return DroppedAnswer(collection=gallery.name, dropped=True)

        return await use(collection, work)


def _size(_: RequestRecognizer, gallery: Gallery) -> CollectionAnswer:
    people, photos = gallery.count()
    return CollectionAnswer(
        collection=gallery.name, people=people, photos=photos, model=gallery.model
    )


def _known(gallery: Gallery, name: str) -> Person:
    with refusing(404, "unknown_person"):
        return gallery.person(name)


def _feedback(gallery: Gallery, kept: Negative) -> FeedbackAnswer:
    return FeedbackAnswer(id=kept.id, collection=gallery.name, person=kept.person, added=kept.added)


@contextmanager
def _changing(gallery: Gallery, name: str) -> Iterator[None]:
    """Say why a person could not be changed: there is no such person, or another reason."""
    try:
        yield
    except BrokenGalleryError:
        raise
    except ValueError as error:
        _known(gallery, name)
        taken = "already called" in str(error)
        raise ApiError(
            409 if taken else 422, "name_taken" if taken else "invalid", str(error)
        ) from None


def _person(gallery: Gallery, name: str) -> PersonAnswer:
    person = _known(gallery, name)
    return PersonAnswer.model_validate({**vars(person), "photos": gallery.photos(person.name)})


def _require_theirs(gallery: Gallery, done: Enrolment) -> None:
    """Refuse a key that was used for other photos: their ids are not this person's."""
    ids = {each.id for each in done.photos if each.id is not None}
    if not ids <= {each.id for each in photos_of(gallery, done.person)}:
        raise ApiError(
            409, "key_reused", "this Idempotency-Key was used for another request before"
        )
