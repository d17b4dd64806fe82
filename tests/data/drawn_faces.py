"""Drawn faces for the tests of inspection: crude, but with eyes, nose and mouth in their places."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from sphereface2.faces.face import TEMPLATE

Picture = NDArray[np.uint8]


def face(seed: int, *, right: float = 0, down: float = 0, scale: float = 1) -> Picture:
    """A skin-coloured oval with dark eyes, nose and mouth at the template's places, and noise."""
    generator = np.random.default_rng(seed)
    picture = np.full((112, 112, 3), generator.integers(60, 200, 3), np.uint8)

    def place(x: float, y: float) -> tuple[int, int]:
        return (
            round((x - 56) * scale + 56 + right),
            round((y - 56) * scale + 56 + down),
        )

    skin = (np.array([215, 165, 135]) * generator.uniform(0.5, 1)).tolist()
    dark = [0.35 * level for level in skin]
    size = round(46 * scale), round(56 * scale)
    cv2.ellipse(picture, place(56, 62), size, 0, 0, 360, skin, -1)
    for x, y in TEMPLATE[:2]:
        cv2.ellipse(picture, place(x, y), (round(9 * scale), round(5 * scale)), 0, 0, 360, dark, -1)
    nose, mouth = place(*TEMPLATE[2]), place(56, 92)
    cv2.ellipse(picture, (nose[0], nose[1] + 6), (round(8 * scale), 3), 0, 0, 360, dark, -1)
    cv2.ellipse(picture, mouth, (round(14 * scale), round(4 * scale)), 0, 0, 360, dark, -1)
    for _ in range(25):  # what makes people differ
        spot = tuple(generator.integers(0, 112, 2).tolist())
        colour = np.clip(np.array(skin) + generator.integers(-40, 40), 0, 255).tolist()
        cv2.circle(picture, spot, int(generator.integers(2, 9)), colour, -1)
    return cv2.GaussianBlur(picture, (0, 0), 1.2).astype(np.uint8)


def save(path: Path, picture: Picture, quality: int = 95) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = [cv2.IMWRITE_JPEG_QUALITY, quality]
    assert cv2.imwrite(str(path), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), flags)
