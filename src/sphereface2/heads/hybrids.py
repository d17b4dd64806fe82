"""Hybrid heads: plain softmax with a second term on the embeddings (DeepID2, Ring loss)."""

import torch
from torch import Tensor, nn

from sphereface2.heads.contract import mean_of, require_positive
from sphereface2.heads.pairs import contrastive_loss, pair_masks, require_pairs, unit_rows
from sphereface2.heads.softmax import PlainSoftmax


class DeepID2(PlainSoftmax):
    """DeepID2 (NIPS 2014): identification by softmax plus verification by the contrastive loss.

    Softmax + `pair_weight` × contrastive loss of the batch's pairs, on unit embeddings.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 1.0,
        pair_weight: float = 1.0,
        images_per_person: int = 2,
    ) -> None:
        super().__init__(dim, num_classes)
        require_positive(margin=margin)
        require_positive(or_zero=True, pair_weight=pair_weight)
        require_pairs(images_per_person)
        self.margin = float(margin)
        self.pair_weight = float(pair_weight)
        self.images_per_person = images_per_person

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = super().forward(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings, labels = self.whole_batch(embeddings, labels)
            unit = unit_rows(embeddings)
            same, different = pair_masks(labels)
            pairs = contrastive_loss(unit @ unit.T, same, different, self.margin)
        return loss + self.pair_weight * pairs


class Ring(PlainSoftmax):
    """Ring loss (CVPR 2018): softmax plus a pull of every embedding's length to a learned R.

    Softmax + λ/2 · mean (‖x‖ - R)², `ring_weight` being λ.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        ring_weight: float = 0.01,
        ring_start: float = 20.0,
    ) -> None:
        super().__init__(dim, num_classes)
        require_positive(or_zero=True, ring_weight=ring_weight)
        require_positive(ring_start=ring_start)
        self.ring_weight = float(ring_weight)
        self.ring_radius = nn.Parameter(torch.tensor(float(ring_start)))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = super().forward(embeddings, labels)
        length = torch.linalg.vector_norm(embeddings.to(self.weight.dtype), dim=1, keepdim=True)
        length, labels = self.whole_batch(length, labels)
        length, known = length.squeeze(1), labels >= 0
        if self.collect_statistics:
            self._statistics["mean_norm"] = mean_of(length.detach(), known, empty=torch.nan)
            self._statistics["ring_radius"] = self.ring_radius.detach().clone()
        pull = mean_of((length - self.ring_radius).square(), known)
        return loss + 0.5 * self.ring_weight * pull
