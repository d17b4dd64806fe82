"""One service: its engine, callers, limits and collections, and how errors are answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import sphereface2
from sphereface2.data.sources.image_file import UnreadableImageError
from sphereface2.evaluation.decision import decide
from sphereface2.galleries import drop_collection, list_collections
from sphereface2.galleries.gallery import (
    BrokenGalleryError,
    Gallery,
    OtherModelError,
    check_collection,
)
from sphereface2.recognition.photos import NoFaceError
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.service.engine import Engine, RequestRecognizer
from sphereface2.service.errors import (
    CODES,
    ApiError,
    BusyError,
    DeadlineError,
    refusing,
    try_later,
)
from sphereface2.service.keys import Access, Key, RateLimit
from sphereface2.service.settings import Settings
from sphereface2.service.shapes import DEFAULT, Asked, HealthAnswer
from sphereface2.service.telemetry import LOGGER, Metrics

T = TypeVar("T")


class Service:
    """What the routes share. The engine starts with the server and ends with it."""

    def __init__(self, settings: Settings, keys: tuple[Key, ...]) -> None:
        self.settings = settings
        self.metrics = Metrics()
        # Each worker counts for itself, and callers meet them all alike.
        rate = settings.rate / settings.workers
        self.access = Access(keys, RateLimit(rate, max(1, settings.burst // settings.workers)))
        self._engine: Engine | None = None
        self._collections: Collections | None = None
        self._stopping = False

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise try_later(503, "not_ready", "the service is starting", seconds=1)
        return self._engine

    @property
    def collections(self) -> Collections:
        assert self._collections is not None, "they are opened before the engine starts"
        return self._collections

    def start(self, recognizer: Recognizer | None = None) -> None:
        """Load the model, unless it is given, and begin to work."""
        recognizer = recognizer or check_service(self.settings)
        self._collections = Collections(self.settings.gallery, recognizer)
        self._engine = Engine(self.settings, self.metrics, recognizer)

    def stop(self) -> None:
        """Finish what was accepted."""
        self._stopping = True
        if self._engine is not None:
            self._engine.close()
        if self._collections is not None:
            self._collections.close()

    def health(self) -> HealthAnswer:
        reasons = []
        if self._engine is None:
            reasons.append("the service is starting")
        elif not self._engine.batches.alive:
            reasons.append("the network has stopped")
        elif self._engine.pending >= self.settings.max_pending:
            reasons.append("as many requests as it takes are at work")
        if self._collections is not None and (wrong := self._collections.check()):
            reasons.append(wrong)
        if self._stopping:
            reasons.append("the service is stopping")
        return HealthAnswer(
            alive=True,
            ready=not reasons,
            reasons=reasons,
            version=sphereface2.__version__,
            pending=0 if self._engine is None else self._engine.pending,
        )

    def false_accepts(self, asked: float | None) -> float | None:
        """The rate that a request asks for, or the service's own."""
        return self.settings.false_accepts if asked is None else asked

    def require_few(self, photos: Sequence[bytes]) -> None:
        most = self.settings.max_photos
        if len(photos) > most:
            raise ApiError(
                422, "too_many_photos", f"a request has at most {most} photos, not {len(photos)}"
            )

    async def run(self, work: Callable[[RequestRecognizer], T], asked: Asked | None = None) -> T:
        """Do the work of a request; what goes wrong with it is an `ApiError`."""
        asked = asked or Asked()
        try:
            return await self.engine.run(work, kind=asked.kind, choose=asked.choose)
        except BusyError as error:
            raise try_later(
                429, "busy", "as many requests as it takes are at work", seconds=error.seconds
            ) from None
        except DeadlineError:
            raise try_later(
                503,
                "deadline",
                f"there was no answer within {self.settings.deadline:g} s; nothing was done",
                seconds=self.engine.batches.seconds_to_clear(),
            ) from None
        except (OSError, BrokenGalleryError) as error:
            # Photos come in memory: only the gallery has files and hosts.
            raise unavailable(error) from None
        except ValueError as error:
            raise _refusal(error) from None


def check_service(settings: Settings) -> Recognizer:
    """The recognizer of a service; a ValueError or OSError if it could not answer."""
    recognizer = Recognizer(settings.model, detector=settings.detector, flip=settings.flip)
    if settings.false_accepts is not None:
        decide(0.0, recognizer.calibration, false_accepts=settings.false_accepts)
    if settings.gallery is not None:
        recognizer.open_gallery(settings.gallery, collection=DEFAULT, create=True).close()
    return recognizer


def _refusal(error: ValueError) -> ApiError:
    """A recognizer's sentence with its code."""
    said = str(error)
    if isinstance(error, NoFaceError):
        photo = said.partition(";")[0]
        return ApiError(422, "no_face", f"{photo}; if it is an aligned crop, say kind=crop")
    kinds = {**CODES, "unreadable_photo": UnreadableImageError}
    code = next((code for code, kind in kinds.items() if isinstance(error, kind)), "invalid")
    return ApiError(422, code, said)


# -- the collections of people, opened once and shared by all requests ---------------------------

_FRESH = 1.0  # seconds for which a collection that was there is believed to be there


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
            # After it is gone: requests may open it until then.
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
        except (OSError, BrokenGalleryError) as error:  # it is not what was asked that is wrong
            LOGGER.warning("gallery opened again", exc_info=error)
        with self._lock:
            self._forget(name)
        try:
            return work(self._gallery(name))
        except (OSError, BrokenGalleryError) as error:
            raise unavailable(error) from None

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
                except OtherModelError:
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


def unavailable(error: Exception) -> ApiError:
    """The gallery fails; its own words, which may name its place, are for the log alone."""
    LOGGER.error("gallery unavailable", exc_info=error)
    return try_later(503, "gallery_unavailable", "the gallery cannot be used now", seconds=5)
