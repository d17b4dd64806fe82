"""Rendered people as aligned crops, two models, and a calibration that fits the first."""

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2 import Recognizer, build_backbone
from sphereface2.data.transforms import Preprocessing
from sphereface2.evaluation.calibration import calibrate
from sphereface2.evaluation.pair_scores import PairScores
from sphereface2.models.folder import save_model, store_calibration, weights_digest

Picture = NDArray[np.uint8]
OPTIONS = {"width": 8, "input_size": 48, "embedding_dim": 64}


def scored(impostor: float = 0.65, genuine: float = 0.97) -> PairScores:
    """Scores as the random network here gives them: of two faces, and of one face in two lights."""
    generator = np.random.default_rng(0)
    scores = np.concatenate(
        [genuine + 0.01 * generator.normal(size=500), impostor + 0.06 * generator.normal(size=4000)]
    )
    count = len(scores)
    return PairScores(
        name="known",
        scores=np.clip(scores, -1, 1),
        pairs=np.arange(2 * count).reshape(count, 2),
        same=np.arange(count) < 500,
        folds=np.arange(count) % 10,
        sources=np.full(count, "known"),
        positions=np.arange(count),
    )


def in_another_light(face: Picture, number: int) -> Picture:
    """The same face, a little brighter and coarser for each number."""
    brighter = np.clip(face * (1 + 0.04 * number) + 2 * number, 0, 255).astype(np.uint8)
    noise = np.random.default_rng(number).integers(-3, 4, face.shape)
    return np.asarray(np.clip(brighter + noise, 0, 255), np.uint8)


@dataclass(frozen=True)
class Known:
    """Folders: a calibrated model, one that is not, and crops as PERSON/NUMBER.png."""

    model: Path
    plain: Path
    crops: Path

    def photos(self, person: str, *numbers: int) -> list[Path]:
        return [self.crops / person / f"{number}.png" for number in numbers or range(4)]

    def recognizer(self) -> Recognizer:
        return Recognizer(self.model, kind="crop")


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory, rendered: list[Picture]) -> Known:
    place = tmp_path_factory.mktemp("known")
    for name, seed in (("model", 0), ("plain", 1)):
        save_model(
            place / name,
            build_backbone("sfnet4", seed=seed, **OPTIONS),
            name="sfnet4",
            options=OPTIONS,
            preprocessing=Preprocessing(input_size=48),
        )
    digest = weights_digest(place / "model")
    store_calibration(place / "model", calibrate(scored(), model=digest, replicates=0).to_mapping())
    for person, face in zip(("Ada", "Ben", "Cem", "Dora"), rendered, strict=False):
        (place / "crops" / person).mkdir(parents=True)
        for number in range(6):
            shown = in_another_light(face, number)
            cv2.imwrite(str(place / "crops" / person / f"{number}.png"), shown[..., ::-1])
    return Known(place / "model", place / "plain", place / "crops")
