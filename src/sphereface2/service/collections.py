"""The collections of people that a service keeps: opened once, shared by all requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sphereface2.galleries import drop_collection, list_collections
from sphereface2.galleries.gallery import Gallery, check_collection
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.service.errors import ApiError, refusing, try_later
from sphereface2.service.logs import LOGGER
from sphereface2.service.shapes import DEFAULT

_FRESH = 1.0  # seconds for which a collection that was there is believed to be there
_BROKEN = ("open it again", "is damaged", "is closed", "try again", "refuses it")

T = TypeVar("T")


class Collections:
    """The collections at one address; without an address there are none."""

    def __init__(self, url: str | None, recognizer: Recognizer) -> None:
        self._url, self._recognizer = url, recognizer
        self._open: dict[str, Gallery] = {}
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()
        self._checked = -_FRESH
        self._wrong: str | None = None
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
        with refusing(422, "invalid"):
            check_collection(name)
        new = name not in self.names()
        self._gallery(name, create=True)
        return new

    def drop(self, name: str) -> bool:
        """Remove a collection with everybody in it; whether there was one."""
        with refusing(422, "invalid"):
            check_collection(name)
        url = self.url
        try:
            drop_collection(url, name)
        except FileNotFoundError:
            return False
        finally:
            # After it is gone, for requests may open it until then.
            with self._lock:
                self._forget(name)
        if name == DEFAULT:
            self._gallery(name, create=True)
        return True

    def use(self, name: str, work: Callable[[Gallery], T]) -> T:
        """Work with a collection; one that another process has replaced is opened again."""
        _ = self.url
        with refusing(422, "invalid"):
            check_collection(name)
        try:
            return work(self._gallery(name))
        except (ValueError, OSError) as error:
            if not _is_broken(error):
                raise
            LOGGER.warning("gallery opened again", exc_info=error)
        with self._lock:
            self._forget(name)
        try:
            return work(self._gallery(name))
        except (ValueError, OSError) as error:
            raise unavailable(error) if _is_broken(error) else error from None

    def check(self) -> str | None:
        """Why the collections cannot be used; None if they can. Found out once in a while."""
        if self._url is None:
            return None
        now = time.monotonic()
        if now > self._checked + _FRESH:
            self._checked, self._wrong = now, None
            try:
                list_collections(self._url)
            except (ValueError, OSError):
                self._wrong = "the gallery cannot be reached"
        return self._wrong

    def close(self) -> None:
        with self._lock:
            for gallery in self._open.values():
                gallery.close()
            self._open.clear()

    def _gallery(self, name: str, *, create: bool = False) -> Gallery:
        with self._lock:
            old = time.monotonic() > self._seen.get(name, 0.0) + _FRESH
            if old and not create and name not in list_collections(self.url):
                self._forget(name)
                raise _unknown(name)
            if name not in self._open:
                try:
                    self._open[name] = self._recognizer.open_gallery(
                        self.url, collection=name, create=create
                    )
                except FileNotFoundError:
                    raise _unknown(name) from None
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


def _unknown(name: str) -> ApiError:
    return ApiError(404, "unknown_collection", f"there is no collection '{name}'")


def _is_broken(error: ValueError | OSError) -> bool:
    """Whether it is the gallery that fails, and not what was asked of it."""
    return isinstance(error, OSError) or any(words in str(error) for words in _BROKEN)


def unavailable(error: Exception) -> ApiError:
    """The gallery fails; its own words, which may name its place, are for the log alone."""
    LOGGER.error("gallery unavailable", exc_info=error)
    return try_later(503, "gallery_unavailable", "the gallery cannot be used now", seconds=5)
