"""The web application: routes about photos and the model, the page, one form for every error."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

import sphereface2
from sphereface2.evaluation.decision import decide, one_in
from sphereface2.faces.face import CHOICES, prominent
from sphereface2.recognition.photos import FoundFace
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.service.bodies import read_body, takes, wrong_fields
from sphereface2.service.engine import RequestRecognizer
from sphereface2.service.errors import ApiError, try_later
from sphereface2.service.guard import Guard
from sphereface2.service.keys import Key
from sphereface2.service.people import WithCrops, add_people_routes
from sphereface2.service.service import Service
from sphereface2.service.settings import Settings
from sphereface2.service.shapes import (
    CalibrationAnswer,
    DetectAnswer,
    DetectAsked,
    EmbedAnswer,
    EmbedAsked,
    ErrorAnswer,
    HealthAnswer,
    ModelsAnswer,
    ModelShape,
    SettingsAnswer,
    ThresholdShape,
    VerifyAnswer,
    VerifyAsked,
    face_shape,
    verify_answer,
)

PAGE = Path(__file__).parent / "page"
_CODES = {404: "not_found", 405: "method_not_allowed"}
_WORDS = {
    404: "there is nothing at this address; /v1/openapi.json lists what there is",
    405: "this address does not take this method; /v1/openapi.json lists what there is",
}
# One shape for all, given once and then by name: every "model" is analysed for every route.
_NAMED = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": what}
    | ({"content": _NAMED} if status != 400 else {"model": ErrorAnswer})
    for status, what in {
        400: "the form cannot be read",
        401: "no API key, or a wrong one",
        403: "the API key may not do this, or the page may not call",
        404: "there is no such thing",
        405: "not a method of this address",
        408: "the body arrived too slowly",
        409: "it conflicts with what is there",
        413: "the body is too large",
        415: "neither JSON nor a form",
        421: "not a name of this host",
        422: "what is asked for cannot be done; the code says why",
        429: "too many requests; Retry-After says when",
        503: "not now; Retry-After says when",
    }.items()
}


def build_app(
    settings: Settings, keys: tuple[Key, ...] = (), *, recognizer: Recognizer | None = None
) -> ASGIApp:
    """The application of a service; its model is loaded when the server starts, unless given.

    With a model the service starts here, so that what is wrong is an error of this call.
    """
    service = Service(settings, keys)
    if recognizer is not None:
        service.start(recognizer)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        if recognizer is None:
            await asyncio.to_thread(service.start)
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="sphereface2",
        version=sphereface2.__version__,
        description="Are these the same person, who is this, and how sure is that?",
        lifespan=life,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # their pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
        responses=_ERRORS,
    )
    # Into its own router: one that is included is analysed again, by the first request.
    add_photo_routes(app.router, service)
    add_people_routes(app.router, service)
    # Not mounted at "/": that would take the addresses of the API with a wrong method for files.
    app.router.default = _Page(directory=PAGE, html=True)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _wrong_parameters)
    return Guard(app, settings=settings, metrics=service.metrics, with_keys=bool(keys))


class _Page(StaticFiles):
    """The page's files; addresses of the API that are not there are not files either."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if path == "v1" or path.startswith("v1/"):
            raise HTTPException(404)
        answer = await super().get_response(path, scope)
        # Asked about each time, sent again only if changed: files of two versions never mix.
        answer.headers["Cache-Control"] = "no-cache"
        return answer


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    content = error.content(request.state.request_id)
    return JSONResponse(content, error.status, headers=error.headers)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "bad_request")
    words = _WORDS.get(error.status_code, "the request cannot be read")
    refusal = ApiError(error.status_code, code, words, headers=error.headers or {})
    return await _refused(request, refusal)


