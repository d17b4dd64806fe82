"""Softmax heads: plain, NormFace, and with a margin on the target (SphereFace, CosFace, ArcFace).

CosFace and ArcFace take similarity adjustment (`sharpness` above 1), as a table of the paper does.
"""

import torch
from torch import Tensor

from sphereface2.heads.contract import Rows, mean_of, require_positive, require_share
from sphereface2.heads.cosine import (
    GradientMode,
    PastPi,
    add_angle,
    adjust,
    adjust_for_gradient,
    adjust_slope,
    for_gradient,
    multiply_angle,
    straight_through,
)
from sphereface2.heads.head import MarginHead, MarginSchedule
from sphereface2.heads.proxy import ProxyHead


class PlainSoftmax(ProxyHead):
    """Softmax cross-entropy on products w·x + b, nothing normalised."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__(dim, num_classes, bias="per-class", normalize=False)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        return cosine_b * 1.0

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        return cosine_cb.clone(), 1.0


class NormFace(ProxyHead):
    """Softmax on s·cos θ, embeddings and weights on the unit sphere (NormFace, Coco loss)."""

    def __init__(self, dim: int, num_classes: int, *, scale: float = 30.0) -> None:
        super().__init__(dim, num_classes)
        require_positive(scale=scale)
        self.scale = float(scale)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        return self.scale * cosine_b

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        return self.scale * cosine_cb, self.scale


class MarginSoftmax(MarginHead, NormFace):
    """Softmax on s·g(cos θ) with a margin on the target; a subclass says which."""

    sharpness = 1.0
    gradient: GradientMode

    def set_sharpness(self, sharpness: float) -> None:
        """Keep t of the similarity adjustment g; 1 switches it off."""
        require_positive(sharpness=sharpness)
        self.sharpness = float(sharpness)

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        logit = self.scale * adjust(cosine_cb, self.sharpness)
        if self.sharpness == 1.0 or self.gradient == "straight-through":
            return logit, self.scale
        return logit, adjust_slope(cosine_cb, self.sharpness).mul_(self.scale)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale:g}, margin={self.margin:g}"


class SphereFace(MarginSoftmax):
    """SphereFace in its R v1 form with hard feature norm: s·cos(min(m, π/θ)·θ) on the target.

    The margin's own gradient is detached, so both gradient modes are the same.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 30.0,
        margin: float = 1.5,
        gradient: GradientMode = "exact",
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes, scale=scale)
        self.gradient = gradient
        self.set_margin(margin, margin_schedule, low=1.0)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        # characteristic gradient detachment: d logit / d cos θ = s
        with_margin = multiply_angle(cosine_b.detach(), self.margin)
        return self.scale * straight_through(with_margin, cosine_b)


class CosFace(MarginSoftmax):
    """CosFace: s(cos θ - m) on the target. InsightFace trains it with m = 0.4."""

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 64.0,
        margin: float = 0.35,
        sharpness: float = 1.0,
        gradient: GradientMode = "exact",
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes, scale=scale)
        self.gradient = gradient
        self.set_sharpness(sharpness)
        self.set_margin(margin, margin_schedule)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        score = adjust_for_gradient(cosine_b, self.sharpness, self.gradient)
        return self.scale * (score - self.margin)


class ArcFace(MarginSoftmax):
    """ArcFace: s·cos(θ + m) on the target.

    gradient="exact" differentiates cos(θ + m), as TFace and CurricularFace do;
    "straight-through" takes the slope s, as InsightFace and OpenSphere do. Past θ + m = π,
    `past_pi` says what is taken (see `cosine.PastPi`): InsightFace's form is
    gradient="straight-through", past_pi="cosine", and OpenSphere's has past_pi="flat".
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 64.0,
        margin: float = 0.5,
        sharpness: float = 1.0,
        past_pi: PastPi = "falling",
        gradient: GradientMode = "exact",
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes, scale=scale)
        self.gradient = gradient
        self.past_pi: PastPi = past_pi
        self.set_sharpness(sharpness)
        self.set_margin(margin, margin_schedule)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        with_margin = add_angle(cosine_b, self.margin, self.past_pi)
        if self.gradient == "straight-through":
            return self.scale * straight_through(adjust(with_margin, self.sharpness), cosine_b)
        return self.scale * adjust_for_gradient(with_margin, self.sharpness, "exact")


# Circle loss in its class-level form (CVPR 2020).


class Circle(MarginHead, NormFace):
    """γ[1+m-c]₊(c-(1-m)) on the target, γ[c+m]₊(c-m) on the others; the brackets are detached."""

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 256.0,
        margin: float = 0.25,
        gradient: GradientMode = "exact",
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes, scale=scale)
        self.gradient: GradientMode = gradient
        self.set_margin(margin, margin_schedule)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        # detached: the bracket is a weight that says how far the sample is from its optimum
        bracket = (1.0 + self.margin - cosine_b).clamp_min(0.0).detach()
        logit = self.scale * bracket * (cosine_b - (1.0 - self.margin))
        return for_gradient(logit, self.scale * cosine_b, self.gradient)

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        bracket = (cosine_cb + self.margin).clamp_min_(0.0).mul_(self.scale)
        logit = (cosine_cb - self.margin).mul_(bracket)
        return logit, self.scale if self.gradient == "straight-through" else bracket


# CurricularFace: ArcFace whose hard negatives grow harder during training (CVPR 2020).


class CurricularFace(MarginHead, NormFace):
    """s·cos(θ_y + m) on the target; s·c(t + c) on negatives with c > cos(θ_y + m), else s·c.

    t is a running mean of the target cosine (rate `ema`) and has no gradient.
    """

    needs_all_targets = True
    curriculum: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale: float = 64.0,
        margin: float = 0.5,
        ema: float = 0.01,
        gradient: GradientMode = "exact",
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes, scale=scale)
        require_share(ema=ema)
        self.ema = float(ema)
        self.gradient: GradientMode = gradient
        self.set_margin(margin, margin_schedule)
        self.register_buffer("curriculum", torch.zeros(()))

    def prepare(self, cosine_b: Tensor, norm_b: Tensor, known_b: Tensor) -> Rows:
        if self.training:
            mean = mean_of(cosine_b, known_b).to(self.curriculum.dtype)
            self.curriculum.lerp_(torch.where(known_b.any(), mean, self.curriculum), self.ema)
        # The boundary is plain cos(θ + m), without the replacement past π, as in the authors' code.
        boundary = (cosine_b.arccos() + self.margin).cos()
        return Rows(norm=norm_b, known=known_b, context=boundary)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        with_margin = add_angle(cosine_b, self.margin)
        return self.scale * for_gradient(with_margin, cosine_b, self.gradient)

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        assert rows.context is not None
        hard = cosine_cb > rows.context
        curriculum = self.curriculum.to(cosine_cb.dtype)
        logit = torch.where(hard, cosine_cb * (curriculum + cosine_cb), cosine_cb).mul_(self.scale)
        if self.gradient == "straight-through":
            return logit, self.scale
        slope = torch.where(hard, curriculum + 2.0 * cosine_cb, 1.0).mul_(self.scale)
        return logit, slope
