"""CurricularFace: ArcFace whose hard negatives grow harder as training goes on (CVPR 2020)."""

import torch
from torch import Tensor

from sphereface2.heads.checks import require_share
from sphereface2.heads.contract import Rows
from sphereface2.heads.cosine import GradientMode, add_angle, straight_through
from sphereface2.heads.head import MarginHead
from sphereface2.heads.softmax import NormFace


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
        margin_schedule: list[tuple[float, float]] | None = None,
    ) -> None:
        super().__init__(dim, num_classes, scale=scale)
        require_share(ema=ema)
        self.ema = float(ema)
        self.gradient: GradientMode = gradient
        self.set_margin(margin, margin_schedule)
        self.register_buffer("curriculum", torch.zeros(()))

    def prepare(self, cosine_b: Tensor, norm_b: Tensor, known_b: Tensor) -> Rows:
        if self.training:
            self.curriculum.lerp_(cosine_b.mean().to(self.curriculum.dtype), self.ema)
        # The boundary is plain cos(θ + m), without the replacement past π, as in the authors' code.
        boundary = (cosine_b.arccos() + self.margin).cos()
        return Rows(norm=norm_b, known=known_b, context=boundary)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        if self.gradient == "straight-through":
            return self.scale * straight_through(
                add_angle(cosine_b.detach(), self.margin), cosine_b
            )
        return self.scale * add_angle(cosine_b, self.margin)

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        assert rows.context is not None
        hard = cosine_cb > rows.context
        curriculum = self.curriculum.to(cosine_cb.dtype)
        logit = torch.where(hard, cosine_cb * (curriculum + cosine_cb), cosine_cb).mul_(self.scale)
        if self.gradient == "straight-through":
            return logit, self.scale
        slope = torch.where(hard, curriculum + 2.0 * cosine_cb, 1.0).mul_(self.scale)
        return logit, slope
