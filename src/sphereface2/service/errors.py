"""Errors as callers see them: a status, a code for programs, a sentence for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sphereface2.data.sources.image_file import TooManyPixelsError
from sphereface2.galleries.gallery import BrokenGalleryError
from sphereface2.recognition.photos import NoFaceError, SeveralFacesError

CODES: dict[str, type[ValueError]] = {
    "no_face": NoFaceError,
    "several_faces": SeveralFacesError,
    "too_many_pixels": TooManyPixelsError,
}
"""What a recognizer refuses a photo with, by its code: clients raise it again."""


class ApiError(Exception):
    """What a request is refused with.

    code: what went wrong, stable between versions
    details: more of it, as plain JSON values
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = dict(details or {})
        self.headers = dict(headers or {})

    def content(self, request_id: str) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message, "details": self.details}
        return {"error": error, "request_id": request_id}


def try_later(status: int, code: str, message: str, *, seconds: float) -> ApiError:
    """Nothing was done; the same request may succeed after so many seconds."""
    after = str(max(1, math.ceil(seconds)))
    return ApiError(status, code, message, headers={"Retry-After": after})


@contextmanager
def refusing(status: int, code: str) -> Iterator[None]:
    """A ValueError of the block is an error of this kind, in its own words."""
    try:
        yield
    except BrokenGalleryError:
        raise  # what was asked for may be there
    except ValueError as error:
        raise ApiError(status, code, str(error)) from None


class DeadlineError(Exception):
    """A request has waited too long; what it asked for was not done."""


class BusyError(Exception):
    """Too many wait already; seconds: how long until there is probably room."""

    def __init__(self, seconds: float) -> None:
        super().__init__("too many requests wait already")
        self.seconds = seconds
