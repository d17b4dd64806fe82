"""From images to embeddings: the one way there, whatever is behind it.

A network that trains, a model from its folder (of torch, ONNX or OpenVINO) and the plain pixels
are all embedders, so that an image is checked, resized, mirrored and left out alike wherever
embeddings are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.verification_set import Missing
from sphereface2.data.sources.source import Images, PreparedImages
from sphereface2.data.transforms import Preprocessing, resize
from sphereface2.workers import Progress, first_of, unseen

if TYPE_CHECKING:
    import torch
    from torch import nn


ImageArray = npt.NDArray[np.uint8]
Embeddings = npt.NDArray[np.float32]
RunNetwork = Callable[[ImageArray], Embeddings]
"""A batch (B, S, S, 3) of the network's size to its (B, D) embeddings, mirror images added."""


class MissingImageError(ValueError):
    """An image is not there or cannot be read."""


@contextmanager
def offering_to_skip() -> Iterator[None]:
    """Let the message about an image that is missing say how to leave it out."""
    try:
        yield
    except MissingImageError as error:
        raise MissingImageError(f"{error}; --missing skip leaves such images out") from None


class Embedder(ABC):
    """Maps images to embeddings, which need not be unit vectors."""

    action: ClassVar[str] = "embedding set"
    """What it does with the images of a verification set, for its watchers."""

    @abstractmethod
    def embed(
        self, images: Images, *, missing: Missing = "error", progress: Progress = unseen
    ) -> Embeddings:
        """The (N, D) embeddings of N images.

        With `missing` "skip", an image that cannot be read has NaN in place of an embedding; else
        it is a MissingImageError.
        """


@dataclass(frozen=True, eq=False)
class BatchEmbedder(Embedder):
    """Embeds batch by batch, while threads read the next images; a subclass runs the network.

    flip: the embedding of an image is the sum of its own and its mirror image's
    workers: threads that read the next images while the network is at work
    """

    flip: bool = field(default=True, kw_only=True)
    workers: int = field(default=1, kw_only=True)
    batch_size: int = field(default=256, kw_only=True)

    def __post_init__(self) -> None:
        for what in ("batch_size", "workers"):
            if getattr(self, what) < 1:
                raise ValueError(f"{what} must be at least 1, got {getattr(self, what)}")

    @property
    @abstractmethod
    def input_size(self) -> int:
        """What images are resized to."""

    @abstractmethod
    def running(self) -> AbstractContextManager[RunNetwork]:
        """The network ready to run, for as long as the context lasts."""

    def embed(
        self, images: Images, *, missing: Missing = "error", progress: Progress = unseen
    ) -> Embeddings:
        _require_some(images)
        blocks = [
            range(start, min(start + self.batch_size, len(images)))
            for start in range(0, len(images), self.batch_size)
        ]
        parts: list[Embeddings] = []
        for block, embeddings in self.embed_blocks(images, blocks, missing=missing):
            parts.append(embeddings)
            progress(block.stop, len(images))
        return np.concatenate(parts)

    def embed_blocks(
        self, images: Images, blocks: Sequence[range], *, missing: Missing = "error"
    ) -> Iterator[tuple[range, Embeddings]]:
        """Each block of image numbers with its (n, D) embeddings, one after the other."""
        with self.running() as run:
            for block, batch, unread in _read_ahead(
                images, blocks, self.input_size, self.workers, missing
            ):
                found = run(batch)
                found[unread] = np.nan
                yield block, found


