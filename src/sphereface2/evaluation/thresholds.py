"""Operating points: the rate at a target false rate, its threshold, and how sure both are.

Exact although only the highest impostor scores need to be kept.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator

from sphereface2.evaluation.metrics import RocPoints, checked_pairs
from sphereface2.evaluation.uncertainty import (
    WILSON,
    WITH_THRESHOLD,
    Interval,
    People,
    Rate,
    rate_of,
    wilson,
)

Scores = npt.NDArray[np.floating[Any]]
AND_THRESHOLD = WITH_THRESHOLD.removeprefix(WILSON)  # the same method, whatever it is added to
_ONE = 1 - 1e-12  # a rate times a count that comes out a rounding below one is one


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold for a target false rate.

    target, reached: the false rate asked for, and the one truly reached (never above it)
    impostors: the trials behind the false rate
    resolved: False if the target lies below 1 / impostors, so that the data cannot tell it from 0
    """

    target: float
    reached: float
    threshold: float
    impostors: int
    resolved: bool

    @property
    def false_rate(self) -> Rate:
        """The false rate reached, with its interval at this threshold."""
        return wilson(round(self.reached * self.impostors), self.impostors)


@dataclass(frozen=True)
class RateAtTarget(OperatingPoint):
    """The true rate (a TAR) at an operating point.

    genuine: the trials behind it
    interval: of the rate at the target, the threshold's own uncertainty included
    threshold_interval: where the threshold would have been with other people
    """

    rate: float
    genuine: int | None = None
    interval: Interval | None = None
    threshold_interval: Interval | None = None


def _renamed(value: Any) -> Any:
    """A rate as earlier versions wrote it, in evaluations and in calibrations."""
    if not isinstance(value, Mapping) or "target_far" not in value:
        return value
    names = {"target_far": "target", "far": "reached", "tar": "rate", "tar_interval": "interval"}
    point = {names.get(key, key): each for key, each in value.items()}
    if isinstance(point.get("reached"), Mapping):  # a calibration's, with its own interval
        false = point["reached"]
        point |= {"reached": false.get("value"), "impostors": false.get("trials")}
    return point


SavedRate = Annotated[RateAtTarget, BeforeValidator(_renamed)]
"""The type of a field that earlier versions have written as well."""


@dataclass(frozen=True)
class Measure:
    """One number of a protocol under the name it is printed with; `at` for those at a threshold."""

    name: str
    rate: Rate
    at: OperatingPoint | None = None

    @property
    def resolved(self) -> bool:
        return self.at is None or self.at.resolved


def rank_name(rank: int) -> str:
    """The name of the measure that counts those found at this rank or before."""
    return f"rank {rank}"


def in_figures(score: float, decimals: int = 3) -> str:
    """A score with three decimals."""
    return f"{score:.{decimals}f}".replace("-", "−")


def beside(score: float, limit: float, *, fewest: int = 3) -> tuple[str, str]:
    """A score and the limit it is compared with, with as many decimals as tell the two apart."""
    enough = (each for each in range(fewest, 17) if round(score, each) != round(limit, each))
    decimals = next(enough, fewest)  # none for two that are equal
    return in_figures(score, decimals), in_figures(limit, decimals)


def resolves(target: float, impostors: int) -> bool:
    """Whether so many impostor trials tell a false rate from 0: it allows one of them."""
    return target * impostors >= _ONE


def minimum_trials(target: float) -> int:
    """The fewest impostor trials that resolve a false rate."""
    return math.ceil(_ONE / target) if target > 0 else 0


class HighestScores:
    """The `keep` highest of any number of scores, collected block by block."""

    def __init__(self, keep: int) -> None:
        assert keep > 0
        self.keep = keep
        self.floor = np.float32(-np.inf)  # a score that is not above it cannot be among the kept
        self._parts: list[Scores] = [np.empty(0, np.float32)]
        self._held = 0

    def add(self, scores: Scores) -> None:
        above = scores[scores > self.floor]
        if above.size:
            self._parts.append(above)
            self._held += above.size
            if self._held > 2 * self.keep + 65_536:
                self._shrink()

    def falling(self) -> Scores:
        """What is kept, the highest first."""
        self._shrink()
        return np.sort(self._parts[0])[::-1]

    def _shrink(self) -> None:
        scores = np.concatenate(self._parts)
        if scores.size > self.keep:
            scores = np.partition(scores, scores.size - self.keep)[-self.keep :]
        if scores.size == self.keep:
            self.floor = scores.min()
        self._parts, self._held = [scores], scores.size


def allowed(target: float, total: int) -> int:
    """The most false accepts out of `total` whose share does not exceed `target`."""
    if not 0.0 <= target <= 1.0:
        raise ValueError(f"a target rate must lie between 0 and 1, got {target}")
    count = min(int(target * total) + 1, total)
    while count / total > target:  # as a float, like every share that is compared with it
        count -= 1
    return count


def kept_for(targets: Sequence[float], total: int) -> int:
    """How many of the highest of `total` impostor scores `Trials` needs."""
    counts = [counted_off(allowed(target, total), total)[1] for target in targets]
    return min(max(counts, default=0) + 1, total)


def counted_off(count: int, total: int) -> tuple[int, int]:
    """The fewest and most impostors that the true threshold may accept, where `count` were."""
    share = wilson(count, total).interval
    return math.floor(share.low * total), math.ceil(share.high * total)


def widened(rate: Rate, below: float, above: float) -> Rate:
    """`rate` with two independent sources of error, the second as distances from its value."""
    interval = rate.interval
    low = rate.value - math.hypot(rate.value - interval.low, below)
    high = rate.value + math.hypot(interval.high - rate.value, above)
    method = interval.method + AND_THRESHOLD
    wide = Interval(max(0.0, low), min(1.0, high), interval.confidence, method)
    return replace(rate, interval=wide)


