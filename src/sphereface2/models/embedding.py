"""Embeddings of images: by a network, with the mirror image added, or by the pixels themselves."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sphereface2.backbones.backbone import summed_embeddings
from sphereface2.data.pairs.verification_set import Missing
from sphereface2.data.sources.source import Images, PreparedImages
from sphereface2.data.transforms import resize
from sphereface2.progress import Progress

ImageArray = npt.NDArray[np.uint8]


class MissingImageError(ValueError):
    """An image is not there or cannot be read."""


SKIP = "--missing skip leaves such images out"


def prepare(
    images: PreparedImages,
    missing: Missing | None,
    *,
    workers: int,
    progress: Progress | None,
) -> None:
    """Prepare images; if some are faulty, a MissingImageError, unless they are to be skipped."""
    try:
        images.prepare(workers=workers, progress=progress)
    except (ValueError, OSError) as error:
        if missing != "skip":
            raise MissingImageError(str(error)) from error


class Preprocessing(Protocol):
    """What the model folder says about its input."""

    @property
    def input_size(self) -> int: ...

    def to_tensor(self, images: torch.Tensor, /) -> torch.Tensor:
        """(B, S, S, 3) uint8 to (B, 3, S, S) float, on the same device."""
        ...


def embed(
    backbone: nn.Module,
    images: Images,
    *,
    preprocessing: Preprocessing,
    batch_size: int = 256,
    flip: bool = True,
    workers: int = 1,
    device: torch.device | str | None = None,
    missing: Missing = "error",
    progress: Progress | None = None,
) -> npt.NDArray[np.float32]:
    """The (N, D) embeddings of `images`, with the options of `embed_blocks`."""
    if len(images) == 0:
        raise ValueError("there are no images to embed")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    blocks = [
        range(start, min(start + batch_size, len(images)))
        for start in range(0, len(images), batch_size)
    ]
    parts: list[npt.NDArray[np.float32]] = []
    for block, embeddings in embed_blocks(
        backbone,
        images,
        blocks,
        preprocessing=preprocessing,
        flip=flip,
        workers=workers,
        device=device,
        missing=missing,
    ):
        parts.append(embeddings)
        if progress is not None:
            progress(block.stop, len(images))
    return np.concatenate(parts)


def embed_blocks(
    backbone: nn.Module,
    images: Images,
    blocks: Sequence[range],
    *,
    preprocessing: Preprocessing,
    flip: bool = True,
    workers: int = 1,
    device: torch.device | str | None = None,
    missing: Missing = "error",
) -> Iterator[tuple[range, npt.NDArray[np.float32]]]:
    """Each block of image numbers with its (n, D) embeddings, one after the other.

    With `flip`, the embedding of an image is the sum of its own and its mirror image's
    (`summed_embeddings`), which `score_pairs` brings to unit norm.
    `workers` threads read the next images while the network is at work. `device` is where the
    backbone is; by default it is asked. With `missing` "skip", an image that cannot be read has NaN
    in place of an embedding; else it is a MissingImageError. The backbone runs in evaluation mode
    and gets its modes back afterwards, whatever happens.
    """
    place = device if device is not None else _device_of(backbone)
    # Each module's own mode: a part may be frozen in evaluation mode while the rest trains.
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    try:
        for block, batch, unread in _read_ahead(
            images, blocks, preprocessing.input_size, workers, missing
        ):
            with torch.inference_mode():
                inputs = preprocessing.to_tensor(torch.from_numpy(batch).to(place))
                embeddings = summed_embeddings(backbone, inputs, flip=flip)
                found: npt.NDArray[np.float32] = embeddings.cpu().numpy()
                found[unread] = np.nan
            yield block, found
    finally:
        for module, mode in modes:
            module.training = mode


def _read_ahead(
    images: Images, blocks: Sequence[range], size: int, workers: int, missing: Missing
) -> Iterator[tuple[range, ImageArray, list[int]]]:
    """The images of each block, read in threads a block ahead of where they are needed.

    The numbers are those within the block that could not be read, and are black.
    """
    with ThreadPoolExecutor(max(1, workers), thread_name_prefix="images") as pool:

        def read(number: int) -> ImageArray | None:
            image = _image_or_none(images, number, missing)
            return None if image is None else resize(image, size)

        def gathered(
            block: range, reading: list[Future[ImageArray | None]]
        ) -> tuple[range, ImageArray, list[int]]:
            found = [future.result() for future in reading]
            unread = [number for number, image in enumerate(found) if image is None]
            black = np.zeros((size, size, 3), np.uint8)
            return block, np.stack([black if image is None else image for image in found]), unread

        pending: deque[tuple[range, list[Future[ImageArray | None]]]] = deque()
        try:
            for block in blocks:
                pending.append((block, [pool.submit(read, number) for number in block]))
                if len(pending) > 1:
                    yield gathered(*pending.popleft())
            while pending:
                yield gathered(*pending.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def raw_pixel_embedding(
    images: Images, *, input_size: int | None = None, missing: Missing = "error"
) -> npt.NDArray[np.float32]:
    """The baseline without a network: the pixels as a vector, less the image's own mean.

    `input_size` scales the images as `embed` does; without it all must have one size. One image of
    112×112 takes 150 kB as an embedding, so give it for long lists. `missing` as for `embed`.
    """
    if len(images) == 0:
        raise ValueError("there are no images to embed")
    first = None if input_size else _image(images, 0)
    size = (input_size, input_size) if first is None else first.shape[:2]
    flat = np.full((len(images), size[0] * size[1] * 3), np.nan, dtype=np.float32)
    for index in range(len(images)):
        image = _image_or_none(images, index, missing)
        if image is None:
            continue
        if input_size:
            image = resize(image, input_size)
        elif first is not None and image.shape != first.shape:
            raise ValueError(
                f"image {index} has the shape {image.shape} and image 0 {first.shape}; "
                "give input_size to bring them to one size"
            )
        flat[index] = image.reshape(-1)
        flat[index] -= flat[index].mean()
    return flat


def _device_of(backbone: nn.Module) -> torch.device:
    parameter = next(backbone.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")


def _image_or_none(images: Images, index: int, missing: Missing) -> ImageArray | None:
    try:
        return _image(images, index)
    except (ValueError, OSError) as error:
        if missing == "skip":
            return None
        told = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            told = f"{error.filename}: {error.strerror.lower()}"
        raise MissingImageError(told) from error


def _image(images: Images, index: int) -> ImageArray:
    image = np.asarray(images[index])
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(
            f"image {index} must be uint8 of the shape (height, width, 3), got {image.dtype} of "
            f"the shape {image.shape}"
        )
    return image
