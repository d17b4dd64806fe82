"""Samples against samples: a head whose class weights are remembered embeddings."""

from typing import Any

import torch
from torch import Tensor

from sphereface2.heads.class_rows import Sample
from sphereface2.heads.contract import ELSEWHERE
from sphereface2.heads.proxy import ProxyHead


class FeatureMemory(ProxyHead):
    """Mix-in before a head with class weights, which become a memory that no gradient moves.

    It keeps the last embedding of each person that was seen in training; a person without one
    takes no part. A learned class weight fits the very images that it is learned from, five of
    them or however many a person has; a remembered embedding is mostly of another image.
    """

    filled: Tensor

    def __init__(self, dim: int, num_classes: int, **options: Any) -> None:
        with torch.random.fork_rng(devices=[]):  # the memory draws nothing that lasts
            super().__init__(dim, num_classes, **options)
        remembered = torch.zeros_like(self.weight).detach()
        del self.weight
        self.register_buffer("weight", remembered)
        self.register_buffer("filled", torch.zeros(len(remembered), dtype=torch.bool))

    @property
    def per_class(self) -> set[str]:
        return {"weight", "filled"}

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch that the head which owns this memory has checked."""
        loss = self.engine_loss(embeddings, labels, self.bias)
        if self.training:
            self._remember(embeddings, labels)
        return loss

    def taking_part(self, labels: Tensor) -> Sample:
        # A class without an embedding weighs nothing as a negative. A person who is not remembered
        # yet has no positive here, and all others are negatives.
        if len(self.filled):
            is_absent = (labels >= 0) & ~self.filled[labels.clamp_min(0)]
            labels = torch.where(is_absent, ELSEWHERE, labels)
        return Sample(None, labels, class_weight=self.filled.to(self.weight.dtype))

    def _remember(self, embeddings: Tensor, labels: Tensor) -> None:
        """Keep the last embedding of each person of the whole batch."""
        rows, labels = self.exchange.gather(embeddings.detach(), labels)
        labels = self.exchange.local_labels(labels)
        if not len(self.filled):
            return
        order = torch.arange(len(labels), device=labels.device)
        is_here = labels >= 0
        # A row of another rank or of nobody repeats what one of this rank does, if there is one.
        instead = is_here.to(torch.uint8).argmax()
        place = torch.where(is_here, labels, labels.index_select(0, instead[None])).clamp_min(0)
        last = torch.full_like(self.filled, -1, dtype=order.dtype)
        last = last.scatter_reduce(0, place, torch.where(is_here, order, -1), "amax")[place]
        # Rows of one person all write that person's last one, so their order does not matter.
        found = torch.where(is_here.any(), rows[last.clamp_min(0)].to(self.weight.dtype),
                            self.weight[place])  # fmt: skip
        self.weight[place] = found
        self.filled[place] = self.filled[place] | is_here.any()


class PairTerm(ProxyHead):
    """Mix-in: the head's own loss, and `pair_weight` times that of `pairs`, where there is one."""

    pairs: FeatureMemory | None
    pair_weight: float

    @property
    def per_class(self) -> set[str]:
        of_pairs = set() if self.pairs is None else self.pairs.per_class
        return super().per_class | {f"pairs.{name}" for name in of_pairs}

    def split(self, parts: int) -> None:
        super().split(parts)
        if self.pairs is not None:
            self.pairs.split(parts)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = super().forward(embeddings, labels)
        if self.pairs is None:
            return loss
        pairs: Tensor = self.pairs(embeddings, labels)
        return loss + self.pair_weight * pairs
