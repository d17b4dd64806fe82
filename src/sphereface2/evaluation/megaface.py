"""MegaFace: FaceScrub probes found again among up to a million strangers, and verified.

Identification: every ordered pair of two images of one person is a trial; the one is the probe, the
other its only mate in a gallery that holds the distractors besides. Verification: the same pairs
are the genuine ones, every probe with every distractor the impostor ones. A distractor with the
mate's score stands before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.intervals import rate_of
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.results import ProtocolResult
from sphereface2.evaluation.strangers import scan
from sphereface2.evaluation.thresholds import Measure, Scores, kept_for, rates_at, thin_roc
from sphereface2.models.unit_rows import (
    Float32,
    Vectors,
    check_same_width,
    check_table,
    first_of,
    unit_rows,
)
from sphereface2.progress import Progress

Mask = npt.NDArray[np.bool_]
NoisyProbes = Literal["removed", "replaced by their identity's centre"]
REMOVED: NoisyProbes = "removed"
CENTRED: NoisyProbes = "replaced by their identity's centre"
SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
FPR_TARGETS = (1e-6, 1e-5, 1e-4)

_PAIRS = 65_536  # trials a block when ranks are counted


@dataclass(frozen=True)
class MegaFaceResult(ProtocolResult):
    """Rates of the FaceScrub trials against the distractors.

    sizes: distractors behind each of `rank_1` (without the noisy ones)
    cmc[k-1]: the rate at rank k against all distractors
    """

    probes: int
    people: int
    distractors: int
    noisy_probes: int
    noisy_distractors: int
    sizes: tuple[int, ...]
    rank_1: tuple[Measure, ...]
    cmc: tuple[float, ...]
    tpr: tuple[Measure, ...]
    roc: RocPoints

    @property
    def measures(self) -> tuple[Measure, ...]:
        return self.rank_1 + self.tpr


def megaface(
    probes: Vectors,
    people: npt.ArrayLike,
    distractors: Vectors,
    *,
    sizes: Sequence[int] = SIZES,
    fpr_targets: Sequence[float] = FPR_TARGETS,
    longest_rank: int = 100,
    noisy_probes: Mask | None = None,
    noisy_distractors: Mask | None = None,
    noisy_probes_are: NoisyProbes = REMOVED,
    name: str = "megaface",
    progress: Progress | None = None,
) -> MegaFaceResult:
    """Identification and verification in one pass over the distractors.

    distractors: (n, D), in the order of the list, best memory-mapped: they are read block by block
    sizes: numbers of distractors, each the first so many of the list; larger ones than there are
    count as all
    noisy_probes, noisy_distractors: what a clean list says is mislabelled; distractors are left out
    noisy_probes_are: "removed", or InsightFace's "replaced by their identity's centre", which makes
    the trial easy and so flatters the result
    """
    names = np.asarray(people)
    check_table(probes, source=f"{name} probes", rows=names.size)
    check_table(distractors, source=f"{name} distractors")
    check_same_width(probes, distractors, sources=("probes", "distractors"))
    dirty = _mask(noisy_probes, names.size, what=f"{name} probes")
    skipped = _mask(noisy_distractors, len(distractors), what=f"{name} distractors")
    unit = unit_rows(probes, source=f"{name} probes")
    if noisy_probes_are == CENTRED:
        unit = _centred(unit, names, dirty)
    elif noisy_probes_are == REMOVED:
        unit, names = unit[~dirty], names[~dirty]
    else:
        raise ValueError(
            f"noisy_probes_are must be '{REMOVED}' or '{CENTRED}', got '{noisy_probes_are}'"
        )
    left, right = same_person_pairs(names)
    if not left.size:
        raise ValueError(f"{name}: no person has two probe images; there is nothing to find again")
    reach = sorted({min(size, len(distractors)) for size in sizes} | {len(distractors)})
    impostors = unit.shape[0] * int(np.count_nonzero(~skipped))
    if not impostors:
        raise ValueError(f"{name}: no distractor is left")
    strangers = scan(
        unit,
        distractors,
        reach=reach,
        skipped=skipped,
        keep=longest_rank,
        keep_all=kept_for(fpr_targets, impostors),
        source=f"{name} distractors",
        progress=progress,
    )
    genuine = _pair_scores(unit, left, right)
    whose = names[left]
    clean = [int(np.count_nonzero(~skipped[:size])) for size in reach]
    shown = [number for number, size in enumerate(clean) if size]
    return MegaFaceResult(
        protocol=name,
        conventions=(
            "a trial: a probe, one other image of its person, and the distractors",
            "sizes: the first so many distractors of the list",
            "a tied distractor stands before the mate",
            "FPR: probe and distractor pairs at or above the threshold",
            f"noisy probes: {noisy_probes_are if dirty.any() else 'none listed'}",
            f"noisy distractors: {'left out' if skipped.any() else 'none listed'}",
        ),
        probes=len(unit),
        people=len(np.unique(names)),
        distractors=clean[-1],
        noisy_probes=int(np.count_nonzero(dirty)),
        noisy_distractors=int(np.count_nonzero(skipped)),
        sizes=tuple(clean[number] for number in shown),
        rank_1=tuple(
            Measure(
                f"rank 1, {clean[number]:,} distractors",
                rate_of(genuine > strangers.best[number][left], whose),
            )
            for number in shown
        ),
        cmc=_cmc(genuine, strangers.top, left),
        tpr=rates_at(
            fpr_targets,
            genuine=genuine,
            highest=strangers.highest,
            impostors=impostors,
            name="TPR@FPR",
            people=whose,
        ),
        roc=thin_roc(genuine=genuine, highest=strangers.highest, impostors=impostors),
    )


def same_person_pairs(
    people: npt.NDArray[Any],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Every ordered pair of two different images of one person."""
    order = np.argsort(people, kind="stable")
    _, counts = np.unique(people, return_counts=True)
    left, right = [], []
    for images in np.split(order, np.cumsum(counts)[:-1]):
        if images.size > 1:
            apart = ~np.eye(images.size, dtype=np.bool_)
            first, second = np.nonzero(apart)
            left.append(images[first])
            right.append(images[second])
    if not left:
        return np.empty(0, np.intp), np.empty(0, np.intp)
    return np.concatenate(left), np.concatenate(right)


