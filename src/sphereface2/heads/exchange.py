"""What a head asks of the other ranks, and the answers when there are none."""

from typing import Protocol

from torch import Tensor


class Exchange(Protocol):
    """Sums over the shards of the classes; `heads.sharding` has the one for several ranks."""

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, known to all."""
        ...

    def softmax_sum(self, highest: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Over all ranks: the largest logit of each row, and Σ exp(logit - largest)."""
        ...


class Alone:
    """One rank holds all classes."""

    def sum(self, value: Tensor) -> Tensor:
        return value

    def softmax_sum(self, highest: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        return highest, total


ALONE = Alone()
