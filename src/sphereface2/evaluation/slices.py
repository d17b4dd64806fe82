"""Where a model fails: its decisions by attributes of the pairs, such as age gap or pose."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.bootstrap import replicated_shares
from sphereface2.evaluation.intervals import OVER_PEOPLE, Rate, percentiles, wider, wilson
from sphereface2.evaluation.metrics import BoolArray, IntArray

Attributes = Mapping[str, npt.NDArray[np.str_]]
"""Of each attribute its value for every pair, as words; an empty word where it is not known."""


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


def slices(
    right: BoolArray,
    same: BoolArray,
    attributes: Attributes,
    *,
    people: IntArray | None = None,
    replicates: int = 0,
) -> tuple[Slice, ...]:
    """The slices of every attribute, by value; `right` says which pairs were decided right."""
    found = []
    for attribute, values in attributes.items():
        words = np.asarray(values, dtype=np.str_)
        if words.shape != same.shape:
            raise ValueError(
                f"attribute '{attribute}': {same.size} pairs, but values of the shape {words.shape}"
            )
        for value in np.unique(words[words != ""]).tolist():
            here = words == value
            genuine, impostor = here & same, here & ~same
            found.append(
                Slice(
                    attribute=attribute,
                    value=value,
                    right=_rate(right, here, people, replicates),
                    true_accepts=_rate(right, genuine, people, replicates)
                    if genuine.any()
                    else None,
                    false_accepts=_rate(~right, impostor, people, replicates)
                    if impostor.any()
                    else None,
                )
            )
    return tuple(found)


def _rate(counted: BoolArray, here: BoolArray, people: IntArray | None, replicates: int) -> Rate:
    rate = wilson(int(np.count_nonzero(counted[here])), int(np.count_nonzero(here)))
    if people is None or not replicates:
        return rate
    shares = replicated_shares(counted[here], people[here], replicates=replicates)
    interval = wider(percentiles(shares, method=OVER_PEOPLE), rate.interval)
    return Rate(rate.value, rate.successes, rate.trials, interval)
