"""The base of every head with one weight vector (proxy) a class."""

import warnings
from typing import Literal

import torch
from torch import Tensor, nn

from sphereface2.heads.engine import Binary, Rows, Softmax, proxy_loss
from sphereface2.heads.head import Head

BiasKind = Literal["shared", "per-class", "none"]


class ProxyHead(Head):
    """K class weights and the maps that the engine needs (see `engine.ProxyMaps`).

    A new head defines `target_logit` and `other_logit`, and `prepare` or `reduction` where it
    differs from the defaults: no state of a row, softmax over the classes.
    """

    unit_weights = True
    unit_embeddings = True
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        bias: BiasKind = "none",
        bias_start: float = 0.0,
        normalize: bool = True,
    ) -> None:
        super().__init__(dim, num_classes)
        self.unit_weights = self.unit_embeddings = normalize
        weight = torch.empty(num_classes, dim)
        if normalize:
            # Rows of length one: the length of a row sets how far one step turns it.
            nn.init.normal_(weight)
            weight /= torch.linalg.vector_norm(weight, dim=1, keepdim=True)
        else:
            nn.init.xavier_normal_(weight)
        self.weight = nn.Parameter(weight)
        shape: dict[BiasKind, tuple[int, ...]] = {"shared": (), "per-class": (num_classes,)}
        if bias == "none":
            self.register_parameter("bias", None)
        else:
            self.bias = nn.Parameter(torch.full(shape[bias], float(bias_start)))
        self._told_unknown = False

    def reduction(self) -> Binary | Softmax:
        return Softmax()

    def prepare(self, cosine_b: Tensor, norm_b: Tensor, known_b: Tensor) -> Rows:
        return Rows(norm=norm_b, known=known_b)

    def target_logit(self, cosine_b: Tensor, rows: Rows) -> Tensor:
        raise NotImplementedError  # every head defines its own

    def other_logit(self, cosine_bc: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        raise NotImplementedError  # every head defines its own

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of the batch; a label of -1 marks a sample of no known class."""
        self.check_batch(embeddings, labels)
        if isinstance(self.reduction(), Softmax):
            self._tell_unknown(labels)
        loss, statistics = proxy_loss(self, embeddings, self.weight, self.bias, labels)
        if self.collect_statistics:
            if self.bias is not None:
                statistics["bias"] = self.bias.detach().mean()
            self._statistics = statistics
        return loss

    def _tell_unknown(self, labels: Tensor) -> None:
        if not self._told_unknown and bool((labels < 0).any()):
            self._told_unknown = True
            warnings.warn(
                f"{type(self).__name__} is a softmax head: it leaves out samples of no known class "
                "(label -1); the sphereface2 heads learn from them as negatives",
                stacklevel=3,
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_classes={self.num_classes}"
