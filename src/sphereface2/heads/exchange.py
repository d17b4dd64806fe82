"""What a head asks of the other ranks, and the answers when there are none."""

from typing import Protocol

from torch import Tensor


class Exchange(Protocol):
    """Sums over the shards of the classes; `heads.sharding` has the one for several ranks."""

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, known to all."""
        ...

    def log_sum_exp(self, highest: Tensor, total: Tensor) -> Tensor:
        """log Σ total·exp(highest) over all ranks, from each rank's largest logit and sum."""
        ...


class Alone:
    """One rank holds all classes."""

    def sum(self, value: Tensor) -> Tensor:
        return value

    def log_sum_exp(self, highest: Tensor, total: Tensor) -> Tensor:
        return highest + total.log()


ALONE = Alone()
