"""Rendered pictures kept on disk, so that many runs over the same people render them once.

Only where the environment names a folder for them: a sweep does so for its runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.files import file_lock

FOLDER_VARIABLE = "SPHEREFACE2_RENDERED"
"""The environment variable with the folder in which rendered pictures are kept."""


def kept_or_rendered(
    description: object, shape: tuple[int, ...], render: Callable[[], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """What `render` gives for a description; from disk if it is there, else kept there."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return render()
    # The renderer's own code is part of the key: changed code never meets old pictures.
    key = hashlib.sha256(f"{description!r}\n{renderer_version()}".encode()).hexdigest()[:20]
    path = Path(folder) / f"{key}.npy"
    # One process renders, the others wait for it.
    with file_lock(path.with_suffix(".lock")):
        found = _load(path, shape)
        if found is not None:
            return found
        pictures = render()
        # Renamed when complete: whatever ends this process, half a file is never read.
        unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
        with unfinished.open("wb") as file:
            np.save(file, pictures)
        unfinished.replace(path)
    return pictures


def _load(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """The pictures in a file, mapped so that processes share their memory."""
    try:
        pictures = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    fits = pictures.dtype == np.uint8 and pictures.shape == shape
    return pictures if fits else None


@cache
def renderer_version() -> str:
    """Stands for how people are drawn now: a digest of this package's code and cv2's version."""
    code = hashlib.sha256(cv2.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()
