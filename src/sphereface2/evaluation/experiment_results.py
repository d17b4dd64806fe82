"""What experiments of many runs result in: sweeps, ROC over seeds, speed over ranks, features."""

import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.verification import RocBand, ScoreHistogram
from sphereface2.files import JsonResult
from sphereface2.training.result import ModelStep

Vectors = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class LearnedFeatures(JsonResult):
    """The features of all training images and the binary classifiers that drew them apart.

    features: (N, D), unit rows; the sphere of the loss has the radius `radius`
    labels: (N,), the person of each image
    classifiers: (K, D), unit rows W_i
    bias, radius, margin, sharpness: b, r, m and t of the loss
    """

    IS: ClassVar[str] = "a set of learned features"
    WRITTEN_BY: ClassVar[str] = "sphereface2 reproduce"

    features: tuple[tuple[float, ...], ...]
    labels: tuple[int, ...]
    classifiers: tuple[tuple[float, ...], ...]
    bias: float
    radius: float
    margin: float
    sharpness: float = 1.0

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels for {len(self.features)} features")
        if len({len(row) for row in (*self.features, *self.classifiers)}) != 1:
            raise ValueError("features and classifiers must all have the same dimension")

    @property
    def dim(self) -> int:
        return len(self.classifiers[0])

    @property
    def people(self) -> int:
        return len(self.classifiers)

    @property
    def boundaries(self) -> tuple[float, float, float]:
        """cos θ on the decision boundaries (1), (2) and (3) of every class.

        (1) r(g(cos θ) - m) + b = 0 for the positives, (2) r·g(cos θ) + b = 0 between the two,
        (3) r(g(cos θ) + m) + b = 0 for the negatives. Above 1 or at -1: off the sphere.
        """
        threshold = -self.bias / self.radius
        positive, baseline, negative = (
            # cos θ with g(cos θ) = 2((cos θ + 1)/2)^t - 1 = threshold ± m
            2 * max((threshold + side * self.margin + 1) / 2, 0.0) ** (1 / self.sharpness) - 1
            for side in (1, 0, -1)
        )
        return positive, baseline, negative

    @property
    def induced_margin(self) -> float:
        """What the loss asks for between the two sides of a class: from boundary (3) to (1)."""
        positive, _, negative = self.boundaries
        return positive - negative

    def gaps(self) -> list[float]:
        """The empirical margin of each classifier, below 0 where its two sides overlap.

        It is the lowest cosine of the person's own images less the highest of the others.
        """
        cosines = np.asarray(self.features) @ np.asarray(self.classifiers).T
        labels = np.asarray(self.labels)
        return [
            float(each[labels == person].min() - each[labels != person].max())
            for person, each in enumerate(cosines.T)
        ]


