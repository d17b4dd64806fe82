"""One service: its engine, its callers, its limits, and how a recognizer's errors are answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import sphereface2
from sphereface2.data.sources.image_file import TooManyPixelsError
from sphereface2.evaluation.decision import decide
from sphereface2.recognition.photos import NoFaceError, SeveralFacesError
from sphereface2.recognition.recognizer import Recognizer
from sphereface2.service.collections import Collections, unavailable
from sphereface2.service.engine import Engine, RequestRecognizer
from sphereface2.service.errors import ApiError, BusyError, DeadlineError, try_later
from sphereface2.service.keys import Access, Key, RateLimit
from sphereface2.service.metrics import Metrics
from sphereface2.service.settings import Settings
from sphereface2.service.shapes import DEFAULT, Asked, HealthAnswer, SettingsAnswer

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

    def settings_answer(self) -> SettingsAnswer:
        own = {"gallery": self.settings.gallery is not None, "keys": bool(self.access.keys)}
        return SettingsAnswer.model_validate({**vars(self.settings), **own})

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
        except ValueError as error:
            raise _refusal(error) from None
        except OSError as error:  # photos come in memory: only the gallery has files and hosts
            raise unavailable(error) from None


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
    code = "invalid"
    if isinstance(error, SeveralFacesError):
        code = "several_faces"
    elif isinstance(error, TooManyPixelsError):
        code = "too_many_pixels"
    elif said.startswith("cannot decode the image"):
        code = "unreadable_photo"
    return ApiError(422, code, said)
