"""The results of an evaluation: frozen dataclasses that round-trip through JSON.

Plots, tables and reports read these and nothing else.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, ClassVar

from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.thresholds import SavedRate
from sphereface2.evaluation.uncertainty import (
    Interval,
    Rate,
)
from sphereface2.files import JsonResult
from sphereface2.training.result import ModelStep

# Names with a meaning: the pooled set, and the two baselines that every report shows.
COMBINED = "combined"
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

    def results_of(self, model: str | None = None) -> list[VerificationResult]:
        """What a model, by default the subject, reached on each set, in the order of `sets`."""
        found = (self.find(model or self.model, name) for name in self.sets)
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
