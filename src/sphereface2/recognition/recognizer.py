"""A model that answers about photos: their embeddings, and whether they show one person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.decision import Answer, decide
from sphereface2.faces.face import TEMPLATE_SIZE
from sphereface2.models.folder import find_model, load_model, stored_calibration, weights_digest
from sphereface2.recognition.photos import FaceFinder, FoundFace, Kind, Photo


@dataclass(frozen=True, eq=False)
class Verification:
    """Whether a photo shows the person of one photo or several.

    answer: for `score`, the mean of `scores`, the cosines of the photo with each of the person's
    """

    answer: Answer
    scores: tuple[float, ...]
    photo: FoundFace
    person: tuple[FoundFace, ...]
    model: str

    @property
    def faces(self) -> tuple[FoundFace, ...]:
        return (self.photo, *self.person)

    def sentences(self) -> list[str]:
        """The answer in words, and how it came about where that is not plain."""
        said = self.answer.sentences()
        if len(self.scores) > 1:
            each = ", ".join(f"{score:.3f}".replace("-", "−") for score in self.scores)
            said.append(f"the score is the mean over the person's photos: {each}")
        return said + [note for face in self.faces for note in face.notes()]

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values; the pictures are left out."""
        return {
            **self.answer.to_mapping(),
            "scores": list(self.scores),
            "words": self.sentences(),
            "photos": [face.to_mapping() for face in self.faces],
            "model": self.model,
        }


class Recognizer:
    """The model of a run or model folder, ready for photos; torch is needed only for torch models.

        recognizer = Recognizer("runs/own-faces")
        answer = recognizer.verify("a.jpg", "b.jpg").answer
        print(answer.accepted, answer.probability, answer.false_accepts)

    kind, choose, detector: how the face of a photo is found (`recognition.photos.FaceFinder`)
    flip: whether the mirror image's embedding is added; by default as the folder says
    """

    def __init__(
        self,
        path: Path | str,
        *,
        kind: Kind = "auto",
        choose: str = "prominent",
        detector: str = "mtcnn",
        flip: bool | None = None,
    ) -> None:
        self.folder = find_model(path)
        self.model = load_model(self.folder)
        self.flip = self.model.flip if flip is None else flip
        size = max(TEMPLATE_SIZE, self.model.preprocessing.input_size)
        self.finder = FaceFinder(kind, choose, detector, size)

    @cached_property
    def digest(self) -> str:
        """Stands for the network: embeddings of another digest cannot be compared with these."""
        return weights_digest(self.folder)

    @cached_property
    def calibration(self) -> Calibration | None:
        """What `sphereface2 calibrate` has stored; None if nothing."""
        stored = stored_calibration(self.folder)
        if stored is None:
            return None
        calibration = Calibration.from_mapping(stored)
        calibration.require_model(self.digest, flip=self.flip)
        return calibration

    def find(self, photos: Sequence[Photo]) -> list[FoundFace]:
        """The face of each photo; a ValueError or FileNotFoundError for one that has none."""
        if isinstance(photos, str | Path):
            raise ValueError(f"photos must be a list; give a single one as ['{photos}']")
        return [self.finder.find(photo, number=n) for n, photo in enumerate(photos, start=1)]

    def embed(self, photos: Sequence[Photo]) -> NDArray[np.float32]:
        """Unit embeddings (N, D) of N photos: paths, uint8 RGB arrays or pictures of Pillow.

        The cosine of two photos is the product of their rows: `embeddings @ embeddings.T`.
        """
        return self.embed_faces(self.find(photos))

    def embed_faces(self, faces: Sequence[FoundFace]) -> NDArray[np.float32]:
        """Unit embeddings (N, D) of faces that were found."""
        return self.model.embed([face.crop for face in faces], flip=self.flip)

    def verify(
        self,
        photo: Photo,
        person: Photo | Sequence[Photo],
        *,
        false_accepts: float | None = None,
        prior: float | None = None,
    ) -> Verification:
        """Whether a photo shows a person, of whom there is one photo or a list of several.

        false_accepts: the share of pairs of different people that may be accepted; 0.001 if not
            given
        prior: how many of the pairs that you compare are one person; the calibration's own if not
            given

        Of several photos the score is the mean of the cosines. It scatters less than that of one
        pair, so the false accepts that the calibration states for one pair are at least those.
        """
        known = list(person) if isinstance(person, list | tuple) else [person]
        if not known:
            raise ValueError("there is no photo of the person to compare with")
        found = self.find([photo, *known])
        embeddings = self.embed_faces(found)
        scores = np.clip(embeddings[1:] @ embeddings[0], -1.0, 1.0)
        answer = decide(
            float(scores.mean()), self.calibration, false_accepts=false_accepts, prior=prior
        )
        each = tuple(float(score) for score in scores)
        return Verification(answer, each, found[0], tuple(found[1:]), self.digest)
