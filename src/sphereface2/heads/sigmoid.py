"""Sigmoid loss with a trainable scale and a relative bias, over classes instead of captions."""

import math

import torch
from torch import Tensor, nn

from sphereface2.heads.contract import Binary, Rows, require, require_positive
from sphereface2.heads.head import MarginHead, MarginSchedule
from sphereface2.heads.proxy import ProxyHead


class Sigmoid(MarginHead, ProxyHead):
    """Sigmoid loss (SigLIP, ICCV 2023) over classes, its scale and its threshold both learned:

        log(1 + exp(-s(cos θ_y - m - β))) + w · Σ_{i≠y} log(1 + exp(s(cos θ_i - β)))

    s = exp(`log_scale`) is trained, and the bias is relative: β is a cosine, so that moving the
    scale leaves the threshold where it is.

    Args:
        scale_start: where s starts.
        relative_bias_start: where β starts; None is log(10·K)/s, where the sum over all negatives
            is a tenth.
        margin: m of the positive term.
        negative_weight: w of the negative terms.
        margin_schedule: (epoch, margin) points, or {from, to, epochs, shape} (`MarginHead`).
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        scale_start: float = 30.0,
        relative_bias_start: float | None = None,
        margin: float = 0.0,
        negative_weight: float = 1.0,
        margin_schedule: MarginSchedule | None = None,
    ) -> None:
        super().__init__(dim, num_classes)
        self.unit_embeddings = False  # they come with the length s, see `forward`
        require_positive(scale_start=scale_start, negative_weight=negative_weight)
        start = relative_bias_start
        if start is None:
            start = math.log(10.0 * num_classes) / scale_start
        require(math.isfinite(start), f"relative_bias_start must be a finite number, got {start}")
        self.negative_weight = float(negative_weight)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale_start)))
        self.relative_bias = nn.Parameter(torch.tensor(float(start)))
        self.set_margin(margin, margin_schedule)

    def reduction(self) -> Binary:
        return Binary(1.0, self.negative_weight)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        return cosine_b - self.margin * rows.norm  # whose norm is s

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        return cosine_cb.clone(), 1.0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.check_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            scale = self.log_scale.exp()
            parts = embeddings.to(scale.dtype).reshape(-1, self.parts, self.dim // self.parts)
            length = torch.linalg.vector_norm(parts, dim=2, keepdim=True).clamp_min(1e-12)
            rows = (parts / length).flatten(1) * self.exchange.shared(scale)
        # s·cos θ is the product with such a row, and autograd takes its gradient on to s.
        loss = self.engine_loss(rows, labels, -scale * self.relative_bias)
        for name in ("positive_score", "negative_score"):
            if name in self._statistics:
                self._statistics[name] = self._statistics[name] / scale.detach()
        if self.collect_statistics:
            self._statistics["scale"] = scale.detach().clone()
        return loss

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, margin={self.margin:g}"
