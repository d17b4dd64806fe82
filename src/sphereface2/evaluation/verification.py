"""1:1 verification: from embeddings and a pair list to results that live as JSON.

The line is `score_pairs` (embeddings -> cosines), optionally `combine` (pool several sets), then
`measure` (cosines -> result); `verify` is the first and the last in one call. No model is seen
here, so saved embeddings (.npy) can be evaluated as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.metrics import (
    BoolArray,
    FloatArray,
    IntArray,
    RocCurve,
    area_under_curve,
    best_threshold_accuracy,
    equal_error_rate,
    fold_accuracy,
    roc_curve,
    tar_at_fars,
)
from sphereface2.evaluation.results import (
    COMBINED,
    RocPoints,
    ScoredPair,
    ScoreHistogram,
    VerificationResult,
)

FAR_TARGETS = (1e-1, 1e-2, 1e-3)
_BINS = 40
_CHUNK = 16_384  # pairs a chunk: the gathered embeddings stay small however long the list is


@dataclass(frozen=True, eq=False)
class PairScores:
    """The scored pairs of one set: all that `measure` needs, before any of it is thinned.

    pairs: (n, 2) image numbers; same: (n,) one person; folds: (n,); scores: (n,) cosines
    sources: (n,) the set that each pair comes from (differs from `name` once sets are pooled)
    positions: (n,) the number of each pair in that set's list
    """

    name: str
    scores: FloatArray
    pairs: IntArray
    same: BoolArray
    folds: IntArray
    sources: npt.NDArray[np.str_]
    positions: IntArray


def verify(
    name: str,
    embeddings: npt.NDArray[np.floating[Any]],
    pairs: npt.ArrayLike,
    same: npt.ArrayLike,
    folds: npt.ArrayLike,
    *,
    model: str,
) -> VerificationResult:
    """Score the pairs of one set and measure the scores."""
    return measure(score_pairs(name, embeddings, pairs, same, folds), model=model)


def score_pairs(
    name: str,
    embeddings: npt.NDArray[np.floating[Any]],
    pairs: npt.ArrayLike,
    same: npt.ArrayLike,
    folds: npt.ArrayLike,
) -> PairScores:
    """The cosine of the two embeddings of each pair; (N, D) embeddings need not be unit vectors."""
    pair_numbers = np.asarray(pairs, dtype=np.int64)
    kinds = np.asarray(same, dtype=np.bool_)
    fold_numbers = np.asarray(folds, dtype=np.int64)
    _check_pairs(name, pair_numbers, kinds, fold_numbers)
    norms = _checked_norms(name, embeddings)
    unknown = (pair_numbers.min(axis=1) < 0) | (pair_numbers.max(axis=1) >= len(embeddings))
    _refuse(name, "pairs", unknown, f"name an image beyond the {len(embeddings)} there")
    cosines = np.empty(len(kinds), dtype=np.float64)
    for start in range(0, len(kinds), _CHUNK):
        part = slice(start, start + _CHUNK)
        left, right = pair_numbers[part].T
        dots = np.einsum("nd,nd->n", embeddings[left], embeddings[right], dtype=np.float64)
        cosines[part] = dots / (norms[left] * norms[right])
    return PairScores(
        name=name,
        scores=np.clip(cosines, -1.0, 1.0),  # rounding may step over
        pairs=pair_numbers,
        same=kinds,
        folds=fold_numbers,
        sources=np.full(len(kinds), name),
        positions=np.arange(len(kinds), dtype=np.int64),
    )


def combine(sets: Sequence[PairScores], *, name: str = COMBINED) -> PairScores:
    """All pairs of the sets pooled; fold i of the pool is fold i of every set."""
    if not sets:
        raise ValueError("there is no verification set to combine")
    return PairScores(
        name=name,
        scores=np.concatenate([part.scores for part in sets]),
        pairs=np.concatenate([part.pairs for part in sets]),
        same=np.concatenate([part.same for part in sets]),
        folds=np.concatenate([part.folds for part in sets]),
        sources=np.concatenate([part.sources for part in sets]),
        positions=np.concatenate([part.positions for part in sets]),
    )


def measure(
    scored: PairScores,
    *,
    model: str,
    far_targets: Sequence[float] = FAR_TARGETS,
    hardest: int = 8,
) -> VerificationResult:
    """Every number of one set from its scored pairs."""
    scores, same = scored.scores, scored.same
    per_fold = fold_accuracy(scores, same, scored.folds)
    best = best_threshold_accuracy(scores, same)
    genuine = int(np.count_nonzero(same))
    return VerificationResult(
        set_name=scored.name,
        model=model,
        pairs=len(same),
        genuine=genuine,
        impostor=len(same) - genuine,
        accuracy=per_fold.mean,
        accuracy_std=per_fold.std,
        fold_accuracies=per_fold.accuracies,
        fold_thresholds=per_fold.thresholds,
        threshold=per_fold.mean_threshold,
        best_threshold_accuracy=best.accuracy,
        best_threshold=best.threshold,
        eer=equal_error_rate(scores, same),
        auc=area_under_curve(scores, same),
        tar_at_far=tar_at_fars(scores, same, far_targets),
        roc=_thin(roc_curve(scores, same)),
        histogram=_histogram(scores, same),
        hardest_genuine=_hardest(scored, genuine=True, count=hardest),
        hardest_impostor=_hardest(scored, genuine=False, count=hardest),
    )


def measure_all(sets: Sequence[PairScores], *, model: str) -> list[VerificationResult]:
    """A result a set and, if there are several sets, one of all of them combined."""
    results = [measure(scored, model=model) for scored in sets]
    if len(sets) > 1:
        results.append(measure(combine(sets), model=model))
    return results


def _thin(roc: RocCurve) -> RocPoints:
    """At most 400 points: 250 spread over log FAR, 140 over TAR, the ends, and the last FAR 0."""
    far, tar = roc.far, roc.tar
    steps = np.geomspace(1.0 / roc.impostors, 1.0, 250)
    by_far = np.searchsorted(far, steps * (1.0 + 1e-12), side="right") - 1
    by_tar = np.searchsorted(tar, np.linspace(0.0, 1.0, 140), side="left")
    last_zero = np.searchsorted(far, 0.0, side="right") - 1
    kept = np.unique(np.concatenate([[0, last_zero, far.size - 1], by_far, by_tar]))
    return RocPoints(
        far=tuple(far[kept].tolist()),
        tar=tuple(tar[kept].tolist()),
        threshold=tuple(roc.thresholds[kept].tolist()),
    )


def _histogram(scores: FloatArray, same: BoolArray) -> ScoreHistogram:
    # Ends on whole twentieths, so that the edges are round and the outermost score is inside.
    low, high = np.floor(scores.min() * 20) / 20, np.ceil(scores.max() * 20) / 20
    edges = np.linspace(low, high if high > low else low + 0.05, _BINS + 1)
    genuine, impostor = (np.histogram(scores[kind], edges)[0] for kind in (same, ~same))
    return ScoreHistogram(tuple(edges.tolist()), tuple(genuine.tolist()), tuple(impostor.tolist()))


def _hardest(scored: PairScores, *, genuine: bool, count: int) -> tuple[ScoredPair, ...]:
    numbers = np.flatnonzero(scored.same == genuine)
    scores = scored.scores[numbers]
    worst = numbers[np.argsort(scores if genuine else -scores, kind="stable")[:count]]
    return tuple(
        ScoredPair(
            set_name=str(scored.sources[i]),
            pair=int(scored.positions[i]),
            left=int(scored.pairs[i, 0]),
            right=int(scored.pairs[i, 1]),
            same=genuine,
            score=float(scored.scores[i]),
        )
        for i in worst
    )


def _check_pairs(name: str, pairs: IntArray, same: BoolArray, folds: IntArray) -> None:
    count = len(same)
    if pairs.shape != (count, 2) or same.ndim != 1 or folds.shape != (count,):
        raise ValueError(
            f"set '{name}': pairs, same and folds must have the shapes (n, 2), (n,) and (n,), got "
            f"{pairs.shape}, {same.shape} and {folds.shape}"
        )
    genuine = int(np.count_nonzero(same))
    if genuine in (0, count):
        raise ValueError(
            f"set '{name}' has {genuine} genuine and {count - genuine} impostor pairs; "
            "verification needs both kinds"
        )
    names = np.unique(folds)
    if names.size < 2:
        raise ValueError(
            f"set '{name}' has one fold only; the LFW protocol chooses the threshold of a fold on "
            "the others, so give at least two (it uses ten)"
        )
    one_kind = [int(f) for f in names if np.unique(same[folds == f]).size == 1]
    if one_kind:
        raise ValueError(
            f"set '{name}': {len(one_kind)} of {names.size} folds hold genuine or impostor pairs "
            f"only ({_first(one_kind)}); spread both kinds over the folds"
        )


def _checked_norms(name: str, embeddings: npt.NDArray[np.floating[Any]]) -> FloatArray:
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(
            f"set '{name}': embeddings must be a table of images × dimensions, got the shape "
            f"{embeddings.shape}"
        )
    if not np.issubdtype(embeddings.dtype, np.floating):
        raise ValueError(f"set '{name}': embeddings must be floats, got {embeddings.dtype}")
    _refuse(name, "embeddings", ~np.isfinite(embeddings).all(axis=1), "are not finite")
    squares = np.einsum("nd,nd->n", embeddings, embeddings, dtype=np.float64)
    norms: FloatArray = np.sqrt(squares)
    _refuse(name, "embeddings", norms == 0, "are zero and so have no direction")
    return norms


def _refuse(name: str, things: str, faulty: BoolArray, fault: str) -> None:
    numbers = np.flatnonzero(faulty)
    if numbers.size:
        raise ValueError(
            f"set '{name}': {numbers.size} of {faulty.size} {things} {fault} "
            f"(number {_first(numbers.tolist())})"
        )


def _first(numbers: Sequence[int], *, shown: int = 5) -> str:
    listing = ", ".join(str(number) for number in numbers[:shown])
    return listing + (", ..." if len(numbers) > shown else "")
