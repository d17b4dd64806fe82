"""Images of nobody in particular: a folder of any structure, without people."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sphereface2.data.encoded import EncodedImages, OnBadImage
from sphereface2.data.image_file import IMAGE_SUFFIXES, printable, read_file
from sphereface2.data.image_walk import find_images, unread_note
from sphereface2.data.packed_names import PackedNames
from sphereface2.tables import DataPath


class LooseImages(EncodedImages):
    """All images at any depth below `path`, in the order of their names, with label -1."""

    def __init__(
        self, *, path: DataPath, image_size: int | None = None, on_bad_image: OnBadImage = "stop"
    ) -> None:
        folder = Path(path)
        if not folder.is_dir():
            kind = "is not a folder" if folder.exists() else "does not exist"
            raise FileNotFoundError(f"open_set.data.path: {folder} {kind}; give a folder of images")
        self._folder = str(folder)
        found = find_images(folder)
        self._names = PackedNames(found.names)
        notes = unread_note(folder, found.unread)
        if not len(self._names):
            raise ValueError(
                f"open_set.data.path: no images below {folder}; expected files with one of the "
                f"endings {', '.join(IMAGE_SUFFIXES)}" + "".join(f"; {note}" for note in notes)
            )
        super().__init__(
            labels=np.full(len(self._names), -1, np.int64),
            people=[],
            image_size=image_size,
            on_bad_image=on_bad_image,
            path=folder,
            notes=notes,
            unread=found.unread,
        )

    def encoded(self, index: int, /) -> bytes:
        """The bytes of one file."""
        return read_file(f"{self._folder}/{self._names[index]}")

    def location(self, index: int, /) -> str:
        """The path of one file."""
        return printable(f"{self._folder}/{self._names[index]}")

    def name(self, index: int, /) -> str:
        """The path of one file below the folder."""
        return self._names[index]
