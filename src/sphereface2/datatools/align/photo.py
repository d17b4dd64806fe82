"""One photo to one aligned crop: what each worker process of an alignment does."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2

from sphereface2.data.sources.image_file import read_file, to_pixels
from sphereface2.datatools.align.journal import WORK_FOLDER, Outcome
from sphereface2.faces import CHOICES, DETECTORS, Detector, align_face, find_faces
from sphereface2.files import printable, write_atomically
from sphereface2.registry import build, look_up

Task = tuple[str, str]
"""A photo below the source, and the name of its crop below the target."""

ENCODINGS: dict[str, list[int]] = {"jpg": [cv2.IMWRITE_JPEG_QUALITY, 95], "png": []}


@dataclass(frozen=True)
class PhotoAligner:
    """Finds the face in a photo and writes its crop; a process builds its detector once."""

    source: Path
    target: Path
    detector: str = "mtcnn"
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 112
    choose: str = "prominent"
    image_format: str = "jpg"

    def build_detector(self) -> Detector:
        """The detector, or a sentence about what it lacks."""
        return build("detector", DETECTORS, self.detector, **self.options)

    @cached_property
    def _detector(self) -> Detector:
        return self.build_detector()

    def __call__(self, task: Task) -> Outcome:
        """What becomes of a photo; an OSError if its crop cannot be written."""
        photo, crop = task
        detector = self._detector
        try:
            image = to_pixels(read_file(self.source / photo))
            faces, look = find_faces(detector, image, min_face=self.options.get("min_face"))
            if not faces:
                return Outcome(photo)
            height, width = image.shape[:2]
            face = look_up("choice", CHOICES, self.choose)(faces, width, height)
            aligned = align_face(image, face.landmarks, size=self.size)
        except (ValueError, OSError, MemoryError, cv2.error) as error:
            # One photo of a million must not end the work; it is reported with the others.
            return Outcome(photo, reason=" ".join(str(error).split()) or type(error).__name__)
        bgr = cv2.cvtColor(aligned, cv2.COLOR_RGB2BGR)
        _, encoded = cv2.imencode(f".{self.image_format}", bgr, ENCODINGS[self.image_format])
        place = self.target / crop
        partial = self.target / WORK_FOLDER / f"{os.getpid()}.part"
        try:
            write_atomically(place, encoded.tobytes(), by=partial)
        except OSError as error:
            raise OSError(error.errno, error.strerror, printable(place)) from None
        return Outcome(photo, crop, tuple(faces), taken=faces.index(face), look=look)