@dataclass(frozen=True, eq=False)
class Trials:
    """The scores behind rates at thresholds.

    genuine: (n,), -inf for a trial that no threshold can accept
    highest: the `kept_for` highest of the `impostors` scores, falling

    A trial is accepted if score >= threshold, and equal scores are accepted together.
    """

    genuine: Scores
    highest: Scores
    impostors: int

    @classmethod
    def of(cls, genuine: Scores, impostor: Scores) -> Self:
        """With all scores at hand, in any order."""
        return cls(genuine, np.sort(impostor)[::-1], impostor.size)

    def points_at(self, targets: Sequence[float]) -> tuple[RateAtTarget, ...]:
        """The highest rate of genuine trials accepted while the false rate keeps to each target.

        Of the thresholds that accept the same genuine trials the highest is taken.
        """
        rising = np.sort(self.genuine)
        fallen = -self.highest  # rising, as searchsorted wants it
        points = []
        for target in targets:
            most = allowed(target, self.impostors)
            # The first impostor that must be turned away: a threshold lies above its score.
            bound = self.highest[most] if most < self.impostors else -np.inf
            position = int(np.searchsorted(rising, bound, side="right"))
            threshold = rising[position] if position < rising.size else self._above_all
            false = int(np.searchsorted(fallen, -threshold, side="right"))
            points.append(
                RateAtTarget(
                    target=float(target),
                    reached=false / self.impostors,
                    threshold=float(threshold),
                    impostors=self.impostors,
                    resolved=resolves(target, self.impostors),
                    rate=(rising.size - position) / rising.size,
                    genuine=rising.size,
                )
            )
        return tuple(points)

    def rates_at(
        self, targets: Sequence[float], *, name: str, people: People | None = None
    ) -> tuple[Measure, ...]:
        """`points_at` as measures whose intervals count people, (n,) whose trial each is.

        name: e.g. "TAR@FAR"; the target is appended
        """
        assert self.highest.size >= kept_for(targets, self.impostors)
        return tuple(
            Measure(
                f"{name}={point.target:g}",
                self.with_threshold(
                    rate_of(self.genuine >= point.threshold, people),
                    count=allowed(point.target, self.impostors),
                ),
                OperatingPoint(
                    point.target, point.reached, point.threshold, self.impostors, point.resolved
                ),
            )
            for point in self.points_at(targets)
        )

    def with_threshold(self, rate: Rate, *, count: int) -> Rate:
        """`rate` at a threshold set by `count` impostors, with the threshold's own chance added.

        The share at both ends of the threshold's interval, added in squares (MOVER) to the interval
        that holds the threshold fixed. With too few impostors behind it (fewer than three) the
        threshold may lie anywhere above them, and the lower end is 0.
        """
        return widened(rate, *self.swing(count))

    def swing(self, count: int) -> tuple[float, float]:
        """How far below and above a rate lies at the ends of its threshold's interval."""
        fewest, most = counted_off(count, self.impostors)

        def accepted(false: int) -> float:
            bound = -np.inf if false >= self.impostors else self.highest[false]
            return float(np.mean(self.genuine > bound))

        here = accepted(count)
        # The strictest threshold that accepts `fewest` impostors is the score of the last of them.
        strict = -math.inf
        if fewest:
            strict = float(np.mean(self.genuine >= self.highest[fewest - 1]))
        return max(0.0, here - strict), max(0.0, accepted(most) - here)

    def thin_roc(self) -> RocPoints:
        """At most 400 exact operating points for drawing: 250 over log FAR, 140 over TAR.

        They run from "accept none" to "accept all", or as far down as `highest` reaches.
        """
        rising, highest = np.sort(self.genuine), self.highest
        steps = np.geomspace(1, highest.size, 250).astype(np.int64) - 1  # false accepts
        by_far = np.searchsorted(rising, highest[np.concatenate([[0], steps])], side="right")
        by_tar = np.linspace(0, rising.size - 1, 140).astype(np.int64)
        if highest.size < self.impostors:
            # At the last score kept, ties beyond it may have been dropped: stay above.
            by_tar = by_tar[by_tar >= np.searchsorted(rising, highest[-1], side="right")]
            ends = [self._above_all]
        else:
            ends = [self._above_all, highest[-1]]
        kept = np.concatenate([by_far, by_tar])
        thresholds = np.unique(np.concatenate([rising[kept[kept < rising.size]], ends]))[::-1]
        thresholds = thresholds[thresholds > -np.inf]
        false = np.searchsorted(-highest, -thresholds, side="right")
        true = rising.size - np.searchsorted(rising, thresholds, side="left")
        return RocPoints(
            far=tuple((false / self.impostors).tolist()),
            tar=tuple((true / rising.size).tolist()),
            threshold=tuple(thresholds.tolist()),
        )

    @property
    def _above_all(self) -> np.floating[Any]:
        """The lowest threshold that accepts nothing."""
        above: np.floating[Any] = np.nextafter(
            max(self.highest[0], self.genuine.max()), self.highest.dtype.type(np.inf)
        )
        return above


def tar_at_fars(
    scores: npt.ArrayLike, same: npt.ArrayLike, targets: Sequence[float]
) -> tuple[RateAtTarget, ...]:
    """The highest TAR among the operating points whose FAR does not exceed each target."""
    values, kinds = checked_pairs(scores, same)
    return Trials.of(values[kinds], values[~kinds]).points_at(targets)
