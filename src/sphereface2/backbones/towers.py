"""Towers: several networks of one kind that are trained side by side and used as one."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sphereface2.backbones.backbone import Backbone


class Towers(Backbone):
    """Networks that see the same image; an embedding holds one part from each of them.

    They start from weights of their own, and a head with class weights classifies every part by
    itself (`ProxyHead.split`), so that each learns as it would alone and errs in its own way. In
    evaluation the parts are of one length: the cosine of two embeddings is the mean of the towers'.
    """

    def __init__(
        self, build: Callable[[int], Backbone], *, towers: int, embedding_dim: int
    ) -> None:
        """build: makes one tower with an embedding of so many numbers"""
        if towers < 1:
            raise ValueError(f"backbone.towers must be at least 1, got {towers}")
        if embedding_dim % towers:
            near = max(1, round(embedding_dim / towers)) * towers
            raise ValueError(
                f"backbone.embedding_dim={embedding_dim} is not {towers} equal parts, one for each "
                f"of backbone.towers={towers}; backbone.embedding_dim={near} is"
            )
        made = [build(embedding_dim // towers) for _ in range(towers)]
        super().__init__(width=1, input_size=made[0].input_size, embedding_dim=embedding_dim)
        self.towers = nn.ModuleList(made)

    def embed(self, images: Tensor) -> Tensor:
        parts = [tower(images) for tower in self.towers]
        if not self.training:
            parts = [normalize(part.float()) for part in parts]
        return torch.cat(parts, dim=1)

    def parts(self) -> list[Backbone]:
        return [tower for tower in self.towers if isinstance(tower, Backbone)]
