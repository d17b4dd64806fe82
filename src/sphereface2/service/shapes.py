"""The JSON of the service: what requests hold and what answers say."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from sphereface2.data.sources.image_file import encode
from sphereface2.evaluation.decision import share_in_words
from sphereface2.evaluation.uncertainty import Rate
from sphereface2.evaluation.verification import ScoreHistogram
from sphereface2.galleries.gallery import KeptPhoto, Person
from sphereface2.recognition.answers import Rule
from sphereface2.recognition.gate import Reason
from sphereface2.recognition.photos import FoundFace, Kind
from sphereface2.service.bodies import Picture, Pictures, as_list

Choice = Literal["prominent", "largest", "central", "only"]


DEFAULT = "default"
Words = Annotated[list[str], BeforeValidator(as_list), Field(max_length=20)]


def _share(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return share_in_words(value)
    except ValueError:
        raise ValueError(
            "must be a rate between 0 and 1, such as 1e-4, 0.01% or '1 in 10,000'"
        ) from None


Share = Annotated[
    float,
    BeforeValidator(_share),
    Field(gt=0, lt=1, allow_inf_nan=False),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                {"type": "string", "examples": ["1e-4", "0.01%", "1 in 1,000"]},
            ]
        }
    ),
]
"""A rate between 0 and 1, as a number or in words."""


class Asked(BaseModel):
    """What every request about photos may say."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Kind = Field(
        default="auto",
        description="a photo to find the face in, an aligned crop, or detected for each",
    )
    choose: Choice = Field(
        default="prominent", description="which of several faces; only: they are wrong"
    )


class DetectAsked(Asked):
    photo: Picture


class EmbedAsked(Asked):
    photos: Pictures = Field(min_length=1)


class VerifyAsked(Asked):
    photo: Picture
    person: Pictures = Field(min_length=1, description="one photo of the person, or several")
    false_accepts: Share | None = Field(
        default=None, description="pairs of different people that may be accepted"
    )
    prior: Share | None = Field(
        default=None, description="the share of compared pairs that are one person"
    )


class VerifyPersonAsked(Asked):
    photo: Picture
    false_accepts: Share | None = None
    prior: Share | None = None


class IdentifyAsked(Asked):
    photo: Picture
    collection: str = Field(default=DEFAULT, max_length=200)
    people: int = Field(default=3, ge=1, le=100, description="how many candidates to name")
    false_alarms: Share | None = Field(
        default=None, description="searches for a stranger that may find somebody"
    )
    false_accepts: Share | None = None
    prior: Share | None = Field(
        default=None, description="the share of those searched for who are enrolled"
    )


class EnrolAsked(Asked):
    name: str = Field(min_length=1, max_length=10_000)
    photos: Pictures = Field(min_length=1)
    metadata: dict[str, Any] = Field(default={}, description="of a new person, your own")
    allow: Words = Field(default=[], description="checks of the gate to leave out, or all")
    limits: Words = Field(default=[], description="limits of its checks, such as blurred=60")


class PersonAsked(BaseModel):
    """A new name, new metadata, or both."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str | None = Field(default=None, min_length=1, max_length=10_000)
    metadata: dict[str, Any] | None = None


class FeedbackAsked(Asked):
    photo: Picture
    collection: str = Field(default=DEFAULT, max_length=200)
    person: str | None = Field(
        default=None, max_length=10_000, description="whom it does not show; null: a stranger"
    )


# Answers.


class FaceShape(BaseModel):
    """A face that was found; box and landmarks in pixels of the photo, points in the crop's."""

    photo: str
    aligned: bool
    faces: int | None
    box: list[float] | None
    landmarks: list[list[float]] | None
    detector_score: float | None
    crop: str | None = Field(default=None, description="PNG in base64, with ?crops=true")
    crop_size: tuple[int, int] = Field(description="width and height")
    points: list[list[float]] | None = None


class DetectAnswer(BaseModel):
    """chosen: the number in `faces`, from 0, of the one that `choose` takes."""

    width: int
    height: int
    faces: list[FaceShape]
    chosen: int | None


class EmbedAnswer(BaseModel):
    """Unit embeddings: as lists, or with ?encoding=base64 as little-endian float32 in a row."""

    model: str
    dim: int
    embeddings: list[list[float]] | str
    photos: list[FaceShape]


class AnswerShape(BaseModel):
    """What a score says; all but it is null where the model is not calibrated."""

    score: float
    probability: float | None
    prior: float | None
    false_accepts: Rate | None
    target: float | None
    threshold: float | None
    accepted: bool | None
    set_name: str | None


