"""Softmax heads that read the quality of an image from the length of its embedding."""

import math

import torch
from torch import Tensor

from sphereface2.heads.contract import Rows, mean_of, require, require_positive, require_share
from sphereface2.heads.cosine import GradientMode, add_angle, for_gradient
from sphereface2.heads.head import MarginHead, MarginSchedule
from sphereface2.heads.softmax import NormFace


class MagFace(NormFace):
    """MagFace (CVPR 2021): an ArcFace margin that grows with the embedding's length a.

    m(a) runs from `margin_low` at a = `norm_low` to `margin_high` at a = `norm_high`; a is clamped
    in between, and λ_g·(1/a + a/u_a²), `norm_weight` being λ_g, rewards a long embedding. The
    gradient reaches the length through the margin and through that term.

    With `easy_margin` a sample with cos θ ≤ 0 has no margin, as in the authors' training;
    without it every sample has one, and past θ + m = π it is c - m sin(π - m).
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 64.0,
        norm_low: float = 10.0,
        norm_high: float = 110.0,
        margin_low: float = 0.45,
        margin_high: float = 0.8,
        norm_weight: float = 35.0,
        easy_margin: bool = True,
        gradient: GradientMode = "exact",
    ) -> None:
        super().__init__(dim, num_classes, scale=scale)
        require_positive(norm_low=norm_low)
        require(
            norm_high > norm_low, f"norm_high must be above norm_low = {norm_low}, got {norm_high}"
        )
        require(
            0.0 <= margin_low <= margin_high <= math.pi,
            f"margin_low and margin_high must rise within [0, π], got {margin_low}, {margin_high}",
        )
        require_positive(or_zero=True, norm_weight=norm_weight)
        self.norm_low, self.norm_high = float(norm_low), float(norm_high)
        self.margin_low, self.margin_high = float(margin_low), float(margin_high)
        self.norm_weight = float(norm_weight)
        self.easy_margin = easy_margin
        self.gradient: GradientMode = gradient

    def margin_of(self, norm_b: Tensor) -> Tensor:
        """m(a), linear in the clamped length."""
        share = (self._clamp(norm_b) - self.norm_low) / (self.norm_high - self.norm_low)
        return self.margin_low + share * (self.margin_high - self.margin_low)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        margin_b = self.margin_of(rows.norm)
        with_margin = add_angle(cosine_b, margin_b, "cosine" if self.easy_margin else "falling")
        if self.easy_margin:
            with_margin = torch.where(cosine_b > 0.0, with_margin, cosine_b)
        return self.scale * for_gradient(with_margin, cosine_b, self.gradient)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = super().forward(embeddings, labels)
        length = torch.linalg.vector_norm(embeddings.to(self.weight.dtype), dim=1, keepdim=True)
        length, labels = self.whole_batch(length, labels)
        length, known = self._clamp(length.squeeze(1)), labels >= 0
        if self.collect_statistics:
            self._statistics["mean_norm"] = mean_of(length.detach(), known, empty=torch.nan)
        reward = 1.0 / length + length / self.norm_high**2
        return loss + self.norm_weight * mean_of(reward, known)

    def _clamp(self, norm_b: Tensor) -> Tensor:
        return norm_b.clamp(self.norm_low, self.norm_high)


class AdaFace(MarginHead, NormFace):
    """AdaFace (CVPR 2022): the margin's kind follows the embedding's length.

    With z the length, standardised by running statistics, times `concentration` (h), cut to
    [-1, 1]: s(cos(θ - m·z) - m - m·z) on the target. The length is detached.
    """

    mean_norm: Tensor
    norm_deviation: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 64.0,
        margin: float = 0.4,
        concentration: float = 0.333,
        ema: float = 0.01,
        gradient: GradientMode = "exact",
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes, scale=scale)
        require_positive(concentration=concentration)
        require_share(ema=ema)
        self.concentration = float(concentration)
        self.ema = float(ema)
        self.gradient: GradientMode = gradient
        self.set_margin(margin, margin_schedule)
        # The authors' start, from which the running mean and deviation depart.
        self.register_buffer("mean_norm", torch.tensor(20.0))
        self.register_buffer("norm_deviation", torch.tensor(100.0))

    def prepare(self, cosine_b: Tensor, norm_b: Tensor, known_b: Tensor) -> Rows:
        length = norm_b.clamp(0.001, 100.0)
        if self.training:
            number, mean = known_b.sum(), mean_of(length, known_b)
            square = torch.where(known_b, (length - mean).square(), 0.0).sum()
            deviation = (square / (number - 1).clamp_min(1)).sqrt()
            # One sample has no deviation, and none has no mean.
            for least, average, now in (
                (1, self.mean_norm, mean),
                (2, self.norm_deviation, deviation),
            ):
                now = torch.where(number >= least, now.to(average.dtype), average)
                average.lerp_(now, self.ema)
        standard = (length - self.mean_norm) / (self.norm_deviation + 1e-3)
        quality = (standard * self.concentration).clamp(-1.0, 1.0).to(cosine_b.dtype)
        return Rows(norm=norm_b, known=known_b, context=quality)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        assert rows.context is not None
        angular = -self.margin * rows.context
        additive = self.margin * (1.0 + rows.context)
        turned = for_gradient(self._turn(cosine_b, angular), cosine_b, self.gradient)
        return self.scale * (turned - additive)

    @staticmethod
    def _turn(cosine_b: Tensor, angle_b: Tensor) -> Tensor:
        """cos(θ + angle), θ + angle kept within (0, π)."""
        limit = 1.0 - 1e-6  # arccos has no finite slope at ±1
        theta = cosine_b.clamp(-limit, limit).arccos()
        return (theta + angle_b).clamp(1e-3, math.pi - 1e-3).cos()
