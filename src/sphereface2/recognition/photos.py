"""From a photo to the aligned crop of its face, whatever the photo comes as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import MAX_PIXELS, MIN_SIDE, read_photo
from sphereface2.faces import DETECTORS
from sphereface2.faces.face import (
    CHOICES,
    TEMPLATE,
    TEMPLATE_SIZE,
    Detector,
    Face,
    align_face,
    find_faces,
    similarity_transform,
)
from sphereface2.files import printable
from sphereface2.registry import build, look_up

ImageArray = NDArray[np.uint8]
Photo = Path | str | ImageArray | Any
"""A path, a uint8 RGB array (height, width, 3), a picture of Pillow, or a face found already."""
Kind = Literal["auto", "photo", "crop"]
KINDS: dict[str, Kind] = {"auto": "auto", "photo": "photo", "crop": "crop"}
ONLY = "only"
"""Instead of a choice among several faces: they are an error."""
_NEAR = 0.05  # of the side: points of an aligned crop lie nearer to the template than that


class NoFaceError(ValueError):
    """There is no face in a photo."""


class SeveralFacesError(ValueError):
    """There are several faces in a photo of which one was to be."""


@dataclass(frozen=True, eq=False)
class FoundFace:
    """The face of a photo, cut out for a network.

    photo: its path, or "photo 2" for the second of those that have none
    crop: uint8 RGB, aligned; points: (5, 2) of the crop's pixels, where a detector looked
    face: where it lies in the photo; others: how many further faces are there
    rival: the area of the largest of them, as a share of this one's
    aligned: whether the photo was taken for an aligned crop, as it is
    """

    photo: str
    crop: ImageArray
    points: NDArray[np.float64] | None = None
    face: Face | None = None
    others: int = 0
    rival: float = 0.0
    aligned: bool = False

    def notes(self) -> list[str]:
        """What a user should know about how the face was found."""
        if self.others:
            faces = f"{self.others + 1} faces"
            return [f"{self.photo} shows {faces}; the most suitable by --choose was taken"]
        return []

    def to_mapping(self) -> dict[str, Any]:
        """As plain JSON values; the picture is left out."""
        face = self.face
        return {
            "photo": self.photo,
            "aligned": self.aligned,
            "faces": None if face is None else self.others + 1,
            "box": None if face is None else [round(each, 1) for each in face.box],
            "landmarks": None if face is None else np.round(face.landmarks, 1).tolist(),
            "detector_score": None if face is None else face.score,
        }


@dataclass(frozen=True)
class FaceFinder:
    """Finds the face of a photo; the detector is built when it is first needed.

    kind: "photo" (its face is looked for), "crop" (it is an aligned face already), or "auto": it
        is a crop if it is square and its five points lie where those of aligned crops do
    choose: which of several faces is taken: one of `CHOICES`, or "only", where several are an error
    size: pixels per side of the crop
    most_faces: a photo with more is an error
    """

    kind: Kind = "auto"
    choose: str = "prominent"
    detector: str = "mtcnn"
    size: int = TEMPLATE_SIZE
    options: dict[str, Any] = field(default_factory=dict)
    most_faces: int = 10_000

    def __post_init__(self) -> None:
        look_up("kind of photo", KINDS, self.kind)
        look_up("choice", {**CHOICES, ONLY: None}, self.choose)
        look_up("detector", DETECTORS, self.detector)

    @cached_property
    def _detector(self) -> Detector:
        return build("detector", DETECTORS, self.detector, **self.options)

    def __getstate__(self) -> dict[str, Any]:
        # A network of OpenCV cannot be pickled: another process builds its own detector.
        return {name: value for name, value in vars(self).items() if name != "_detector"}

    def asking(self, *, kind: Kind, choose: str, detector: Detector) -> FaceFinder:
        """The same finder for other photos, with a detector that is built already."""
        other = replace(self, kind=kind, choose=choose)
        other.__dict__["_detector"] = detector
        return other

    def find(self, photo: Photo, *, number: int = 1) -> FoundFace:
        """The face of a photo; a ValueError or FileNotFoundError says why there is none."""
        if isinstance(photo, FoundFace):
            return photo
        name, image = self._read(photo, number)
        if self.kind == "crop":
            return FoundFace(name, image, aligned=True)
        faces = self._detect(image)
        if not faces:
            raise NoFaceError(
                f"there is no face in {name}; if it is an aligned crop already, give --crops "
                "(kind='crop')"
            )
        height, width = image.shape[:2]
        if self.choose == ONLY and len(faces) > 1:
            raise SeveralFacesError(
                f"{name} shows {len(faces)} faces; cut out the one that is meant, or give --choose "
                "prominent"
            )
        choose = CHOICES["prominent" if self.choose == ONLY else self.choose]
        return self._cut(name, image, choose(faces, width, height), faces)

    def find_all(self, photo: Photo, *, number: int = 1) -> list[FoundFace]:
        """All faces of a photo, the surest first; there may be none."""
        name, image = self._read(photo, number)
        if self.kind == "crop":
            return [FoundFace(name, image, aligned=True)]
        faces = self._detect(image)
        return [self._cut(name, image, face, faces) for face in faces]

    def _read(self, photo: Photo, number: int) -> tuple[str, ImageArray]:
        name = photo_name(photo, number)
        return name, as_array(photo, name)

    def _detect(self, image: ImageArray) -> list[Face]:
        faces, _ = find_faces(self._detector, image, min_face=self.options.get("min_face"))
        if len(faces) > self.most_faces:
            raise SeveralFacesError(
                f"{len(faces):,} faces are in the photo, more than {self.most_faces:,}; cut out "
                "the part that is meant"
            )
        return faces

    def _cut(self, name: str, image: ImageArray, face: Face, faces: Sequence[Face]) -> FoundFace:
        height, width = image.shape[:2]
        others = len(faces) - 1
        rival = max((each.area for each in faces if each is not face), default=0.0) / face.area
        if self.kind == "auto" and is_aligned(face, width, height):
            return FoundFace(name, image, face.landmarks, face, others, rival, aligned=True)
        crop = align_face(image, face.landmarks, size=self.size)
        matrix = similarity_transform(face.landmarks, TEMPLATE * (self.size / TEMPLATE_SIZE))
        points = face.landmarks @ matrix[:, :2].T + matrix[:, 2]
        return FoundFace(name, crop, points, face, others, rival)


def is_aligned(face: Face, width: int, height: int) -> bool:
    """Whether a face lies in its picture as in an aligned crop: square, points on the template."""
    if width != height:
        return False
    away = face.landmarks - TEMPLATE * (width / TEMPLATE_SIZE)
    return float(np.hypot(away[:, 0], away[:, 1]).mean()) < _NEAR * width


def require_list(photos: Sequence[Photo]) -> None:
    """Refuse a single path in the place of a list: its letters are not photos."""
    if isinstance(photos, str | Path):
        raise ValueError(f"photos must be a list; give a single one as ['{photos}']")


def photo_name(photo: Photo, number: int) -> str:
    """The path of a photo as text, or "photo 2" for the second of those that have none."""
    if isinstance(photo, FoundFace):
        return photo.photo
    return printable(photo) if isinstance(photo, str | Path) else f"photo {number}"


def as_array(photo: Photo, name: str) -> ImageArray:
    """A photo as uint8 RGB of shape (height, width, 3), upright as its EXIF says."""
    if isinstance(photo, FoundFace):
        return photo.crop
    if isinstance(photo, str | Path):
        return read_photo(photo)
    image = np.asarray(_upright(photo, name) if hasattr(photo, "getexif") else photo)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f"{name} must be a path, a picture of Pillow, or a uint8 RGB array of the shape "
            f"(height, width, 3); got {image.dtype} of the shape {image.shape}"
        )
    _require_size(name, image.shape[1], image.shape[0])
    return image


def _upright(picture: Any, name: str) -> Any:
    """A picture of Pillow, which its user has installed, as RGB and turned as its EXIF says."""
    from PIL import ImageOps

    _require_size(name, *picture.size)
    return ImageOps.exif_transpose(picture).convert("RGB")


def _require_size(name: str, width: int, height: int) -> None:
    if min(width, height) < MIN_SIDE or width * height > MAX_PIXELS:
        raise ValueError(
            f"{name} has {width} × {height} pixels; a photo has at least {MIN_SIDE} a side and at "
            f"most {MAX_PIXELS // 1_000_000} million"
        )