@dataclass(frozen=True, eq=False)
class NetworkEmbedder(BatchEmbedder):
    """A torch network, in training or in use.

    device: where the backbone is; by default it is asked
    """

    backbone: nn.Module
    preprocessing: Preprocessing
    device: torch.device | str | None = field(default=None, kw_only=True)

    @property
    def input_size(self) -> int:
        return self.preprocessing.input_size

    @contextmanager
    def running(self) -> Iterator[RunNetwork]:
        """The backbone in evaluation mode; it gets its modes back afterwards, whatever happens."""
        import torch

        from sphereface2.backbones.backbone import summed_embeddings

        backbone, place = self.backbone, self.device
        if place is None:
            parameter = next(backbone.parameters(), None)
            place = "cpu" if parameter is None else parameter.device

        def run(batch: ImageArray) -> Embeddings:
            with torch.inference_mode():
                inputs = self.preprocessing.to_tensor(torch.from_numpy(batch).to(place))
                found: Embeddings = (
                    summed_embeddings(backbone, inputs, flip=self.flip).cpu().numpy()
                )
            return found

        # Each module's own mode: a part may be frozen in evaluation mode while the rest trains.
        modes = [(module, module.training) for module in backbone.modules()]
        backbone.eval()
        try:
            yield run
        finally:
            for module, mode in modes:
                module.training = mode


@dataclass(frozen=True)
class PixelEmbedder(Embedder):
    """The baseline without a network: the pixels as a vector, less the image's own mean.

    input_size: what images are resized to; one of 112×112 takes 150 kB as an embedding
    """

    action: ClassVar[str] = "comparing pixels of"
    input_size: int

    def embed(
        self, images: Images, *, missing: Missing = "error", progress: Progress = unseen
    ) -> Embeddings:
        _require_some(images)
        flat = np.full((len(images), self.input_size**2 * 3), np.nan, dtype=np.float32)
        for index in range(len(images)):
            image = _image_or_none(images, index, missing)
            if image is not None:
                flat[index] = resize(image, self.input_size).reshape(-1)
                flat[index] -= flat[index].mean()
            progress(index + 1, len(images))
        return flat


def prepare(
    images: PreparedImages,
    missing: Missing | None,
    *,
    workers: int,
    progress: Progress,
) -> None:
    """Prepare images; if some are faulty, a MissingImageError, unless they are to be skipped."""
    try:
        images.prepare(workers=workers, progress=progress)
    except (ValueError, OSError) as error:
        if missing != "skip":
            raise MissingImageError(str(error)) from error


def _require_some(images: Images) -> None:
    if len(images) == 0:
        raise ValueError("there are no images to embed")


def _read_ahead(
    images: Images, blocks: Sequence[range], size: int, workers: int, missing: Missing
) -> Iterator[tuple[range, ImageArray, list[int]]]:
    """The images of each block, read in threads a block ahead of where they are needed.

    The numbers are those within the block that could not be read, and are black.
    """
    black = np.zeros((size, size, 3), np.uint8)

    def read(number: int) -> ImageArray | None:
        image = _image_or_none(images, number, missing)
        return None if image is None else resize(image, size)

    def gathered(
        block: range, reading: list[Future[ImageArray | None]]
    ) -> tuple[range, ImageArray, list[int]]:
        found = [future.result() for future in reading]
        unread = [number for number, image in enumerate(found) if image is None]
        return block, np.stack([black if image is None else image for image in found]), unread

    with ThreadPoolExecutor(workers, thread_name_prefix="images") as pool:
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


def _image_or_none(images: Images, index: int, missing: Missing) -> ImageArray | None:
    try:
        image = np.asarray(images[index])
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise ValueError(
                f"image {index} must be uint8 of the shape (height, width, 3), got {image.dtype} "
                f"of the shape {image.shape}"
            )
    except (ValueError, OSError) as error:
        if missing == "skip":
            return None
        reason = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            reason = f"{error.filename}: {error.strerror.lower()}"
        raise MissingImageError(reason) from error
    return image


# -- embeddings made comparable: unit rows, with the faulty ones named -----------------------------

Vectors = npt.NDArray[np.floating[Any]]
Float32 = npt.NDArray[np.float32]
Mirror = Literal["given", "sum", "first"]
MIRROR: tuple[Mirror, ...] = ("given", "sum", "first")

_BLOCK = 16_384  # rows per block: 32 MB at 512 dimensions


