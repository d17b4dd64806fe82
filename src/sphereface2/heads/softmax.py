"""Softmax heads without a margin: plain softmax and NormFace (Coco loss)."""

from torch import Tensor

from sphereface2.heads.contract import Rows, require_positive
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
