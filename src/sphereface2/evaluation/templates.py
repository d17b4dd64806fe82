"""Templates, as IJB has them: a person's images and frames pooled into one vector, and compared."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.search import dot_products
from sphereface2.evaluation.thresholds import Scores
from sphereface2.models.embedder import (
    Float32,
    Mirror,
    Vectors,
    check_rows,
    check_table,
    fold_mirror,
    folded_width,
    sound,
    unit_block,
)
from sphereface2.workers import Progress, first_of, unseen

Ids = npt.NDArray[np.integer[Any]]
ImageNorm = Literal["kept", "unit"]
IMAGE_NORMS: tuple[ImageNorm, ...] = ("kept", "unit")

_BLOCK = 8_192  # images per block, or one template if it has more
_DENSE = 1 << 25  # up to this id a table answers "where"; beyond it a binary search does
_SCORES = 1 << 23  # scores per block: 32 MB
_SPARSE = 64  # products a pair beyond which a list is too sparse for a matrix product


@dataclass(frozen=True, eq=False)
class Templates:
    """ids: (t,) rising, each once; vectors: (t, D) float32 of length 1."""

    ids: npt.NDArray[np.int64]
    vectors: Float32

    def where(self, ids: Ids, *, source: str) -> npt.NDArray[np.int32]:
        """The row of each id; refuses ids without a template."""
        rows = positions(self.ids, ids)
        if rows.size and rows.min() < 0:
            missing = np.unique(np.asarray(ids)[rows < 0])
            raise ValueError(
                f"{source}: {missing.size:,} templates have no image (template "
                f"{first_of(missing.tolist())})"
            )
        return rows


def pool_templates(
    embeddings: Vectors,
    templates: Ids,
    media: Ids,
    *,
    weights: npt.NDArray[np.floating[Any]] | None = None,
    mirror: Mirror = "given",
    image_norm: ImageNorm = "kept",
    source: str = "embeddings",
    progress: Progress = unseen,
) -> Templates:
    """Mean within each media id of a template, sum over its media, unit norm.

    templates, media: (n,) the template and the media id of each image
    weights: (n,) a factor for each image (variant D: its detector score); None for none
    mirror: "sum" or "first" if the columns are [image | mirror image] (variant F)
    image_norm: "kept" or "unit", before the mean (variant N)
    """
    check_table(embeddings, source=source, rows=len(templates))
    width = folded_width(embeddings.shape[1], mirror)
    if image_norm not in IMAGE_NORMS:
        raise ValueError(f"image_norm must be one of {', '.join(IMAGE_NORMS)}, got '{image_norm}'")
    if len(media) != len(templates):
        raise ValueError(f"{len(templates):,} template ids but {len(media):,} media ids")
    factors = _factors(len(templates), weights, source=source)
    order = np.lexsort((media, templates))
    ids, counts = np.unique(templates, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    # The mean within a media id: each image counts 1 / (images of that media in the template).
    tid, mid = np.asarray(templates)[order], np.asarray(media)[order]
    first = np.flatnonzero(np.append(True, (np.diff(tid) != 0) | (np.diff(mid) != 0)))
    per_media = np.diff(np.append(first, len(order)))
    shares = (factors[order] / np.repeat(per_media, per_media)).astype(np.float32)
    vectors = np.empty((ids.size, width), dtype=np.float32)
    template = 0
    while template < ids.size:
        stop = int(np.searchsorted(starts, starts[template] + _BLOCK, side="right")) - 1
        stop = max(stop, template + 1)
        rows = slice(starts[template], starts[stop])
        block = fold_mirror(embeddings[order[rows]], mirror).astype(np.float32)
        # A zero row would vanish in the sum unseen, and stands for an image that was not embedded.
        if not (unit_block(block, out=block) if image_norm == "unit" else sound(block)):
            check_rows(embeddings, source=source, mirror=mirror)
        block *= shares[rows, None]
        sums = np.add.reduceat(block, starts[template:stop] - starts[template], axis=0)
        if not unit_block(sums, out=vectors[template:stop]):
            _refuse_empty(ids[template:stop], sums, source=source)
        template = stop
        progress(template, ids.size)
    return Templates(ids.astype(np.int64), vectors)


def _factors(
    count: int, weights: npt.NDArray[np.floating[Any]] | None, *, source: str
) -> npt.NDArray[np.float64]:
    if weights is None:
        return np.ones(count)
    factors = np.asarray(weights, dtype=np.float64)
    if factors.shape != (count,):
        raise ValueError(f"{source}: {factors.size:,} detector scores for {count:,} images")
    faulty = np.flatnonzero(~(np.isfinite(factors) & (factors >= 0)))
    if faulty.size:
        raise ValueError(
            f"{source}: {faulty.size:,} of {count:,} detector scores are negative or not finite "
            f"(number {first_of(faulty.tolist())})"
        )
    return factors


def _refuse_empty(ids: Ids, sums: Float32, *, source: str) -> None:
    # Every image is sound, so the sum cancelled or all weights of the template are 0.
    empty = ids[~sums.any(axis=1)]
    raise ValueError(
        f"{source}: {max(empty.size, 1):,} templates sum to zero or overflow (template "
        f"{first_of((empty if empty.size else ids).tolist())}); check the detector scores"
    )


def positions(known: Ids, ids: Ids) -> npt.NDArray[np.int32]:
    """The position of each of `ids` in the rising `known`, -1 where it is not there."""
    wanted = np.asarray(ids)
    if known.size and known[0] >= 0 and known[-1] < _DENSE:
        table = np.full(int(known[-1]) + 2, -1, dtype=np.int32)
        table[known] = np.arange(known.size, dtype=np.int32)
        outside = (wanted < 0) | (wanted > known[-1])
        if outside.any():
            wanted = np.where(outside, known[-1] + 1, wanted)
        return table[wanted]
    places = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return np.where(known[places] == wanted, places, -1).astype(np.int32)


def pair_scores(
    templates: Templates,
    left: npt.NDArray[np.int32],
    right: npt.NDArray[np.int32],
    *,
    progress: Progress = unseen,
) -> Scores:
    """The cosine of each pair of rows, in float32 and bounded memory.

    IJB pairs few left templates with many right ones, so blocks of the full matrix product and a
    look-up are some hundred times faster than a dot product a pair. Sparse lists go pair by pair.
    """
    vectors, count = templates.vectors, len(left)
    lefts, left_codes = _codes(left, len(vectors))
    rights, right_codes = _codes(right, len(vectors))
    if lefts.size * rights.size > _SPARSE * count:
        return np.clip(dot_products(vectors, left, right, progress=progress), -1.0, 1.0)
    scores = np.empty(count, dtype=np.float32)
    order = np.argsort(left_codes, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(left_codes, minlength=lefts.size))])
    right_vectors = vectors[rights]
    step = max(1, _SCORES // rights.size)
    for start in range(0, lefts.size, step):
        stop = min(start + step, lefts.size)
        product = vectors[lefts[start:stop]] @ right_vectors.T
        numbers = order[bounds[start] : bounds[stop]]
        rows = left_codes[numbers].astype(np.intp) - start
        scores[numbers] = product[rows, right_codes[numbers]]
        progress(int(bounds[stop]), count)
    return np.clip(scores, -1.0, 1.0, out=scores)  # rounding may step over


def _codes(
    rows: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.unsignedinteger[Any]]]:
    """The distinct rows, and the place of each row among them in the smallest type that holds it.

    Few templates fit into 16 bits, for which numpy sorts by radix.
    """
    present = np.zeros(count, dtype=np.bool_)
    present[rows] = True
    distinct = np.flatnonzero(present)
    table = np.cumsum(present) - 1
    if distinct.size <= 1 << 16:
        return distinct, table.astype(np.uint16)[rows]
    return distinct, table.astype(np.uint32)[rows]
