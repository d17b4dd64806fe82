"""Unified-threshold losses: UniFace (ICCV 2023) and UniTSFace (NeurIPS 2023).

Both ask, as SphereFace2 does, for one threshold b between all positive and all negative scores.
"""

import math

from torch import Tensor

from sphereface2.heads.contract import Binary, Rows, require, require_positive
from sphereface2.heads.head import MarginHead, MarginSchedule
from sphereface2.heads.memory import FeatureMemory, PairTerm
from sphereface2.heads.proxy import ProxyHead
from sphereface2.heads.softmax import CosFace


class UniFace(MarginHead, ProxyHead):
    """UniFace: the unified cross-entropy, with the margin on the positive only (ICCV 2023):

        log(1 + exp(-s(cos θ_y - m) - b)) + w · Σ_{i≠y} log(1 + exp(s·cos θ_i + b))

    It is SphereFace2's Eq. 1 with a scale and a bias that starts at b = -log(10·K), where the sum
    over all negatives is a tenth.

    Args:
        scale: s of the cosines.
        margin: m of the positive term.
        negative_weight: w of the negative terms.
        bias_start: where the bias starts; None is -log(10·K).
        margin_schedule: (epoch, margin) points, or {from, to, epochs, shape} (`MarginHead`).
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 64.0,
        margin: float = 0.4,
        negative_weight: float = 1.0,
        bias_start: float | None = None,
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        start = -math.log(10.0 * num_classes) if bias_start is None else bias_start
        super().__init__(dim, num_classes, bias="shared", bias_start=start)
        require_positive(scale=scale, negative_weight=negative_weight)
        require(math.isfinite(start), f"bias_start must be a finite number, got {start}")
        self.scale = float(scale)
        self.negative_weight = float(negative_weight)
        self.set_margin(margin, margin_schedule)

    def reduction(self) -> Binary:
        return Binary(1.0, self.negative_weight, self.scale)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        return self.scale * (cosine_b - self.margin)

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        return self.scale * cosine_cb, self.scale

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale:g}, margin={self.margin:g}"


class _RememberedUniFace(FeatureMemory, UniFace):
    """The unified cross-entropy of samples with one remembered embedding per class."""


class UniTSFace(PairTerm, CosFace):
    """UniTSFace: CosFace, and samples against samples with one unified threshold (NeurIPS 2023).

    CosFace + `pair_weight` × the unified cross-entropy of each sample with one remembered embedding
    of every person: log(1 + exp(-γ(cos θ_y - m) - b)) + Σ_{i≠y} log(1 + exp(γ·cos θ_i + b)).

    Args:
        scale, margin: of CosFace's softmax over the class weights.
        pair_scale, pair_margin: γ and m of the term between samples.
        pair_weight: of that term.
        margin_schedule: of the softmax: (epoch, margin) points, or {from, to, epochs, shape}.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 64.0,
        margin: float = 0.4,
        pair_scale: float = 64.0,
        pair_margin: float = 0.1,
        pair_weight: float = 1.0,
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(
            dim, num_classes, scale=scale, margin=margin, margin_schedule=margin_schedule
        )
        require_positive(pair_scale=pair_scale, pair_weight=pair_weight)
        require_positive(or_zero=True, pair_margin=pair_margin)
        self.pair_weight = float(pair_weight)
        self.pairs = _RememberedUniFace(dim, num_classes, scale=pair_scale, margin=pair_margin)
