"""Faces: find them in a photo and bring them into place. One line in `DETECTORS` adds a detector.

Everything here works on arrays; reading and writing photos is the business of `data`.
"""

from collections.abc import Callable

from sphereface2.faces.detectors import MTCNN, YuNet
from sphereface2.faces.face import Detector

DETECTORS: dict[str, Callable[..., Detector]] = {"mtcnn": MTCNN, "yunet": YuNet}
