"""Reading the images of one batch into their places: the same in threads and in processes.

Nothing here needs torch, whose import would take longer than the start of a reading process.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sphereface2.data.sources.source import Source
from sphereface2.data.transforms import fit_into, mirror_into, mirrored

_BYTES = np.dtype(np.uint8)


class BatchReader:
    """Reads images of a source at `size` × `size` pixels, mirrored by a hash of the seed."""

    def __init__(self, source: Source, *, size: int, flip: bool, seed: int) -> None:
        self.source = source
        self.size = size
        self.flip = flip
        self.seed = seed

    def shape(self, images: int) -> tuple[int, int, int, int]:
        """The shape of so many images."""
        return images, self.size, self.size, 3

    def read(
        self,
        rows: NDArray[np.uint8],
        indices: NDArray[np.int64],
        *,
        epoch: int,
        is_closed: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Fill `rows` with the images of these numbers; returns their labels.

        Stops short as soon as `is_closed` says that nobody waits for them any more.
        """
        flips = [False] * len(indices)
        if self.flip:
            flips = mirrored(indices, seed=self.seed, epoch=epoch).tolist()
        # One loop and few calls: whatever is done for each image is paid for in images a second.
        labels, source, index = [], self.source, -1
        try:
            for place, index, flip in zip(rows, indices.tolist(), flips, strict=True):
                if is_closed():
                    break
                image, label = source[index]
                if image.shape != place.shape or image.dtype != _BYTES:
                    _require_picture(image, index)
                    fit_into(place, image, mirror=flip)
                elif flip:
                    mirror_into(place, image)
                else:
                    place[...] = image
                labels.append(label)
        except (ValueError, OSError):
            raise  # the source's own sentence, with the path
        except Exception as error:
            raise RuntimeError(f"reading image {index} of the data failed: {error!r}") from error
        return labels


def _require_picture(image: NDArray[np.uint8], index: int) -> None:
    if image.dtype != _BYTES or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f"image {index} of the data is {image.dtype} of shape {image.shape}, not uint8 of "
            "shape (height, width, 3)"
        )
