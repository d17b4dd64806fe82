"""The collections of people that a service keeps: opened once, shared by all requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sphereface2.galleries.gallery import Gallery, check_collection
from sphereface2.galleries.opening import drop_collection, list_collections
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.service.errors import ApiError, try_later
from sphereface2.service.logs import LOGGER
from sphereface2.service.shapes import DEFAULT

_FRESH = 1.0  # seconds for which a collection that was there is believed to be there
_REOPEN = ("open it again", "is damaged", "is closed")

T = TypeVar("T")


class Collections:
    """The collections at one address; without an address there are none."""

    def __init__(self, url: str | None, recognizer: Recognizer) -> None:
        self._url, self._recognizer = url, recognizer
        self._open: dict[str, Gallery] = {}
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()
        if url is not None:
            self._gallery(DEFAULT, create=True)

    @property
    def url(self) -> str:
        if self._url is None:
            raise ApiError(
                409, "no_gallery", "this service keeps no people; start it with --gallery FOLDER"
            )
        return self._url

    def names(self) -> list[str]:
        return list_collections(self.url)

    def create(self, name: str) -> bool:
        """Whether it is new."""
        _check(name)
        new = name not in self.names()
        self._gallery(name, create=True)
        return new

    def drop(self, name: str) -> bool:
        """Remove a collection with everybody in it; whether there was one."""
        _check(name)
        url = self.url
        with self._lock:
            self._forget(name)
        try:
            drop_collection(url, name)
        except FileNotFoundError:
            return False
        if name == DEFAULT:
            self._gallery(name, create=True)
        return True

    def use(self, name: str, work: Callable[[Gallery], T]) -> T:
        """Work with a collection; one that another process has replaced is opened again."""
        _ = self.url
        _check(name)
        gallery = self._gallery(name)
        try:
            return work(gallery)
        except (ValueError, OSError) as error:
            if not any(words in str(error) for words in _REOPEN) and not isinstance(error, OSError):
                raise
            LOGGER.warning("gallery reopened", exc_info=error)
        with self._lock:
            self._forget(name)
        gallery = self._gallery(name)
        try:
            return work(gallery)
        except OSError as error:
            raise _unavailable(error) from None

    def check(self) -> str | None:
        """Why the collections cannot be used; None if they can."""
        if self._url is None:
            return None
        try:
            list_collections(self._url)
        except (ValueError, OSError):
            return "the gallery cannot be reached"
        return None

    def close(self) -> None:
        with self._lock:
            for gallery in self._open.values():
                gallery.close()
            self._open.clear()

    def _gallery(self, name: str, *, create: bool = False) -> Gallery:
        with self._lock:
            if not create and time.monotonic() > self._seen.get(name, 0.0) + _FRESH:
                try:
                    there = name in list_collections(self.url)
                except OSError as error:
                    raise _unavailable(error) from None
                if not there:
                    self._forget(name)
                    raise ApiError(404, "unknown_collection", f"there is no collection '{name}'")
            if name not in self._open:
                try:
                    self._open[name] = self._recognizer.open_gallery(
                        self.url, collection=name, create=create
                    )
                except FileNotFoundError:
                    message = f"there is no collection '{name}'"
                    raise ApiError(404, "unknown_collection", message) from None
                except OSError as error:
                    raise _unavailable(error) from None
                except ValueError as error:
                    if "another model" not in str(error):
                        raise
                    raise ApiError(
                        409,
                        "other_model",
                        f"the collection '{name}' holds embeddings of another model",
                    ) from None
            self._seen[name] = time.monotonic()
            return self._open[name]

    def _forget(self, name: str) -> None:
        # Not closed: another request may be at work with it.
        self._open.pop(name, None)
        self._seen.pop(name, None)


def _check(name: str) -> None:
    try:
        check_collection(name)
    except ValueError as error:
        raise ApiError(422, "invalid", str(error)) from None


def _unavailable(error: OSError) -> ApiError:
    LOGGER.error("gallery unavailable", exc_info=error)
    return try_later(503, "gallery_unavailable", "the gallery cannot be used now", seconds=5)
