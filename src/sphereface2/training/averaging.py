"""The average of a network's weights over its training, evaluated and exported in their place."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sphereface2.backbones.backbone import Backbone
from sphereface2.config.schema import AverageConfig

AVERAGED = "average.backbone."
"""How the tensors of the averaged network begin in a checkpoint."""


def build_average(backbone: Backbone, config: AverageConfig | None) -> WeightAverage | None:
    """The average that a config asks for, of the backbone as it will be step by step."""
    if config is None:
        return None
    if config.decay is not None:
        return ExponentialAverage(backbone, decay=config.decay)
    assert config.last_epochs is not None
    return EpochAverage(backbone, epochs=config.last_epochs)


class WeightAverage:
    """A second network with averaged weights, and what is needed to keep averaging.

    Running statistics of batch norm do not average: those of a network with the mean of two
    networks' weights are not the mean of theirs. `renew_statistics` makes them from images.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.network = copy.deepcopy(backbone).eval().requires_grad_(False)

    def start(self) -> None:
        """Begin with the backbone as it is now: it may have been given weights meanwhile."""
        self._copy(self.backbone.state_dict())

    def add(self, step: int, *, ends_epoch: bool) -> None:
        """Count the backbone in as it is after `step` updates."""
        raise NotImplementedError  # every average has its own rule

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by name: the tensors themselves."""
        return {f"{AVERAGED}{name}": value for name, value in self.network.state_dict().items()}

    def borrow_statistics(self) -> None:
        """Take over the backbone's running statistics: near enough until they are made again."""
        self._copy(dict(self.backbone.named_buffers()))

    def _copy(self, values: Mapping[str, Tensor]) -> None:
        own = self.network.state_dict()
        with torch.no_grad():
            for name, value in values.items():
                own[name].copy_(value)

    def renew_statistics(
        self, inputs: Iterable[Tensor], *, frozen: Iterable[nn.Module] = ()
    ) -> None:
        """Make batch norm's running statistics from batches of inputs, each weighing the same.

        Dropout stays off, as it will be in use. Parts of the backbone that are `frozen` keep the
        statistics that they were given.
        """
        self.borrow_statistics()
        kept = {id(module) for part in frozen for module in part.modules()}
        both = zip(self.network.modules(), self.backbone.modules(), strict=True)
        norms = [
            mine for mine, theirs in both if isinstance(mine, _BatchNorm) and id(theirs) not in kept
        ]
        if not norms:
            return
        with torch.no_grad(), _cumulative(norms):
            for batch in inputs:
                self.network(batch)


class ExponentialAverage(WeightAverage):
    """average = d·average + (1 - d)·weights after each step, with d = min(decay, (1 + n)/(10 + n)).

    n counts the steps: early on the average follows fast, so that it does not drag the random
    start along.
    """

    def __init__(self, backbone: Backbone, *, decay: float) -> None:
        super().__init__(backbone)
        self.decay = decay

    def add(self, step: int, *, ends_epoch: bool) -> None:
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        for mine, value in zip(self.network.parameters(), self.backbone.parameters(), strict=True):
            mine.lerp_(value.detach(), share)


class EpochAverage(WeightAverage):
    """The mean of the networks at the ends of the last epochs, as many as there are so far.

    The networks themselves are kept, in main memory, so that the oldest can leave the mean.
    """

    def __init__(self, backbone: Backbone, *, epochs: int) -> None:
        super().__init__(backbone)
        self.kept = {
            name: torch.zeros(epochs, *value.shape, dtype=value.dtype)
            for name, value in backbone.named_parameters()
        }
        self.added = torch.zeros((), dtype=torch.int64)
        self.epochs = epochs

    def add(self, step: int, *, ends_epoch: bool) -> None:
        if not ends_epoch:
            if not self.added:  # of a training that is stopped in its first epoch
                self._copy(dict(self.backbone.named_parameters()))
            return
        place = int(self.added) % self.epochs
        self.added += 1
        count = min(int(self.added), self.epochs)
        for name, value in self.backbone.named_parameters():
            self.kept[name][place].copy_(value.detach())
        self._copy({name: kept[:count].mean(0) for name, kept in self.kept.items()})

    def tensors(self) -> dict[str, Tensor]:
        kept = {f"average.epochs.{name}": value for name, value in self.kept.items()}
        return {**super().tensors(), **kept, "average.added": self.added}


@contextmanager
def _cumulative(norms: list[_BatchNorm]) -> Iterator[None]:
    """Batch norm normalises by the batch, and its running statistics become plain means."""
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            norm.momentum = None
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.eval()
            norm.momentum = momentum
