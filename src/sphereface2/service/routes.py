"""The routes about photos and the model: health, models, detect, embed, verify, calibration."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from sphereface2.evaluation.decision import decide, one_in
from sphereface2.faces.face import CHOICES, prominent
from sphereface2.recognition.photos import FoundFace
from sphereface2.service.bodies import read_body, takes
from sphereface2.service.engine import RequestRecognizer
from sphereface2.service.errors import try_later
from sphereface2.service.service import Service
from sphereface2.service.shapes import (
    CalibrationAnswer,
    DetectAnswer,
    DetectAsked,
    EmbedAnswer,
    EmbedAsked,
    HealthAnswer,
    ModelsAnswer,
    ModelShape,
    SettingsAnswer,
    ThresholdShape,
    VerifyAnswer,
    VerifyAsked,
    face_shape,
)

WithCrops = Annotated[bool, Query(description="with the aligned faces as PNG in base64")]


def about_photos(routes: APIRouter, service: Service) -> None:
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
        return service.settings_answer()

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
        """Whether a photo shows a person, of whom there is one photo or several."""
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


def verify_answer(done: Any, *, crops: bool) -> VerifyAnswer:
    """A verification as JSON, with its faces."""
    faces = [face_shape(face, crops=crops) for face in done.faces]
    return VerifyAnswer.model_validate({**done.to_mapping(), "photos": faces})
