"""Embeddings made comparable: unit rows in float32, block by block, with the faulty ones named."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sphereface2.workers import first_of

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
