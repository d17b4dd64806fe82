"""1:1 verification: from scored pairs to results that live as JSON.

The line is `score_pairs` (embeddings -> cosines), optionally `combine` (pool several sets), then
`measure` (cosines -> result). No model is seen here, so saved embeddings (.npy) can be evaluated
as well. Plots, tables and reports read the results and nothing else.
"""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any, ClassVar

import numpy as np

from sphereface2.evaluation.metrics import (
    BoolArray,
    FloatArray,
    RocPoints,
    area_under_curve,
    best_threshold_accuracy,
    equal_error_rate,
    fold_accuracy,
)
from sphereface2.evaluation.pair_scores import COMBINED, PairScores, combine
from sphereface2.evaluation.thresholds import SavedRate, Scores, Trials, tar_at_fars
from sphereface2.evaluation.uncertainty import (
    OVER_PEOPLE,
    REPLICATES,
    Interval,
    Rate,
    logit_normal,
    percentiles,
    rate_of,
    replicate,
    replicated_shares,
    wider,
    wilson,
)
from sphereface2.files import JsonResult
from sphereface2.training.result import ModelStep

# The two baselines that every report shows.
RAW_PIXELS = "raw pixels"
UNTRAINED = "untrained network"


@dataclass(frozen=True)
class RocBand:
    """The interval of the TAR over the FAR, from where enough impostor pairs stand behind it."""

    far: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class ScoreHistogram:
    """How many genuine and impostor pairs score in each bin; bin i is edges[i] to edges[i+1]."""

    edges: tuple[float, ...]
    genuine: tuple[int, ...]
    impostor: tuple[int, ...]


@dataclass(frozen=True)
class ScoredPair:
    """One pair of one set: its number in the pair list, its two image numbers, its score."""

    set_name: str
    pair: int
    left: int
    right: int
    same: bool
    score: float


@dataclass(frozen=True)
class Slice:
    """The pairs that have one value of an attribute, judged at the thresholds of the whole set.

    true_accepts, false_accepts: None where the slice has no genuine or no impostor pair
    """

    attribute: str
    value: str
    right: Rate
    true_accepts: Rate | None
    false_accepts: Rate | None


@dataclass(frozen=True)
class VerificationResult:
    """What one model reached on one verification set; rates are shares between 0 and 1.

    accuracy, accuracy_std: LFW protocol, mean and population deviation of `fold_accuracies`
    threshold: mean of `fold_thresholds`
    best_threshold_accuracy: one threshold for all pairs, chosen on these very pairs
    hardest_genuine, hardest_impostor: the lowest genuine and highest impostor scores, worst first
    people: how many different people the pairs show, where that is known
    missing_images, skipped_pairs: images without an embedding, and the pairs left out for them
    slices: the decisions by attributes of the pairs, where those are known
    ..._interval, roc_band: how sure the numbers are; None where that was not asked for
    """

    set_name: str
    model: str
    pairs: int
    genuine: int
    impostor: int
    accuracy: float
    accuracy_std: float
    fold_accuracies: tuple[float, ...]
    fold_thresholds: tuple[float, ...]
    threshold: float
    best_threshold_accuracy: float
    best_threshold: float
    eer: float
    auc: float
    tar_at_far: tuple[SavedRate, ...]
    roc: RocPoints
    histogram: ScoreHistogram
    hardest_genuine: tuple[ScoredPair, ...]
    hardest_impostor: tuple[ScoredPair, ...]
    people: int | None = None
    accuracy_interval: Interval | None = None
    best_threshold_interval: Interval | None = None
    eer_interval: Interval | None = None
    auc_interval: Interval | None = None
    roc_band: RocBand | None = None
    slices: tuple[Slice, ...] = ()
    missing_images: int = 0
    skipped_pairs: int = 0


