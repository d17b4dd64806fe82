"""One pass over millions of distractors that keeps of billions of scores only what is asked for."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.thresholds import HighestScores, Scores
from sphereface2.models.unit_rows import Float32, Vectors, check_rows, unit_block
from sphereface2.progress import Progress
from sphereface2.workers import usable_cores

Mask = npt.NDArray[np.bool_]

_BLOCK = 8_192  # distractors a block: 115 MB of scores for 3,530 probes
_WAITING = 8  # newcomers a row, on average, that are worth a merge


@dataclass(frozen=True, eq=False)
class Strangers:
    """What one pass over the distractors leaves of some billions of scores.

    best: (sizes, p) each probe's best distractor among the first n; top: (p, k) its k best of all
    highest: the highest scores over all probes, falling; count: distractors that took part
    """

    best: Scores
    top: Scores
    highest: Scores
    count: int


def scan(
    unit: Float32,
    distractors: Vectors,
    *,
    reach: Sequence[int],
    skipped: Mask,
    keep: int,
    keep_all: int,
    source: str,
    progress: Progress | None = None,
) -> Strangers:
    """One matrix product in blocks; of each block only what may still matter is looked at twice.

    A score matters if it is above the probe's own keep-th best so far or above the keep_all-th best
    of all probes, so after the first blocks one comparison a score is all that is spent.
    """
    count = len(unit)
    kept = _Best(count, keep)
    highest = HighestScores(keep_all)
    best = np.full((len(reach), count), -np.inf, dtype=np.float32)
    rows = np.empty((_BLOCK, unit.shape[1]), dtype=np.float32)
    scores = np.empty(count * _BLOCK, dtype=np.float32)
    cuts = sorted({0, *reach, *range(0, len(distractors), _BLOCK)})
    taken = 0
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
            taken += width
            if stop in reach:
                best[reach.index(stop)] = kept.table().max(axis=1)
            if progress is not None:
                progress(stop, len(distractors))
    return Strangers(best, kept.table(), highest.falling(), taken)


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
