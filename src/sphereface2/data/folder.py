"""Training images in folders: one folder for each person."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.encoded import EncodedImages, OnBadImage
from sphereface2.data.image_file import IMAGE_SUFFIXES, printable, read_array, read_file
from sphereface2.data.image_walk import find_images, leads_back, unread_note
from sphereface2.data.packed_names import PackedNames
from sphereface2.tables import DataPath


class ImageFolder(EncodedImages):
    """The images of `path`/PERSON/**, labelled by the sorted order of the people's names.

    Images may lie at any depth below a person's folder. A folder without an image is no person.
    With `image_size` each image is brought to that size as it is read.
    """

    def __init__(
        self, *, path: DataPath, image_size: int | None = None, on_bad_image: OnBadImage = "stop"
    ) -> None:
        folder = Path(path)
        if not folder.is_dir():
            kind = "is not a folder" if folder.exists() else "does not exist"
            raise FileNotFoundError(
                f"data.path: {printable(folder)} {kind}; give the folder with a folder for each "
                "person"
            )
        self._root = str(folder)
        found: list[str] = []
        people: list[str] = []
        labels: list[int] = []
        unread: dict[str, str] = {}
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith(".") or not entry.is_dir() or leads_back(str(entry)):
                continue
            images = find_images(entry)
            if images.names:
                labels += [len(people)] * len(images.names)
                people.append(printable(entry.name))
                found += [f"{entry.name}/{name}" for name in images.names]
            unread |= {f"{entry.name}/{name}": why for name, why in images.unread.items()}
        notes = unread_note(folder, unread)
        if not found:
            raise ValueError(
                f"data.path: no images in the folders of {printable(folder)}; expected "
                f"PERSON/IMAGE with one of the endings {', '.join(IMAGE_SUFFIXES)}"
                + "".join(f"; {note}" for note in notes)
            )
        self._files = PackedNames(found)
        super().__init__(
            path=folder,
            labels=np.array(labels, np.int64),
            people=people,
            image_size=image_size,
            on_bad_image=on_bad_image,
            notes=notes,
            unread=unread,
        )

    def image_path(self, index: int) -> Path:
        """The file of one image."""
        return Path(self._root, self._files[index])

    def encoded(self, index: int, /) -> bytes:
        return read_file(f"{self._root}/{self._files[index]}")

    def quick_pixels(self, index: int, /) -> NDArray[np.uint8] | None:
        return read_array(f"{self._root}/{self._files[index]}")

    def location(self, index: int, /) -> str:
        return printable(self.image_path(index))

    def name(self, index: int, /) -> str:
        return self._files[index]