def _cmc(genuine: Scores, top: Scores, left: npt.NDArray[np.intp]) -> tuple[float, ...]:
    """The share of trials with fewer than k distractors at or above the mate, for k = 1, 2, ..."""
    longest = top.shape[1]
    counts = np.zeros(longest + 1, dtype=np.int64)
    for start in range(0, genuine.size, _PAIRS):
        part = slice(start, start + _PAIRS)
        ahead = np.count_nonzero(top[left[part]] >= genuine[part, None], axis=1)
        counts += np.bincount(ahead, minlength=longest + 1)
    return tuple((np.cumsum(counts)[:longest] / genuine.size).tolist())


def _pair_scores(unit: Float32, left: npt.NDArray[np.intp], right: npt.NDArray[np.intp]) -> Scores:
    scores = np.empty(left.size, dtype=np.float32)
    for start in range(0, left.size, _PAIRS):
        part = slice(start, start + _PAIRS)
        scores[part] = np.einsum("nd,nd->n", unit[left[part]], unit[right[part]])
    return scores


def _centred(unit: Float32, people: npt.NDArray[Any], dirty: Mask) -> Float32:
    lost = np.setdiff1d(people[dirty], people[~dirty])
    if lost.size:
        raise ValueError(
            f"{lost.size:,} people have noisy probes only, so they have no centre "
            f"({first_of(lost.tolist())}); use noisy_probes_are='{REMOVED}'"
        )
    centred = unit.copy()
    for person in np.unique(people[dirty]):
        centre = unit[(people == person) & ~dirty].sum(axis=0)
        centred[(people == person) & dirty] = centre / np.linalg.norm(centre)
    return centred


def _mask(mask: Mask | None, count: int, *, what: str) -> Mask:
    if mask is None:
        return np.zeros(count, dtype=np.bool_)
    if mask.shape != (count,) or mask.dtype != np.bool_:
        raise ValueError(f"{what}: the mask of noisy ones must be {count:,} bools")
    return mask
