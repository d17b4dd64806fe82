"""Search in a gallery: ranks, open-set rates, and one pass over millions of distractors."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.thresholds import (
    HighestScores,
    Measure,
    OperatingPoint,
    Scores,
    Trials,
    allowed,
    rank_name,
)
from sphereface2.evaluation.uncertainty import rate_of
from sphereface2.models.embedder import (
    Float32,
    Vectors,
    check_rows,
    check_same_width,
    check_table,
    unit_block,
    unit_rows,
)
from sphereface2.workers import Progress, unseen, usable_cores

People = npt.NDArray[Any]
GalleryPooling = Literal["mean", "max"]
POOLINGS: tuple[GalleryPooling, ...] = ("mean", "max")
RANKS = (1, 5, 10)
FPIR_TARGETS = (0.01, 0.1)
HEADLINE_FPIR = 0.01  # what papers quote first

_SCORES = 1 << 24  # scores per block: 64 MB
_CHUNK = 16_384  # pairs per chunk: the gathered rows stay small however long the list is
_CMC = 100


@dataclass(frozen=True, eq=False)
class Searched:
    """What the search for each of p probes gave; people are scored, not images.

    genuine: (p,) the score of the right person, -inf if that person is not in the gallery
    other: (p,) the best score of anyone else, -inf if there is no one else
    rank: (p,) 1 + how many others score at least as high as the right person; 0 if not mated
    people: (p,) the person of each probe; gallery_people: how many are enrolled
    """

    genuine: Scores
    other: Scores
    rank: npt.NDArray[np.int64]
    people: People
    gallery_people: int

    @property
    def mated(self) -> npt.NDArray[np.bool_]:
        return self.rank > 0


def search(
    gallery: Vectors,
    gallery_people: npt.ArrayLike,
    probes: Vectors,
    probe_people: npt.ArrayLike,
    *,
    pooling: GalleryPooling = "mean",
    impostor_pairs: HighestScores | None = None,
    progress: Progress = unseen,
) -> Searched:
    """Score every probe against every person of the gallery, in blocks of probes.

    impostor_pairs: collects the scores of probes against people that they do not show
    """
    enrolled, wanted = np.asarray(gallery_people), np.asarray(probe_people)
    check_table(gallery, source="gallery", rows=enrolled.size)
    check_table(probes, source="probes", rows=wanted.size)
    check_same_width(gallery, probes, sources=("gallery embeddings", "probes"))
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got '{pooling}'")
    names, codes = np.unique(enrolled, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(names.size))
    vectors = unit_rows(gallery[order], source="gallery")
    if pooling == "mean" and len(vectors) > names.size:
        vectors = unit_rows(np.add.reduceat(vectors, starts, axis=0), source="pooled gallery")
    # The column of the right person, -1 for a probe of someone else.
    columns = np.minimum(np.searchsorted(names, wanted), names.size - 1)
    columns = np.where(names[columns] == wanted, columns, -1)
    unit = unit_rows(probes, source="probes")
    genuine = np.full(wanted.size, -np.inf, dtype=np.float32)
    other = np.empty(wanted.size, dtype=np.float32)
    rank = np.zeros(wanted.size, dtype=np.int64)
    step = max(32, min(4096, _SCORES // len(vectors)))
    for start in range(0, wanted.size, step):
        part = slice(start, min(start + step, wanted.size))
        scores = unit[part] @ vectors.T
        if len(vectors) > names.size:  # the best over each person's images
            scores = np.maximum.reduceat(scores, starts, axis=1)
        rows = np.flatnonzero(columns[part] >= 0)
        places = (rows, columns[part][rows])
        genuine[part][rows] = scores[places]
        scores[places] = -np.inf  # from here on the row holds the others
        other[part] = scores.max(axis=1)
        ahead = np.count_nonzero(scores[rows] >= genuine[part][rows, None], axis=1)
        rank[part][rows] = 1 + ahead
        if impostor_pairs is not None:
            impostor_pairs.add(scores.reshape(-1))
        progress(part.stop, wanted.size)
    return Searched(genuine, other, rank, wanted, int(names.size))


def rank_rates(found: Searched, ranks: Sequence[int]) -> tuple[Measure, ...]:
    """The share of the mated probes whose right person is among the first k."""
    mated = found.mated
    return tuple(
        Measure(rank_name(k), rate_of(found.rank[mated] <= k, found.people[mated])) for k in ranks
    )


def cmc_curve(found: Searched, *, longest: int = _CMC) -> tuple[float, ...]:
    """The rate at rank 1, 2, ... up to the gallery's size or `longest`."""
    ranks = found.rank[found.mated]
    length = min(longest, found.gallery_people)
    counts = np.bincount(np.minimum(ranks, length + 1), minlength=length + 2)[1 : length + 1]
    return tuple((np.cumsum(counts) / ranks.size).tolist())


