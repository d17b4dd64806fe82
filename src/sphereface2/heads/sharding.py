"""Class weights over several ranks: who holds which classes, and what is exchanged in a step.

Every rank holds a contiguous range of classes and computes it for the whole batch. A binary head
gathers the embeddings and labels once, and then needs nothing of the others until the gradient of
the embeddings is summed and handed back, with one scalar for the bias. A softmax head stops once
more, for its normaliser.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sphereface2.heads.contract import ELSEWHERE, require

# The names of torch 2.13 and later, else those before; they mean the same.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_SHARDS: ContextVar[tuple[int, int] | None] = ContextVar("shards", default=None)


@contextmanager
def class_shards(rank: int, world: int) -> Iterator[None]:
    """Heads that are built inside hold only the classes of this rank."""
    require(0 <= rank < world, f"rank must lie in 0..{world - 1}, got {rank}")
    token = _SHARDS.set((rank, world))
    try:
        yield
    finally:
        _SHARDS.reset(token)


def class_range(num_classes: int) -> tuple[int, int]:
    """The classes start..stop-1 that a head built here and now has to hold."""
    shards = _SHARDS.get()
    if shards is None:
        return 0, num_classes
    rank, world = shards
    require(
        num_classes >= world,
        f"{num_classes} classes cannot be spread over {world} ranks: use at most {num_classes}",
    )
    # The same cut as torch's own sharded tensors make, so that checkpoints can be re-cut.
    size = -(-num_classes // world)
    return min(rank * size, num_classes), min((rank + 1) * size, num_classes)


def shard_exchange(num_classes: int) -> "Alone":
    """The exchange of a head that is built here and now."""
    shards = _SHARDS.get()
    if shards is None or shards[1] == 1:
        return Alone()
    return ShardExchange(*class_range(num_classes), rank=shards[0], world=shards[1])


@dataclass
class Traffic:
    """What this rank has sent and how often it had to wait for the others."""

    barriers: int = 0
    bytes_sent: int = 0

    def count(self, value: Tensor, *, copies: float) -> None:
        self.barriers += 1
        self.bytes_sent += int(value.numel() * value.element_size() * copies)


class Alone:
    """What a head asks of the other ranks, and the answers where one rank holds all classes."""

    world = 1

    def __init__(self) -> None:
        self.traffic = Traffic()

    def gather(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The batch of all ranks, without gradient."""
        return embeddings, labels

    def gather_with_gradient(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The batch of all ranks, for a loss that every rank computes alike from all of it."""
        return embeddings, labels

    def local_labels(self, labels: Tensor) -> Tensor:
        """Labels counted within this rank's classes."""
        return labels

    def scatter_sum(self, gradient: Tensor) -> Tensor:
        """This rank's rows of the gradient, summed over ranks, times their number."""
        return gradient

    def shared(self, parameter: Tensor) -> Tensor:
        """A parameter that all ranks hold and use on their own rows: its gradient is the whole."""
        return parameter

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, known to all."""
        return value

    def softmax_sum(self, highest: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Over all ranks: the largest logit of each row, and Σ exp(logit - largest)."""
        return highest, total


class ShardExchange(Alone):
    """The exchanges of a head whose classes lie on all ranks of the default process group.

    Bytes are those a rank sends in a ring: (N-1)/N of the result for a gather or a scatter of
    sums, twice that for a sum known to all.
    """

    def __init__(self, start: int, stop: int, *, rank: int, world: int) -> None:
        super().__init__()
        self.start, self.stop, self.rank, self.world = start, stop, rank, world

    def gather(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # By one collective: a label travels behind its embedding.
        rows = embeddings.detach().contiguous()
        packed = torch.cat(
            [
                rows.view(torch.uint8),
                labels.to(torch.int64)[:, None].contiguous().view(torch.uint8),
            ],
            dim=1,
        )
        whole = packed.new_empty((self.world * len(packed), packed.shape[1]))
        _all_gather(whole, packed)
        self.traffic.count(whole, copies=1 - 1 / self.world)
        width = rows.shape[1] * rows.element_size()
        all_rows = whole[:, :width].contiguous().view(rows.dtype)
        all_labels = whole[:, width:].contiguous().view(torch.int64).squeeze(1)
        return all_rows, all_labels

    def gather_with_gradient(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        rows, all_labels = self.gather(embeddings, labels)
        mine = slice(self.rank * len(embeddings), (self.rank + 1) * len(embeddings))
        # Every rank has the same gradient of the same loss, so none has to be sent: this rank's
        # rows get theirs, times the number of ranks, which the network's average takes back.
        own = embeddings.view_as(embeddings)
        if own.requires_grad:
            # torch leaves register_hook untyped
            own.register_hook(lambda g: g * self.world)  # type: ignore[no-untyped-call]
        rows[mine] = own
        return rows, all_labels

    def local_labels(self, labels: Tensor) -> Tensor:
        is_here = (labels >= self.start) & (labels < self.stop)
        elsewhere = torch.where(labels >= 0, ELSEWHERE, labels)
        return torch.where(is_here, labels - self.start, elsewhere)

    def scatter_sum(self, gradient: Tensor) -> Tensor:
        # Data-parallel training divides the backbone's gradients by the number of ranks; the loss
        # is a mean over the whole batch already, so the factor takes that division back.
        mine = gradient.new_empty((len(gradient) // self.world, gradient.shape[1]))
        _reduce_scatter(mine, gradient.contiguous())
        self.traffic.count(gradient, copies=1 - 1 / self.world)
        return mine.mul_(self.world)

    def shared(self, parameter: Tensor) -> Tensor:
        used = parameter.view_as(parameter)
        if used.requires_grad:
            # The gradient of a rank's rows is `world` times its part (see `scatter_sum`).
            used.register_hook(lambda g: self.sum(g) / self.world)  # type: ignore[no-untyped-call]
        return used

    def sum(self, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        self.traffic.count(total, copies=2 * (1 - 1 / self.world))
        return total

    def softmax_sum(self, highest: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        # Maximum and sum travel together, so that a softmax head waits once and not twice.
        mine = torch.stack([highest, total])
        every = mine.new_empty((self.world * 2, len(highest)))
        _all_gather(every, mine)
        self.traffic.count(every, copies=1 - 1 / self.world)
        tops, sums = every.view(self.world, 2, -1).unbind(dim=1)
        top = tops.amax(dim=0)
        return top, (sums * (tops - top).exp()).sum(dim=0)