def plain_rows(vectors: Vectors) -> tuple[tuple[float, ...], ...]:
    """Vectors as unit rows of plain numbers, with as many digits as a picture can show."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return tuple(tuple(round(float(value), 6) for value in row) for row in unit)


# The result of the parallelisation measurement: images per second of heads over ranks.


@dataclass(frozen=True)
class ParallelRun:
    """One head on one number of ranks.

    seconds: of a whole training step of the head, one entry per repeat
    exchanges, bytes_sent: per step and rank; how often it waits for the others, and what it sends
    """

    method: str
    ranks: int
    seconds: tuple[float, ...]
    exchanges: float = 0.0
    bytes_sent: float = 0.0


@dataclass(frozen=True)
class ParallelResult(JsonResult):
    """All heads on all numbers of ranks; the batch is one batch, shared out over the ranks.

    device: what a rank computes on, cpu or cuda; threads: of a rank on the cpu
    machine: what it ran on, in words
    """

    IS: ClassVar[str] = "the result of a parallelisation measurement"
    WRITTEN_BY: ClassVar[str] = "sphereface2 reproduce"

    identities: int
    dim: int
    batch: int
    device: str
    threads: int
    runs: tuple[ParallelRun, ...]
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.method for run in self.runs))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({run.ranks for run in self.runs}))

    def of(self, method: str) -> tuple[ParallelRun, ...]:
        """The runs of one head by rising numbers of ranks."""
        runs = [run for run in self.runs if run.method == method]
        return tuple(sorted(runs, key=lambda run: run.ranks))

    def images_per_second(self, run: ParallelRun) -> float:
        """By the median step."""
        return self.batch / statistics.median(run.seconds)

    def every_rate(self, run: ParallelRun) -> list[float]:
        """Images per second by every step that was timed."""
        return [self.batch / seconds for seconds in run.seconds]

    def speed_up(self, run: ParallelRun) -> float:
        """How many times the images per second of the same head on the fewest ranks."""
        return self.images_per_second(run) / self.images_per_second(self.of(run.method)[0])


# The ROC of a method over the seeds that it was trained with: their mean and their deviation.


@dataclass(frozen=True)
class MethodRoc:
    """The curves of one row of a table, one per seed; all over the same impostor pairs."""

    label: str
    rocs: tuple[RocPoints, ...]
    impostors: int


def mean_roc(seeds: Sequence[RocPoints]) -> RocPoints:
    """The mean TAR at every FAR that occurs, from 0 on; its points have no thresholds."""
    places = _places(seeds)
    means = [statistics.fmean(tar_at(roc, far) for roc in seeds) for far in places]
    return RocPoints(far=tuple(places), tar=tuple(means), threshold=())


def roc_band(seeds: Sequence[RocPoints], *, impostors: int) -> RocBand | None:
    """The mean less and plus the sample deviation, from one impostor on; None for a single seed."""
    if len(seeds) < 2:
        return None
    places = [far for far in _places(seeds) if far >= 1 / impostors]
    tars = [[tar_at(roc, far) for roc in seeds] for far in places]
    spread = [(statistics.fmean(some), statistics.stdev(some)) for some in tars]
    return RocBand(
        far=tuple(places),
        low=tuple(max(0.0, mean - wide) for mean, wide in spread),
        high=tuple(min(1.0, mean + wide) for mean, wide in spread),
    )


def tar_at(roc: RocPoints, far: float) -> float:
    """The TAR of the last point that does not exceed this FAR."""
    place = bisect_right(roc.far, far)
    return roc.tar[place - 1] if place else 0.0


def _places(seeds: Sequence[RocPoints]) -> list[float]:
    places = {0.0, *(far for roc in seeds for far in roc.far)}
    # At higher FARs every genuine pair is still accepted; a curve that was cut off ends there.
    if all(tar_at(roc, 1.0) == 1.0 for roc in seeds):
        places.add(1.0)
    return sorted(places)


# How much the scores of genuine and of impostor pairs lie over each other.


def overlap(histogram: ScoreHistogram) -> float:
    """The share that the genuine and the impostor scores have in common, from 0 to 1."""
    genuine, impostor = shares(histogram.genuine), shares(histogram.impostor)
    return sum(min(pair) for pair in zip(genuine, impostor, strict=True))


def shares(counts: Sequence[int]) -> list[float]:
    """Each count as a share of all; nothing but zeros if there are none."""
    total = max(1, sum(counts))
    return [count / total for count in counts]


# The result of a sweep: for each setting what its seeds reached, beside what the paper printed.
#
# Tables, pages and figures read this and nothing else.


@dataclass(frozen=True)
class SeedRun:
    """One training of one setting.

    values: column -> number, in percent where the column is a rate; empty if the run failed
    folder: the run folder, relative to the folder of all runs
    error: one sentence if the run failed
    model_step: which step of the training was measured; None where that is not known
    """

    seed: int
    folder: str
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    model_step: ModelStep | None = None


@dataclass(frozen=True)
class SweepRow:
    """One setting: what was asked for, the runs that answer it, and the paper's answer.

    method: the head's name, for the colour
    overrides, command: what trains one seed of this setting by hand
    config: the YAML of the resolved config, of the first seed, to be read
    published: column of this sweep -> the paper's number; empty if the paper has no such row
    settings: dotted key -> value, of every setting in which rows of the sweep differ
    drawn_as: what a figure calls the row, if not by its label
    """

    label: str
    method: str
    overrides: tuple[str, ...]
    command: str
    config: str
    runs: tuple[SeedRun, ...]
    published: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    drawn_as: str = ""

    def number(self, setting: str) -> float | None:
        """The value of a setting that is a number."""
        value = self.settings.get(setting)
        return float(value) if isinstance(value, int | float) else None

    def numbers(self, column: str) -> list[float]:
        """The values of all seeds that have one."""
        return [run.values[column] for run in self.runs if column in run.values]

    def mean(self, column: str) -> float | None:
        numbers = self.numbers(column)
        return statistics.fmean(numbers) if numbers else None

    def deviation(self, column: str) -> float | None:
        """The sample standard deviation over seeds, which one seed does not have."""
        numbers = self.numbers(column)
        return statistics.stdev(numbers) if len(numbers) > 1 else None

    def standard_error(self, column: str) -> float | None:
        deviation = self.deviation(column)
        return None if deviation is None else deviation / math.sqrt(len(self.numbers(column)))


@dataclass(frozen=True)
class SweepFigure:
    """How a sweep is drawn.

    kind: "rows": a row per setting; "ladder": also what each adds to the one before; "noise": over
        the share of wrong labels; "values": over settings that are numbers
    over, by: of "values", the settings on the level axes and the one that separates lines
    """

    kind: Literal["rows", "ladder", "noise", "values"] = "rows"
    over: tuple[str, ...] = ()
    by: str = ""


@dataclass(frozen=True)
class SweepResult(JsonResult):
    """All settings of one sweep.

    columns: what is measured, in the order of the table
    judged: the column to judge by; "", or one that no run has a number for: the last
    published_columns: column -> what the paper's table calls its counterpart
    where: the paper's place ("Table 2"), or "" beyond the paper
    versions: of the packages that measured the runs
    pairs: column -> how many pairs stand behind its numbers, where that is known
    figure: how it is drawn
    measure: what the columns are of; "" where each names its own, such as TAR@FAR 1e-4
    """

    IS: ClassVar[str] = "the result of a sweep"
    WRITTEN_BY: ClassVar[str] = "sphereface2 sweep"

    name: str
    title: str
    recipe: str
    columns: tuple[str, ...]
    rows: tuple[SweepRow, ...]
    where: str = ""
    scale: str = "small"
    command: str = ""
    published_columns: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    judged: str = ""
    pairs: Mapping[str, int] = field(default_factory=dict)
    figure: SweepFigure = field(default_factory=SweepFigure)
    measure: str = "accuracy"

    @property
    def judged_by(self) -> str:
        return self.judged if self.judged in self.columns else self.columns[-1]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for row in self.rows for run in row.runs}))


Standing = Literal["best", "level", "below", "unknown"]

_LEVEL_ERRORS = 2.0  # standard errors of a difference, below which it may be chance


def standings(result: SweepResult, column: str) -> list[Standing]:
    """Where each row stands in a column, higher being better.

    The best has the highest mean. Level with it are rows whose mean differs by less than two
    standard errors of the difference, and those where a single seed leaves that error unknown.
    With one seed for all there is a best one, and nothing is known of the others.
    """
    means = [row.mean(column) for row in result.rows]
    top = max((mean for mean in means if mean is not None), default=None)
    if top is None:
        return ["unknown"] * len(means)
    best = result.rows[means.index(top)]
    found: list[Standing] = []
    for row, mean in zip(result.rows, means, strict=True):
        if mean == top:
            found.append("best")
        elif mean is None or len(result.seeds) < 2:
            found.append("unknown")
        else:
            errors = best.standard_error(column), row.standard_error(column)
            level = None in errors or top - mean < _LEVEL_ERRORS * math.hypot(*filter(None, errors))
            found.append("level" if level else "below")
    return found


def places_of_both(result: SweepResult, column: str) -> list[tuple[int, int] | None]:
    """The rank of each row here and in the paper; equal numbers share a place.

    Among the rows that have both numbers; None for the others.
    """
    pairs = [(row.mean(column), row.published.get(column)) for row in result.rows]
    both = [(ours, paper) for ours, paper in pairs if ours is not None and paper is not None]
    return [
        None
        if ours is None or paper is None
        else (
            1 + sum(other > ours for other, _ in both),
            1 + sum(other > paper for _, other in both),
        )
        for ours, paper in pairs
    ]
