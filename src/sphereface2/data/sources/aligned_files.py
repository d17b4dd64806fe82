"""Image files whose faces are aligned, by landmarks known beforehand, as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.image_file import read_image
from sphereface2.faces.alignment import TEMPLATE_SIZE, align_face
from sphereface2.files import printable
from sphereface2.progress import Progress, counted

_SHOWN = 3


class AlignedFiles:
    """The faces of `folder`/NAME, brought onto the template by (n, 5, 2) landmarks."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        landmarks: NDArray[np.floating],
        *,
        size: int = TEMPLATE_SIZE,
    ) -> None:
        if landmarks.shape != (len(names), 5, 2):
            raise ValueError(
                f"{len(names)} images need landmarks of the shape ({len(names)}, 5, 2), got "
                f"{landmarks.shape}"
            )
        _require_faces(folder, names, landmarks)
        self.folder = folder
        self.names = names
        self.landmarks = landmarks
        self.size = size

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> NDArray[np.uint8]:
        image = read_image(f"{self.folder}/{self.names[index]}")
        return align_face(image, self.landmarks[index].astype(np.float64), size=self.size)

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Check that every file is there: lists and images are often downloaded apart."""
        require_images(self.folder, self.names, progress=progress)


def require_images(
    folder: Path, names: Sequence[str], *, progress: Progress | None = None, every: int = 5_000
) -> None:
    """Refuse a list whose images are not all in `folder`: how many are missing, and the first."""
    missing = []
    for number, name in enumerate(names, start=1):
        if not Path(folder, name).is_file():
            missing.append(name)
        if progress is not None and (number % every == 0 or number == len(names)):
            progress(number, len(names))
    if missing:
        first = ", ".join(printable(name) for name in missing[:_SHOWN])
        are = "is" if len(missing) == 1 else "are"
        raise FileNotFoundError(
            f"{len(missing):,} of the {counted(len(names), 'image')} of the list {are} missing in "
            f"{printable(folder)}, such as {first}"
        )


def _require_faces(folder: Path, names: Sequence[str], landmarks: NDArray[np.floating]) -> None:
    finite = np.isfinite(landmarks).all(axis=(1, 2))
    faulty = np.flatnonzero(~finite | (np.ptp(landmarks, axis=1) == 0).all(axis=1))
    if faulty.size:
        first = ", ".join(printable(names[number]) for number in faulty[:_SHOWN])
        raise ValueError(
            f"{faulty.size:,} of the {len(names):,} faces of {printable(folder)} have landmarks "
            f"that are not finite or all one point, such as those of {first}"
        )
