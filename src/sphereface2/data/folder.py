"""Training images in folders: one folder for each person."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.image_file import IMAGE_SUFFIXES, is_image_file, read_image
from sphereface2.data.source import Progress
from sphereface2.data.transforms import resize


class ImageFolder:
    """The images of `path`/PERSON/**, labelled by the sorted order of the people's names.

    Images may lie at any depth below a person's folder. A folder without an image is no person.
    With `image_size` each image is brought to that size as it is read.
    """

    def __init__(self, *, path: str, image_size: int | None = None) -> None:
        if image_size is not None and image_size < 1:
            raise ValueError(f"data.image_size must be at least 1, got {image_size}")
        self.path = Path(path)
        self.image_size = image_size
        if not self.path.is_dir():
            kind = "is not a folder" if self.path.exists() else "does not exist"
            raise FileNotFoundError(
                f"data.path: {self.path} {kind}; give the folder with a folder for each person"
            )
        self.people: list[str] = []
        self._files: list[str] = []
        labels: list[int] = []
        for entry in sorted(self.path.iterdir()):
            if not entry.is_dir() or entry.name.startswith("."):
                continue
            files = _image_files(entry)
            if files:
                labels += [len(self.people)] * len(files)
                self.people.append(entry.name)
                self._files += files
        if not self._files:
            raise ValueError(
                f"data.path: no images in the folders of {self.path}; expected "
                f"PERSON/IMAGE with one of the endings {', '.join(IMAGE_SUFFIXES)}"
            )
        self.labels: NDArray[np.int64] = np.array(labels, np.int64)

    @property
    def num_classes(self) -> int:
        return len(self.people)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], int]:
        image = read_image(self.image_path(index))
        if self.image_size is not None:
            image = resize(image, self.image_size)
        return image, int(self.labels[index])

    def image_path(self, index: int) -> Path:
        """The file of one image."""
        return Path(self._files[index])

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        """Nothing to do: images are decoded as they are asked for."""


def _image_files(folder: Path) -> list[str]:
    # Strings, not paths: a Path object for each of millions of images is memory for nothing.
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [f"{parent}{os.sep}{name}" for name in names if is_image_file(name)]
    return sorted(found)