class VerifyAnswer(AnswerShape):
    """accepted: also by what was learned from faces that are not this person (objection)."""

    person: str | None = None
    objection: dict[str, Any] | None = None
    scores: list[float]
    words: list[str]
    photos: list[FaceShape]
    model: str


class CandidateShape(AnswerShape):
    """best: the highest cosine; wrong_people: how many score as high in a search on average."""

    person: str
    photos: int
    best: float
    false_alarms: Rate | None
    wrong_people: float | None
    objection: dict[str, Any] | None


class IdentifyAnswer(BaseModel):
    """person: who it is, null: nobody whom the evidence is enough for."""

    person: str | None
    candidates: list[CandidateShape]
    rule: Rule
    words: list[str]
    photo: FaceShape
    gallery: str
    model: str


class CollectionsAnswer(BaseModel):
    collections: list[str]


class CollectionAnswer(BaseModel):
    collection: str
    people: int
    photos: int
    model: str


class DroppedAnswer(BaseModel):
    collection: str
    dropped: bool


class PeopleAnswer(BaseModel):
    """total: of all that were searched for; next: `after` of the next page, null on the last."""

    people: list[Person]
    total: int
    next: str | None


class PersonAnswer(BaseModel):
    name: str
    photos: list[KeptPhoto]
    metadata: dict[str, Any]
    added: str


class EnrolledPhoto(BaseModel):
    """id: null if the gate refused it, with the reasons; again: it was there already."""

    photo: str
    accepted: bool
    again: bool
    id: str | None
    reasons: list[Reason]
    quality: dict[str, Any] | None


class EnrolAnswer(BaseModel):
    person: str
    added: int
    photos: list[EnrolledPhoto]
    notes: list[str]
    words: list[str]
    gallery: str
    model: str


class RemovedAnswer(BaseModel):
    photos: int


class FeedbackAnswer(BaseModel):
    id: str
    collection: str
    person: str | None
    added: str


class FeedbackListAnswer(BaseModel):
    feedback: list[FeedbackAnswer]


class ModelShape(BaseModel):
    name: str
    digest: str
    dim: int
    input_size: int
    flip: bool
    calibrated: bool
    calibration_set: str | None


class ModelsAnswer(BaseModel):
    models: list[ModelShape]


class HealthAnswer(BaseModel):
    """alive: this answer; ready: requests can be worked on, and why not."""

    alive: bool
    ready: bool
    reasons: list[str]
    version: str
    pending: int


class ThresholdShape(BaseModel):
    """threshold: the score that at most `false_accepts` of pairs of different people reach."""

    false_accepts: float
    words: str
    threshold: float
    true_accepts: float


class CalibrationAnswer(BaseModel):
    """What the scores of the model mean; all but `calibrated` is null where nobody knows."""

    calibrated: bool
    set_name: str | None = None
    pairs: int | None = None
    genuine: int | None = None
    impostor: int | None = None
    people: int | None = None
    prior: float | None = None
    threshold: float | None = Field(
        default=None, description="where a request does not say otherwise"
    )
    false_accepts: float | None = Field(
        default=None, description="the target behind that threshold"
    )
    thresholds: list[ThresholdShape] = []
    histogram: ScoreHistogram | None = None


class SettingsAnswer(BaseModel):
    """What a caller has to know of the service's settings.

    gallery: whether people can be enrolled; keys: whether callers need an API key
    false_accepts: the service's own, null: 0.001 or the least that the calibration resolves
    """

    gallery: bool
    keys: bool
    detector: str
    false_accepts: float | None
    max_upload: int
    max_photos: int
    max_pixels: int
    max_faces: int
    max_pending: int
    rate: float
    burst: int
    deadline: float


class ErrorInner(BaseModel):
    code: str
    message: str
    details: dict[str, Any]


class ErrorAnswer(BaseModel):
    error: ErrorInner
    request_id: str


def face_shape(found: FoundFace, *, crops: bool) -> FaceShape:
    """A face as JSON, with its picture if asked for."""
    height, width = found.crop.shape[:2]
    return FaceShape(
        **found.to_mapping(),
        crop=base64.b64encode(encode(found.crop, ".png")).decode() if crops else None,
        crop_size=(width, height),
        points=None if found.points is None else np.round(found.points, 2).tolist(),
    )


def verify_answer(done: Any, *, crops: bool) -> VerifyAnswer:
    """A verification as JSON, with its faces."""
    faces = [face_shape(face, crops=crops) for face in done.faces]
    return VerifyAnswer.model_validate({**done.to_mapping(), "photos": faces})