def check_table(embeddings: Vectors, *, source: str, rows: int | None = None) -> None:
    """Refuse what is not a table of floats with the right number of rows; looks at no value."""
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(
            f"{source}: embeddings must be a table of images × dimensions, got the shape "
            f"{embeddings.shape}"
        )
    if not np.issubdtype(embeddings.dtype, np.floating):
        raise ValueError(f"{source}: embeddings must be floats, got {embeddings.dtype}")
    if rows is not None and len(embeddings) != rows:
        raise ValueError(
            f"{source}: {len(embeddings):,} embeddings for {rows:,} images; give one each, in the "
            "order of the list"
        )


def check_same_width(first: Vectors, second: Vectors, *, sources: tuple[str, str]) -> None:
    """Refuse two tables of different dimensions."""
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"{sources[0]} have {first.shape[1]} dimensions and {sources[1]} {second.shape[1]}; "
            "both must come from one model"
        )


def check_rows(embeddings: Vectors, *, source: str, mirror: Mirror = "given") -> None:
    """Refuse embeddings that are not finite or are zero; names the first and how many there are."""
    not_finite: list[int] = []
    zero: list[int] = []
    for start in range(0, len(embeddings), _BLOCK):
        squares = _squares(fold_mirror(embeddings[start : start + _BLOCK], mirror))
        not_finite += (np.flatnonzero(~np.isfinite(squares)) + start).tolist()
        zero += (np.flatnonzero(squares == 0) + start).tolist()
    for numbers, fault in ((not_finite, "are not finite"), (zero, "are zero: no direction")):
        if numbers:
            raise ValueError(
                f"{source}: {len(numbers):,} of {len(embeddings):,} embeddings {fault} "
                f"(number {first_of(numbers)})"
            )


def unit_rows(embeddings: Vectors, *, source: str) -> Float32:
    """A copy in float32 whose rows have length 1."""
    unit = np.empty(embeddings.shape, dtype=np.float32)
    for start in range(0, len(embeddings), _BLOCK):
        part = slice(start, start + _BLOCK)
        if not unit_block(embeddings[part], out=unit[part]):
            check_rows(embeddings, source=source)
    return unit


def sound(block: Vectors) -> bool:
    """Whether no row is zero or not finite."""
    squares = _squares(block)
    return bool(np.isfinite(squares).all() and squares.all())


def unit_block(block: Vectors, *, out: Float32) -> bool:
    """Write the rows of `block`, brought to length 1, into `out`; False if a row cannot be."""
    squares = _squares(block)
    if not (np.isfinite(squares).all() and squares.all()):
        return False
    np.multiply(block, (1.0 / np.sqrt(squares)).astype(np.float32)[:, None], out=out)
    return True


def absent_rows(embeddings: Vectors) -> npt.NDArray[np.bool_]:
    """Which rows are NaN throughout: the image has no embedding."""
    absent = np.zeros(len(embeddings), np.bool_)
    for start in range(0, len(embeddings), _BLOCK):
        block = embeddings[start : start + _BLOCK]
        absent[start : start + len(block)] = np.isnan(block).all(axis=1)
    return absent


def fold_mirror(block: Vectors, how: Mirror) -> Vectors:
    """One vector per image.

    given: the columns are the embedding. sum, first: they are [image | mirror image], which are
    added, or of which the first half is taken.
    """
    if how == "given":
        return block
    half = folded_width(block.shape[1], how)
    return block[:, :half] if how == "first" else block[:, :half] + block[:, half:]


def folded_width(width: int, how: Mirror) -> int:
    """The dimensions that `fold_mirror` leaves."""
    if how not in MIRROR:
        raise ValueError(f"mirror must be one of {', '.join(MIRROR)}, got '{how}'")
    if how == "given":
        return width
    if width % 2:
        raise ValueError(
            f"embeddings of {width} dimensions cannot hold an image and its mirror image side by "
            "side; use mirror='given'"
        )
    return width // 2


def _squares(block: Vectors) -> npt.NDArray[np.float64]:
    # Summed in float32: the error is far below that of the scores, and the sum overflows only for
    # values that no network writes. In float16 it would, for quite ordinary ones.
    wide = block.astype(np.float32) if block.dtype == np.float16 else block
    products = np.einsum("nd,nd->n", wide, wide)
    return np.asarray(products, dtype=np.float64)