@dataclass(frozen=True)
class EvaluationResult(JsonResult):
    """The results of every (model, set) of one evaluation; the first row's model is its subject.

    model_step: which step of its training the subject is; None where that is not known
    """

    IS: ClassVar[str] = "an evaluation result"
    WRITTEN_BY: ClassVar[str] = "sphereface2 evaluate"

    title: str
    rows: tuple[VerificationResult, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    model_step: ModelStep | None = None
    notes: tuple[str, ...] = ()
    """What is odd about the sets, a sentence each."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("an evaluation needs the result of at least one verification set")

    @property
    def model(self) -> str:
        return self.rows[0].model

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.model for row in self.rows))

    @property
    def sets(self) -> tuple[str, ...]:
        """The names of the sets in order, the combined one last."""
        names = dict.fromkeys(row.set_name for row in self.rows)
        return tuple(sorted(names, key=lambda name: name == COMBINED))

    @property
    def step_in_words(self) -> str:
        """Which step of its training the subject is; nothing where that is not known."""
        return "" if self.model_step is None else self.model_step.in_words(self.sets)

    def results_of(self) -> list[VerificationResult]:
        """What the subject reached on each set, in the order of `sets`."""
        found = (self.find(self.model, name) for name in self.sets)
        return [row for row in found if row is not None]

    def find(self, model: str, set_name: str) -> VerificationResult | None:
        matches = (r for r in self.rows if r.model == model and r.set_name == set_name)
        return next(matches, None)


def note_on_flip(flip: bool, of_model: bool) -> list[str]:
    """That mirror images were added or left out, where the model itself does otherwise."""
    if flip == of_model:
        return []
    said, by_itself = ("with", "without") if flip else ("without", "with")
    return [f"scored {said} mirror images, though this model embeds {by_itself} them by itself"]


def installed_versions() -> dict[str, str]:
    """What a result was made with: Python and the packages that touch the numbers."""
    versions = {"python": platform.python_version()}
    for package in ("sphereface2", "torch", "numpy", "opencv-python-headless"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "unknown"
    return versions


# -- from scored pairs to a result -----------------------------------------------------------------

FAR_TARGETS = (1e-1, 1e-2, 1e-3)
_HARDEST = 8  # of each kind
_BINS = 40
_BAND_POINTS = 40
_BAND_START = 4  # impostor pairs: with fewer above it, a threshold has no upper bound


def measure(
    scored: PairScores,
    *,
    model: str,
    far_targets: Sequence[float] = FAR_TARGETS,
    replicates: int = REPLICATES,
) -> VerificationResult:
    """Every number of one set from its scored pairs.

    The intervals come from `replicates` bootstrap replicates, over people where the pairs know
    them; 0 leaves all intervals out, which is many times faster.
    """
    scores, same = scored.scores, scored.same
    per_fold = fold_accuracy(scores, same, scored.folds)
    best_accuracy, best_threshold = best_threshold_accuracy(scores, same)
    right = decided_right(scored)
    genuine = int(np.count_nonzero(same))
    result = VerificationResult(
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
        best_threshold_accuracy=best_accuracy,
        best_threshold=best_threshold,
        eer=equal_error_rate(scores, same),
        auc=area_under_curve(scores, same),
        tar_at_far=tar_at_fars(scores, same, far_targets),
        roc=Trials.of(scores[same], scores[~same]).thin_roc(),
        histogram=score_histogram(scores[same], scores[~same]),
        hardest_genuine=_hardest(scored, genuine=True),
        hardest_impostor=_hardest(scored, genuine=False),
        people=None if scored.people is None else int(np.unique(scored.people).size),
        slices=slices(scored, right, replicates=replicates),
        missing_images=scored.missing_images,
        skipped_pairs=scored.skipped_pairs,
    )
    return _with_intervals(result, scored, right, replicates) if replicates else result


def measure_all(
    sets: Sequence[PairScores], *, model: str, replicates: int = REPLICATES
) -> list[VerificationResult]:
    """One result per set and, if there are several sets, one of all of them combined."""
    results = [measure(scored, model=model, replicates=replicates) for scored in sets]
    if len(sets) > 1:
        results.append(measure(combine(sets), model=model, replicates=replicates))
    return results


def decided_right(scored: PairScores) -> BoolArray:
    """Whether each pair was decided right, at the threshold that its fold was given."""
    per_fold = fold_accuracy(scored.scores, scored.same, scored.folds)
    number = np.unique(scored.folds, return_inverse=True)[1]
    thresholds = np.asarray(per_fold.thresholds)[number]
    right: BoolArray = (scored.scores >= thresholds) == scored.same
    return right


def _with_intervals(
    result: VerificationResult, scored: PairScores, right: BoolArray, replicates: int
) -> VerificationResult:
    scores, same = scored.scores, scored.same
    targets = [point.target for point in result.tar_at_far]
    far = np.geomspace(min(1.0, _BAND_START / result.impostor), 1.0, _BAND_POINTS)
    best = (scores >= result.best_threshold) == same
    (drawn,) = replicate(
        [(scores, np.stack([right, best], axis=1))],
        same,
        scored.people,
        targets=[] if scored.people is None else [*targets, *far.tolist()],
        replicates=replicates,
    )

    def share(values: FloatArray, hits: BoolArray) -> Interval:
        # Pairs alone: independent trials, so that nothing needs to be drawn.
        alone = rate_of(hits, None).interval
        return alone if scored.people is None else wider(drawn.interval(values), alone)

    rates = Trials.of(scores[same], scores[~same]).rates_at([*targets, *far], name="TAR@FAR")
    tars = [each.rate.interval for each in rates]
    if scored.people is not None:
        tars = [
            wider(drawn.interval(values), alone)
            for values, alone in zip(drawn.tar.T, tars, strict=True)
        ]
    points = tuple(
        replace(point, interval=interval) if point.resolved else point
        for point, interval in zip(result.tar_at_far, tars, strict=False)
    )
    band = tars[len(targets) :]
    # As many trials as would give the EER its variance if FAR and FRR had equal slopes.
    trials = round(4 * result.genuine * result.impostor / result.pairs)
    errors = wilson(round(result.eer * trials), trials).interval
    finest = 1.0 / (result.genuine * result.impostor)
    area = logit_normal(result.auc, drawn.auc, method=drawn.method, finest=finest)
    if result.auc in (0.0, 1.0):
        fewest = min(result.genuine, result.impostor)
        area = wider(area, wilson(round(result.auc * fewest), fewest).interval)
    return replace(
        result,
        accuracy_interval=share(drawn.accuracy[:, 0], right),
        best_threshold_interval=share(drawn.accuracy[:, 1], best),
        eer_interval=wider(drawn.interval(drawn.eer), errors),
        auc_interval=area,
        tar_at_far=points,
        roc_band=RocBand(
            far=tuple(far.tolist()),
            low=tuple(interval.low for interval in band),
            high=tuple(interval.high for interval in band),
        ),
    )


def score_histogram(genuine: Scores, impostor: Scores) -> ScoreHistogram:
    """How many pairs of each kind score where, in forty bins."""
    lowest = float(min(genuine.min(), impostor.min()))
    highest = float(max(genuine.max(), impostor.max()))
    # Ends on whole twentieths, so that the edges are round and the outermost score is inside.
    low, high = math.floor(lowest * 20) / 20, math.ceil(highest * 20) / 20
    edges = np.linspace(low, high if high > low else low + 0.05, _BINS + 1)
    counts = (np.histogram(kind, edges)[0] for kind in (genuine, impostor))
    return ScoreHistogram(tuple(edges.tolist()), *(tuple(each.tolist()) for each in counts))


def _hardest(scored: PairScores, *, genuine: bool) -> tuple[ScoredPair, ...]:
    numbers = np.flatnonzero(scored.same == genuine)
    scores = scored.scores[numbers]
    worst = numbers[np.argsort(scores if genuine else -scores, kind="stable")[:_HARDEST]]
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


def slices(scored: PairScores, right: BoolArray, *, replicates: int) -> tuple[Slice, ...]:
    """The slices of every attribute, by value; `right` says which pairs were decided right."""
    same, people = scored.same, scored.people

    def rate(counted: BoolArray, here: BoolArray) -> Rate:
        plain = rate_of(counted[here], None)
        if people is None or not replicates:
            return plain
        shares = replicated_shares(counted[here], people[here], replicates=replicates)
        interval = wider(percentiles(shares, method=OVER_PEOPLE), plain.interval)
        return replace(plain, interval=interval)

    found = []
    for attribute, values in scored.attributes.items():
        words = np.asarray(values, dtype=np.str_)
        if words.shape != same.shape:
            raise ValueError(
                f"attribute '{attribute}': {same.size} pairs, but values of the shape {words.shape}"
            )
        for value in np.unique(words[words != ""]).tolist():
            here = words == value
            accepted = (
                rate(counted, pairs) if pairs.any() else None
                for counted, pairs in ((right, here & same), (~right, here & ~same))
            )
            found.append(Slice(attribute, value, rate(right, here), *accepted))
    return tuple(found)
