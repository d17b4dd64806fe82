"""IJB 1:1: TAR at FAR over millions of template pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.results import ScoreHistogram
from sphereface2.evaluation.templates import Ids, Templates
from sphereface2.evaluation.thresholds import Measure, Scores, rates_at, thin_roc
from sphereface2.evaluation.views import Histogram, Part, ProtocolResult, Roc, View, strictest
from sphereface2.progress import Progress

FAR_TARGETS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
_HEADLINE = 1e-4  # the FAR that papers quote first

_SCORES = 1 << 23  # scores a block: 32 MB
_CHUNK = 16_384  # pairs a chunk where the pair list is too sparse for a matrix product
_SPARSE = 64  # products a pair beyond which it is


@dataclass(frozen=True)
class IjbVerification(ProtocolResult):
    """TAR at FAR over the given template pairs."""

    templates: int
    genuine: int
    impostors: int
    tar_at_far: tuple[Measure, ...]
    roc: RocPoints
    histogram: ScoreHistogram

    def view(self) -> View:
        part = Part(
            self.protocol,
            measures=self.tar_at_far,
            headline=strictest(self.tar_at_far, target=_HEADLINE),
            rocs=[Roc(self.roc, self.tar_at_far, self.genuine, self.impostors)],
            histograms=[Histogram(self.histogram, self.tar_at_far)],
            conventions=self.conventions,
        )
        return View([part])


def verify_templates(
    templates: Templates,
    pairs: Ids,
    same: npt.NDArray[np.bool_],
    *,
    name: str,
    far_targets: Sequence[float] = FAR_TARGETS,
    people: tuple[Ids, Ids] | None = None,
    progress: Progress | None = None,
) -> IjbVerification:
    """1:1 over (m, 2) template ids; `people` is (template ids, their people) where known."""
    genuine_count = int(np.count_nonzero(same))
    impostors = len(same) - genuine_count
    if len(pairs) != len(same) or not genuine_count or not impostors:
        raise ValueError(
            f"{name}: {len(pairs):,} pairs with {genuine_count:,} genuine and {impostors:,} "
            "impostor labels; verification needs a label each, and both kinds"
        )
    left, right = (templates.where(pairs[:, side], source=name) for side in (0, 1))
    scores = pair_scores(templates, left, right, progress=progress)
    whose = _whose(templates, left[same], people)
    genuine = scores[same]
    highest = np.sort(scores[~same])[::-1]
    return IjbVerification(
        protocol=name,
        conventions=("accepted if cosine >= threshold", "TAR where FAR does not exceed the target"),
        templates=len(templates.ids),
        genuine=genuine_count,
        impostors=impostors,
        tar_at_far=rates_at(
            far_targets,
            genuine=genuine,
            highest=highest,
            impostors=impostors,
            name="TAR@FAR",
            people=whose,
        ),
        roc=thin_roc(genuine=genuine, highest=highest, impostors=impostors),
        histogram=_histogram(genuine, highest),
    )


def pair_scores(
    templates: Templates,
    left: npt.NDArray[np.int32],
    right: npt.NDArray[np.int32],
    *,
    progress: Progress | None = None,
) -> Scores:
    """The cosine of each pair of rows, in float32 and bounded memory.

    IJB pairs few left templates with many right ones, so blocks of the full matrix product and a
    look-up are some hundred times faster than a dot product a pair. Sparse lists go pair by pair.
    """
    vectors, count = templates.vectors, len(left)
    scores = np.empty(count, dtype=np.float32)
    lefts, left_codes = _codes(left, len(vectors))
    rights, right_codes = _codes(right, len(vectors))
    if lefts.size * rights.size > _SPARSE * count:
        for start in range(0, count, _CHUNK):
            part = slice(start, start + _CHUNK)
            scores[part] = np.einsum("nd,nd->n", vectors[left[part]], vectors[right[part]])
            if progress is not None:
                progress(min(start + _CHUNK, count), count)
        return np.clip(scores, -1.0, 1.0, out=scores)
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
        if progress is not None:
            progress(int(bounds[stop]), count)
    return np.clip(scores, -1.0, 1.0, out=scores)  # rounding may step over


def _whose(
    templates: Templates, rows: npt.NDArray[np.int32], people: tuple[Ids, Ids] | None
) -> npt.NDArray[Any] | None:
    """The person of each genuine pair; None if that of any is unknown."""
    if people is None:
        return None
    ids, names = people
    order = np.argsort(ids, kind="stable")
    wanted = templates.ids[rows]
    places = np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)
    if not np.array_equal(ids[order][places], wanted):
        return None
    return np.asarray(names)[order][places]


def _codes(
    rows: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint16] | npt.NDArray[np.uint32]]:
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


def _histogram(genuine: Scores, impostor: Scores, *, bins: int = 40) -> ScoreHistogram:
    low = min(float(genuine.min()), float(impostor[-1]))
    high = max(float(genuine.max()), float(impostor[0]))
    low, high = math.floor(low * 20) / 20, math.ceil(high * 20) / 20
    edges = np.linspace(low, high if high > low else low + 0.05, bins + 1)
    # Sorted already, so the bins are found by search instead of a pass over all pairs.
    rising = impostor[::-1]
    cuts = np.searchsorted(rising, edges.astype(np.float32), side="left")
    cuts[-1] = rising.size
    return ScoreHistogram(
        tuple(edges.tolist()),
        tuple(np.histogram(genuine, edges)[0].tolist()),
        tuple(np.diff(cuts).tolist()),
    )