def tpir_at_fpirs(found: Searched, targets: Sequence[float]) -> tuple[Measure, ...]:
    """TPIR at rank 1; the threshold comes from the best scores of the non-mated probes."""
    if found.mated.all():
        return ()
    people = found.people[found.mated]
    return _open_set(found).rates_at(targets, name="TPIR@FPIR", people=people)


def tpir_swing(found: Searched, target: float) -> tuple[float, float]:
    """How far TPIR may be off below and above because few probes set its threshold."""
    trials = _open_set(found)
    return trials.swing(allowed(target, trials.impostors))


def _open_set(found: Searched) -> Trials:
    """Scores of mated probes, -inf where someone else is first, and those of the others."""
    genuine = np.where(found.rank == 1, found.genuine, np.float32(-np.inf))[found.mated]
    return Trials.of(genuine, found.other[~found.mated])


def dir_at(found: Searched, threshold: float) -> Measure:
    """Detection and identification rate at rank 1, and the FPIR, at a threshold given."""
    mated = found.mated
    hits = (found.rank[mated] == 1) & (found.genuine[mated] >= threshold)
    strangers = found.other[~mated]
    at = None
    if strangers.size:
        reached = float(np.mean(strangers >= threshold))
        at = OperatingPoint(reached, reached, float(threshold), strangers.size, True)
    return Measure(f"DIR at {threshold:g}", rate_of(hits, found.people[mated]), at)


