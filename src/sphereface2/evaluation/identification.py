"""Search in a gallery: who of its people is this probe, and is it anyone of them at all?

Ties are pessimistic: another person with the same score stands before the right one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.intervals import rate_of
from sphereface2.evaluation.thresholds import (
    HighestScores,
    Measure,
    OperatingPoint,
    Scores,
    allowed,
    rates_at,
    swing,
)
from sphereface2.models.unit_rows import Float32, Vectors, check_same_width, check_table, unit_rows
from sphereface2.progress import Progress

People = npt.NDArray[Any]
GalleryPooling = Literal["mean", "max"]
POOLINGS: tuple[GalleryPooling, ...] = ("mean", "max")
RANKS = (1, 5, 10)
FPIR_TARGETS = (0.01, 0.1)
HEADLINE_FPIR = 0.01  # what papers quote first

_SCORES = 1 << 24  # scores a block: 64 MB
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
    progress: Progress | None = None,
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
        scores = _person_scores(unit[part], vectors, starts)
        rows = np.flatnonzero(columns[part] >= 0)
        places = (rows, columns[part][rows])
        genuine[part][rows] = scores[places]
        scores[places] = -np.inf  # from here on the row holds the others
        other[part] = scores.max(axis=1)
        ahead = np.count_nonzero(scores[rows] >= genuine[part][rows, None], axis=1)
        rank[part][rows] = 1 + ahead
        if impostor_pairs is not None:
            impostor_pairs.add(scores.reshape(-1))
        if progress is not None:
            progress(part.stop, wanted.size)
    return Searched(genuine, other, rank, wanted, int(names.size))


def rank_rates(found: Searched, ranks: Sequence[int]) -> tuple[Measure, ...]:
    """The share of the mated probes whose right person is among the first k."""
    mated = found.mated
    return tuple(
        Measure(f"rank {k}", rate_of(found.rank[mated] <= k, found.people[mated])) for k in ranks
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
    genuine, strangers = _open_set(found)
    return rates_at(
        targets,
        genuine=genuine,
        highest=strangers,
        impostors=strangers.size,
        name="TPIR@FPIR",
        people=found.people[found.mated],
    )


def tpir_swing(found: Searched, target: float) -> tuple[float, float]:
    """How far TPIR may be off below and above because few probes set its threshold."""
    genuine, strangers = _open_set(found)
    count = allowed(target, strangers.size)
    return swing(genuine, strangers, count=count, impostors=strangers.size)


def _open_set(found: Searched) -> tuple[Scores, Scores]:
    """Scores of mated probes, -inf where someone else is first; those of the others, falling."""
    genuine = np.where(found.rank == 1, found.genuine, np.float32(-np.inf))[found.mated]
    return genuine, np.sort(found.other[~found.mated])[::-1]


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


def _person_scores(probes: Float32, gallery: Float32, starts: npt.NDArray[np.int64]) -> Float32:
    """(probes, people): the product itself, or the best over each person's images."""
    scores = probes @ gallery.T
    if len(gallery) == starts.size:
        return scores
    return np.maximum.reduceat(scores, starts, axis=1)
