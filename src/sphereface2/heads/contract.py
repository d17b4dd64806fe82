"""The contract between a proxy head and the engine: what a head has to say about its loss."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Binary:
    """Reduction of K independent classifiers: a weighted sum of softplus terms.

    largest_logit: a bound of the other logits without their bias, where there is one.
    """

    positive_weight: float
    negative_weight: float
    largest_logit: float = math.inf


@dataclass(frozen=True)
class Softmax:
    """Reduction of one K-way classifier: cross-entropy. Rows of no known class are left out."""

    weight: float = 1.0


@dataclass(frozen=True)
class Rows:
    """What a head's logit maps know of each row (sample) besides the cosine at hand.

    `context` is the head's own: B numbers, such as CurricularFace's boundary of each row.
    """

    norm: Tensor
    known: Tensor
    context: Tensor | None = None


class ProxyMaps(Protocol):
    """The contract between a head and the engine."""

    unit_weights: bool
    unit_embeddings: bool
    needs_all_targets: bool
    """Whether `prepare` needs the target cosine also of rows whose class is on another rank."""
    collect_statistics: bool

    def reduction(self) -> Binary | Softmax:
        """How logits become a loss."""

    def prepare(self, cosine_b: Tensor, norm_b: Tensor, known_b: Tensor) -> Rows:
        """Target pre-pass, without gradient: gather what the maps need; update running averages."""

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        """Logit of each row's own class, bias excluded; autograd differentiates these B numbers."""

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        """Logit of all other classes, bias excluded, and its slope d logit / d cosine.

        Rows run along the last dimension. `cosine_cb` must stay as it is; what is returned may be
        overwritten.
        """


# Labels with a meaning of their own; all others count the classes from 0.

UNKNOWN = -1
"""A sample that belongs to no known class."""

ELSEWHERE = -2
"""Inside the engine only: a known class whose weights are on another rank."""


def mean_of(values: Tensor, counts: Tensor, *, empty: float = 0.0) -> Tensor:
    """The mean of the values that count, `empty` where none does; no shape depends on how many."""
    number = counts.sum()
    total = torch.where(counts, values, 0.0).sum()
    return torch.where(number > 0, total / number.clamp_min(1), empty)


# What a head's options must satisfy: each failure is one sentence.


def require(condition: bool, sentence: str) -> None:
    """Raise a ValueError with `sentence` unless the condition holds."""
    if not condition:
        raise ValueError(sentence)


def require_positive(*, or_zero: bool = False, **values: float) -> None:
    """Every value must be a finite number above zero, or zero where that is allowed."""
    for name, value in values.items():
        is_right = value > 0 or (or_zero and value == 0)
        bound = "at least" if or_zero else "above"
        require(math.isfinite(value) and is_right, f"{name} must be {bound} 0, got {value}")


def require_share(**values: float) -> None:
    """Every value must lie in [0, 1]."""
    for name, value in values.items():
        require(0.0 <= value <= 1.0, f"{name} must lie in [0, 1], got {value}")