async def _wrong_parameters(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return await _refused(request, wrong_fields(error.errors()))


# -- the routes about photos and the model --------------------------------------------------------


def add_photo_routes(routes: APIRouter, service: Service) -> None:
    """Add the routes of a service that need no gallery."""
    read = [Depends(service.access.may(write=False))]

    @routes.get("/v1/health")
    async def health() -> HealthAnswer:
        """Alive, and whether it is ready; always 200."""
        return await asyncio.to_thread(service.health)

    @routes.get("/v1/health/ready")
    async def ready() -> HealthAnswer:
        """200 if it is ready, else 503: for load balancers."""
        found = await asyncio.to_thread(service.health)
        if not found.ready:
            raise try_later(503, "not_ready", "; ".join(found.reasons), seconds=1)
        return found

    @routes.get("/metrics", dependencies=read, response_class=Response, include_in_schema=False)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @routes.get("/v1/models", dependencies=read)
    async def models() -> ModelsAnswer:
        """The model that answers; embeddings of another digest cannot be compared with its."""
        recognizer = service.engine.recognizer
        calibration = recognizer.calibration
        model = ModelShape(
            name=recognizer.model.name,
            digest=recognizer.digest,
            dim=recognizer.model.embedding_dim,
            input_size=recognizer.model.preprocessing.input_size,
            flip=recognizer.flip,
            calibrated=calibration is not None,
            calibration_set=None if calibration is None else calibration.set_name,
        )
        return ModelsAnswer(models=[model])

    @routes.get("/v1/settings", dependencies=read)
    async def settings() -> SettingsAnswer:
        """The limits of this service, and what it decides by where a request does not say."""
        own = {"gallery": service.settings.gallery is not None, "keys": bool(service.access.keys)}
        return SettingsAnswer.model_validate({**vars(service.settings), **own})

    @routes.get("/v1/calibration", dependencies=read)
    async def calibration() -> CalibrationAnswer:
        """What scores mean: the histogram of both kinds of pairs, and thresholds."""
        found = service.engine.recognizer.calibration
        if found is None:
            return CalibrationAnswer(calibrated=False)
        usual = decide(0.0, found, false_accepts=service.settings.false_accepts)
        thresholds = [
            ThresholdShape(
                false_accepts=each.target,
                words=f"at most {one_in(each.target)} false accepts",
                threshold=each.threshold,
                true_accepts=each.rate,
            )
            for each in found.thresholds
            if each.resolved and np.isfinite(each.threshold)
        ]
        own = {"calibrated": True, "prior": found.probability.prior, "thresholds": thresholds}
        asked = {"threshold": usual.threshold, "false_accepts": usual.target}
        return CalibrationAnswer.model_validate({**vars(found), **own, **asked})

    @routes.post("/v1/detect", dependencies=read, openapi_extra=takes(DetectAsked))
    async def detect(
        asked: Annotated[DetectAsked, Depends(read_body(DetectAsked))], crops: WithCrops = False
    ) -> DetectAnswer:
        """All faces of a photo, the surest first; there may be none."""

        def work(recognizer: RequestRecognizer) -> DetectAnswer:
            (photo,) = recognizer.photos([asked.photo])
            found = recognizer.finder.find_all(photo)
            service.metrics.faces.inc(len(found))
            return DetectAnswer(
                width=photo.shape[1],
                height=photo.shape[0],
                faces=[face_shape(face, crops=crops) for face in found],
                chosen=_chosen(found, photo.shape, asked.choose),
            )

        return await service.run(work, asked)

    @routes.post("/v1/embed", dependencies=read, openapi_extra=takes(EmbedAsked))
    async def embed(
        asked: Annotated[EmbedAsked, Depends(read_body(EmbedAsked))],
        crops: WithCrops = False,
        encoding: Literal["list", "base64"] = "list",
    ) -> EmbedAnswer:
        """The unit embedding of the face of each photo."""
        service.require_few(asked.photos)

        def work(recognizer: RequestRecognizer) -> EmbedAnswer:
            found = recognizer.find(recognizer.photos(asked.photos))
            rows = recognizer.embed_faces(found)
            plain: Any = rows.tolist()
            if encoding == "base64":
                plain = base64.b64encode(rows.astype("<f4").tobytes()).decode()
            return EmbedAnswer(
                model=recognizer.digest,
                dim=rows.shape[1],
                embeddings=plain,
                photos=[face_shape(face, crops=crops) for face in found],
            )

        return await service.run(work, asked)

    @routes.post("/v1/verify", dependencies=read, openapi_extra=takes(VerifyAsked))
    async def verify(
        asked: Annotated[VerifyAsked, Depends(read_body(VerifyAsked))], crops: WithCrops = False
    ) -> VerifyAnswer:
        """Whether a photo shows the person of another photo, or of several."""
        service.require_few([asked.photo, *asked.person])

        def work(recognizer: RequestRecognizer) -> VerifyAnswer:
            photo, *person = recognizer.photos([asked.photo, *asked.person])
            done = recognizer.verify(
                photo,
                person,
                false_accepts=service.false_accepts(asked.false_accepts),
                prior=asked.prior,
            )
            return verify_answer(done, crops=crops)

        answer = await service.run(work, asked)
        service.metrics.decided("verify", answer.accepted)
        return answer


def _chosen(found: Sequence[FoundFace], shape: tuple[int, ...], choose: str) -> int | None:
    """The number of the face that a request about one person would take."""
    faces = [each.face for each in found if each.face is not None]
    if not faces:
        return 0 if found else None
    best = CHOICES.get(choose, prominent)(faces, shape[1], shape[0])
    return next(number for number, face in enumerate(faces) if face is best)