def dot_products(
    vectors: npt.NDArray[np.floating[Any]],
    left: npt.NDArray[np.integer[Any]],
    right: npt.NDArray[np.integer[Any]],
    *,
    dtype: type[np.floating[Any]] = np.float32,
    progress: Progress = unseen,
) -> Scores:
    """The product of each pair of rows, summed in `dtype`; in bounded memory."""
    scores = np.empty(left.size, dtype)
    for start in range(0, left.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        scores[part] = np.einsum("nd,nd->n", vectors[left[part]], vectors[right[part]], dtype=dtype)
        progress(min(start + _CHUNK, left.size), left.size)
    return scores


Mask = npt.NDArray[np.bool_]

_BLOCK = 8_192  # distractors per block: 115 MB of scores for 3,530 probes
_WAITING = 8  # newcomers per row, on average, that are worth a merge


@dataclass(frozen=True, eq=False)
class Strangers:
    """What one pass over the distractors leaves of some billions of scores.

    best: (sizes, p) each probe's best distractor among the first n; top: (p, k) its k best of all
    highest: the highest scores over all probes, falling
    """

    best: Scores
    top: Scores
    highest: Scores


def scan(
    unit: Float32,
    distractors: Vectors,
    *,
    reach: Sequence[int],
    skipped: Mask,
    keep: int,
    keep_all: int,
    source: str,
    progress: Progress = unseen,
) -> Strangers:
    """One matrix product in blocks; of each block only what may still matter is looked at twice.

    A score matters if it is above the probe's own keep-th best so far or above the keep_all-th best
    of all probes, so after the first blocks one comparison per score is all that is spent.
    """
    count = len(unit)
    kept = _Best(count, keep)
    highest = HighestScores(keep_all)
    best = np.full((len(reach), count), -np.inf, dtype=np.float32)
    rows = np.empty((_BLOCK, unit.shape[1]), dtype=np.float32)
    scores = np.empty(count * _BLOCK, dtype=np.float32)
    cuts = sorted({0, *reach, *range(0, len(distractors), _BLOCK)})
    threads = usable_cores()
    stripes = [slice(*ends) for ends in pairwise(_shares(count, threads))]
    with ThreadPoolExecutor(threads) as pool:  # what follows a product is shared out as it is
        for start, stop in pairwise(cuts):
            block = distractors[start:stop]
            if skipped[start:stop].any():
                block = block[~skipped[start:stop]]
            width = len(block)
            parts = [slice(*ends) for ends in pairwise(_shares(width, threads))]
            if not all(pool.map(_unit_part, repeat(block), repeat(rows), parts)):
                check_rows(distractors, source=source)
            product = scores[: count * width].reshape(count, width)
            np.matmul(unit, rows[:width].T, out=product)
            bars = np.minimum(kept.bars, highest.floor)
            for whose, found in pool.map(_above, repeat(product), repeat(bars), stripes):
                highest.add(found)
                kept.add(whose, found)
            if stop in reach:
                best[reach.index(stop)] = kept.table().max(axis=1)
            progress(stop, len(distractors))
    return Strangers(best, kept.table(), highest.falling())


class _Best:
    """The `keep` best scores of each row; newcomers wait until there are enough of them."""

    def __init__(self, rows: int, keep: int) -> None:
        self._table = np.full((rows, keep), -np.inf, dtype=np.float32)  # column 0 is the lowest
        self._waiting: list[tuple[npt.NDArray[np.intp], Scores]] = []
        self._held = 0

    @property
    def bars(self) -> Scores:
        """(rows, 1): a score not above it changes nothing."""
        return self._table[:, :1]

    def add(self, rows: npt.NDArray[np.intp], found: Scores) -> None:
        useful = found > self._table[rows, 0]
        self._waiting.append((rows[useful], found[useful]))
        self._held += int(np.count_nonzero(useful))
        if self._held > _WAITING * len(self._table):
            self.table()

    def table(self) -> Scores:
        if self._held:
            rows = np.concatenate([each for each, _ in self._waiting])
            found = np.concatenate([each for _, each in self._waiting])
            self._table = _merged(self._table, rows, found)
        self._waiting, self._held = [], 0
        return self._table


def _unit_part(block: Vectors, rows: Float32, part: slice) -> bool:
    return unit_block(block[part], out=rows[part])


def _above(product: Scores, bars: Scores, stripe: slice) -> tuple[npt.NDArray[np.intp], Scores]:
    """Row numbers and values of the scores above their row's bar, of some rows."""
    part = product[stripe]
    places = np.flatnonzero(part > bars[stripe])
    return places // max(part.shape[1], 1) + stripe.start, part.reshape(-1)[places]


def _shares(count: int, threads: int) -> list[int]:
    return [count * number // threads for number in range(threads + 1)]


def _merged(table: Scores, rows: npt.NDArray[np.intp], found: Scores) -> Scores:
    """`table` with newcomers of some rows taken in; as wide as before, column 0 the lowest."""
    order = np.argsort(rows, kind="stable")
    rows, found = rows[order], found[order]
    counts = np.bincount(rows, minlength=len(table))
    places = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
    width = int(counts.max())
    both = np.full((len(table), table.shape[1] + width), -np.inf, dtype=np.float32)
    both[:, : table.shape[1]] = table
    both[rows, table.shape[1] + places] = found
    return np.partition(both, width, axis=1)[:, width:].copy()
