"""Image files: which files are images, and how one becomes an RGB array."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def is_image_file(name: str) -> bool:
    """Whether a file of this name is taken for an image; hidden files never are."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def read_image(path: Path) -> NDArray[np.uint8]:
    """The image in a file as uint8 RGB of shape (height, width, 3), turned as its EXIF says."""
    # Read first and decode then: cv2.imread gives None for a missing, unreadable or broken file
    # alike, and cannot open every path on every system.
    try:
        encoded = np.frombuffer(path.read_bytes(), np.uint8)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no image {path}") from None
    except OSError as error:
        raise ValueError(f"cannot open the image {path}: {error.strerror}") from None
    try:
        image = cv2.imdecode(encoded, cv2.IMREAD_COLOR) if len(encoded) else None
    except cv2.error:
        image = None
    if image is None:
        raise ValueError(f"cannot decode the image {path}; replace or remove it")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)
