"""The contract between a proxy head and the engine: what a head has to say about its loss."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Binary:
    """Reduction of K independent classifiers: a weighted sum of softplus terms."""

    positive_weight: float
    negative_weight: float


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
