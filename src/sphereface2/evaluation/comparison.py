"""Is the difference real? Models compared on the same pairs, by tests that use the pairing.

Two models mostly stumble over the same pairs, so the difference of their numbers is far surer than
the numbers themselves. McNemar's exact test looks at the pairs that only one of them decides right;
the bootstrap over people draws the same people for both and looks at the differences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from sphereface2.evaluation.metrics import FloatArray
from sphereface2.evaluation.pair_scores import PairScores, combine
from sphereface2.evaluation.uncertainty import REPLICATES, Interval, replicate
from sphereface2.evaluation.verification import (
    FAR_TARGETS,
    VerificationResult,
    decided_right,
    measure,
)

SIGNIFICANCE = 0.05
ACCURACY = "accuracy"


@dataclass(frozen=True)
class Difference:
    """One measure of a model less the same of the baseline.

    target: the FAR, of a TAR
    p_value: chance of a difference at least as large if there were none
    p_adjusted: the same after Holm's correction for all models compared with one baseline
    """

    measure: str
    baseline: float
    value: float
    difference: float
    interval: Interval
    p_value: float
    p_adjusted: float
    target: float | None = None

    @property
    def is_resolved(self) -> bool:
        return self.p_adjusted < SIGNIFICANCE


@dataclass(frozen=True)
class SetComparison:
    """A model and the baseline on one set; `differences` begins with the accuracy.

    only_model, only_baseline: pairs that only one of the two decides right, at its fold thresholds
    mcnemar: p value of the exact test on these
    """

    set_name: str
    baseline: str
    model: str
    pairs: int
    people: int | None
    only_model: int
    only_baseline: int
    mcnemar: float
    differences: tuple[Difference, ...]

    @property
    def accuracy(self) -> Difference:
        return self.differences[0]

    @property
    def sentence(self) -> str:
        """What the accuracies say, in words."""
        points = abs(100 * self.accuracy.difference)
        size = f"{points:.2f}".rstrip("0").rstrip(".") + f" point{'' if points == 1 else 's'}"
        trials = f"these {self.pairs:,} pairs"
        if self.people is not None:
            trials += f" of {self.people:,} people"
        where = f"{self.set_name}: "
        if self.accuracy.difference == 0:
            return f"{where}{self.model} and {self.baseline} are equally accurate on {trials}."
        if not self.accuracy.is_resolved:
            return (
                f"{where}the difference of {size} between {self.model} and {self.baseline} is not "
                f"resolved by {trials} (p = {self.accuracy.p_adjusted:.2g})."
            )
        word = "better" if self.accuracy.difference > 0 else "worse"
        return (
            f"{where}{self.model} is {word} than {self.baseline} by {size}, and {trials} "
            f"resolve that (p = {self.accuracy.p_adjusted:.2g})."
        )


@dataclass(frozen=True)
class Comparison:
    """Several models on the same sets, all against the first."""

    models: tuple[str, ...]
    results: tuple[VerificationResult, ...]
    comparisons: tuple[SetComparison, ...]

    @property
    def sets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.set_name for each in self.comparisons))


def compare(
    models: Sequence[tuple[str, Sequence[PairScores]]],
    *,
    replicates: int = REPLICATES,
    far_targets: Sequence[float] = FAR_TARGETS,
) -> Comparison:
    """Compare every model with the first on each set and, if there are several, on all combined.

    `models` are labels with the scored pairs of each set, which must be the same pairs for all.
    """
    if len(models) < 2:
        raise ValueError(f"a comparison needs at least two models, got {len(models)}")
    labels = [label for label, _ in models]
    if len(set(labels)) < len(labels):
        raise ValueError(f"the models compared need different names, got {', '.join(labels)}")
    for label, sets in models[1:]:
        _require_same_pairs(models[0], (label, sets))
    by_set = [list(parts) for parts in zip(*(sets for _, sets in models), strict=True)]
    if len(by_set) > 1:
        by_set.append([combine(sets) for _, sets in models])
    results: list[VerificationResult] = []
    comparisons: list[SetComparison] = []
    for parts in by_set:
        measured = [
            measure(part, model=label, far_targets=far_targets, replicates=replicates)
            for label, part in zip(labels, parts, strict=True)
        ]
        results += measured
        comparisons += _compare_set(measured, parts, replicates=replicates)
    # By model, the baseline first, as every other evaluation is.
    results.sort(key=lambda result: labels.index(result.model))
    return Comparison(tuple(labels), tuple(results), tuple(comparisons))


def compare_seeds(
    models: Sequence[tuple[str, Sequence[PairScores]]],
    *,
    replicates: int = REPLICATES,
    far_targets: Sequence[float] = FAR_TARGETS,
) -> dict[str, tuple[Difference, ...]]:
    """Compare every model with the first by the means over its seeds, on the same pairs of one set.

    The bootstrap draws people; what chance in training makes shows in the seeds, not here.
    """
    for label, several in models:
        if not several:
            raise ValueError(f"{label} has no run that could be compared")
        for scored in several:
            _require_same_pairs((models[0][0], [models[0][1][0]]), (label, [scored]))
    measured = [
        [measure(scored, model="", far_targets=far_targets, replicates=0) for scored in several]
        for _, several in models
    ]
    found = _differences(measured, [several for _, several in models], replicates=replicates)
    return dict(zip([label for label, _ in models[1:]], found, strict=True))


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p value: would a fair coin split the discordant pairs this unevenly?"""
    from scipy.stats import binomtest  # takes a second to load, which no training should wait for

    trials = only_first + only_second
    return float(binomtest(only_first, trials).pvalue) if trials else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction, which scipy lacks: it keeps the chance of any false alarm at its level."""
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return adjusted


def bootstrap_p_value(differences: FloatArray) -> float:
    """Twice the share of replicates on the rarer side of 0; a replicate at 0 counts for both."""
    count = differences.size
    below, above = (int(np.count_nonzero(side)) for side in (differences <= 0, differences >= 0))
    return min(1.0, 2.0 * (min(below, above) + 1) / (count + 1))


def _compare_set(
    results: Sequence[VerificationResult], parts: Sequence[PairScores], *, replicates: int
) -> list[SetComparison]:
    right = [decided_right(part) for part in parts]
    counts = [
        (int(np.count_nonzero(each & ~right[0])), int(np.count_nonzero(right[0] & ~each)))
        for each in right[1:]
    ]
    exact = [mcnemar(*count) for count in counts]
    differences = _differences(
        [[result] for result in results],
        [[part] for part in parts],
        replicates=replicates,
        exact=exact,
    )
    return [
        SetComparison(
            set_name=result.set_name,
            baseline=results[0].model,
            model=result.model,
            pairs=result.pairs,
            people=results[0].people,
            only_model=count[0],
            only_baseline=count[1],
            mcnemar=p_value,
            differences=rows,
        )
        for result, count, p_value, rows in zip(
            results[1:], counts, exact, differences, strict=True
        )
    ]


def _differences(
    results: Sequence[Sequence[VerificationResult]],
    scored: Sequence[Sequence[PairScores]],
    *,
    replicates: int,
    exact: Sequence[float] = (),
) -> list[tuple[Difference, ...]]:
    """Every model less the first, by the means over its seeds.

    results, scored: of each model, seed by seed
    exact: McNemar's p values of the accuracies, below which the bootstrap's may not fall
    """
    first = scored[0][0]
    targets = [point.target for point in results[0][0].tar_at_far if point.resolved]
    drawn = replicate(
        [(each.scores, decided_right(each)[:, None]) for several in scored for each in several],
        first.same,
        first.people,
        targets=targets,
        replicates=replicates,
    )
    names: list[tuple[str, float | None]] = [(ACCURACY, None), ("EER", None), ("AUC", None)]
    names += [(f"TAR@FAR {100 * target:g}%", target) for target in targets]
    draws = iter(drawn)
    values, columns = [], []
    for several in results:
        own = [
            [result.accuracy, result.eer, result.auc]
            + [point.rate for point in result.tar_at_far if point.target in targets]
            for result in several
        ]
        values.append([float(np.mean(each)) for each in zip(*own, strict=True)])
        replicated = [
            [each.accuracy[:, 0], each.eer, each.auc, *each.tar.T]
            for each in islice(draws, len(several))
        ]
        columns.append(np.mean(replicated, axis=0))
    found: list[list[Difference]] = [[] for _ in values[1:]]
    for row, (name, target) in enumerate(names):
        spreads = [column[row] - columns[0][row] for column in columns[1:]]
        p_values = [bootstrap_p_value(spread) for spread in spreads]
        if name == ACCURACY and exact:
            # The more careful of the two: McNemar knows no people, a bootstrap no small numbers.
            p_values = [max(pair) for pair in zip(p_values, exact, strict=True)]
        for number, adjusted in enumerate(holm(p_values)):
            baseline, value = values[0][row], values[number + 1][row]
            found[number].append(
                Difference(
                    measure=name,
                    baseline=baseline,
                    value=value,
                    difference=value - baseline,
                    interval=drawn[0].interval(spreads[number]),
                    p_value=p_values[number],
                    p_adjusted=adjusted,
                    target=target,
                )
            )
    return [tuple(rows) for rows in found]


def _require_same_pairs(
    baseline: tuple[str, Sequence[PairScores]], other: tuple[str, Sequence[PairScores]]
) -> None:
    first = {scored.name: scored for scored in baseline[1]}
    second = {scored.name: scored for scored in other[1]}
    runs = f"{baseline[0]} and {other[0]}"
    again = "evaluate both with the same evaluation.sets"
    if list(first) != list(second):
        only = [name for name in [*first, *second] if (name in first) != (name in second)]
        named = f"set '{only[0]}' is in one of them only" if only else "they come in other orders"
        raise ValueError(f"{runs} were evaluated on different sets ({named}): {again}")
    for name, scored in first.items():
        if scored.digest != second[name].digest:
            raise ValueError(
                f"{runs} were evaluated on different pairs of the set '{name}': {again}"
            )
        if scored.images != second[name].images:
            raise ValueError(
                f"{runs} were evaluated on the same pairs of the set '{name}' but on other images "
                f"(another size, alignment or rendering): {again}"
            )
