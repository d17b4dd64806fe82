"""The web application: routes, the page, and one form for every error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

import sphereface2
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.service.bodies import wrong_fields
from sphereface2.service.errors import ApiError
from sphereface2.service.guard import Guard
from sphereface2.service.keys import Key
from sphereface2.service.people import about_people
from sphereface2.service.routes import about_photos
from sphereface2.service.service import Service
from sphereface2.service.settings import Settings
from sphereface2.service.shapes import ErrorAnswer

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
    about_photos(app.router, service)
    about_people(app.router, service)
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
