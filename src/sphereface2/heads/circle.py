"""Circle loss in its class-level form (CVPR 2020)."""

from torch import Tensor

from sphereface2.heads.contract import Rows
from sphereface2.heads.cosine import GradientMode, straight_through
from sphereface2.heads.head import MarginHead
from sphereface2.heads.softmax import NormFace


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
        margin_schedule: list[tuple[float, float]] | None = None,
    ) -> None:
        super().__init__(dim, num_classes, scale=scale)
        self.gradient: GradientMode = gradient
        self.set_margin(margin, margin_schedule)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        # detached: the bracket is a weight that says how far the sample is from its optimum
        bracket = (1.0 + self.margin - cosine_b).clamp_min(0.0).detach()
        logit = self.scale * bracket * (cosine_b - (1.0 - self.margin))
        if self.gradient == "straight-through":
            return straight_through(logit, self.scale * cosine_b)
        return logit

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        bracket = (cosine_cb + self.margin).clamp_min_(0.0).mul_(self.scale)
        logit = (cosine_cb - self.margin).mul_(bracket)
        return logit, self.scale if self.gradient == "straight-through" else bracket
