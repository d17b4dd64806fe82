"""The gradient of one step, in one piece or in micro-batches that give the very same gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm

from sphereface2.training.devices import own_random_numbers, seed_random_numbers


def add_gradients(
    backbone: nn.Module,
    head: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    micro_batches: int = 1,
    prepare: Callable[[Tensor], Tensor] | None = None,
    precision: torch.dtype | None = None,
    scaler: GradScaler | None = None,
    seed: tuple[int, ...] = (0,),
    head_seed: tuple[int, ...] = (0,),
) -> Tensor:
    """Add the gradient of the batch's loss to the parameters of both; returns the loss.

    The head sees the whole batch once, however many micro-batches there are, for a loss may
    couple the samples of a batch. With several micro-batches the backbone therefore runs twice:
    first without a graph for the embeddings, then, once the head has given their gradient, micro-
    batch by micro-batch with a graph. So memory is that of a micro-batch, time is a third more,
    and the gradient is that of the large batch. Batch norm alone differs: it normalises over a
    micro-batch, and updates its running statistics once for each.

    `prepare` turns the images into the network's input. `precision` is for the products of the
    backbone and of the head; the head gets its embeddings in float32, and keeps its margins in
    that. `seed` determines dropout, `head_seed` what the head draws. On several ranks `images` and
    `labels` are a rank's share of the batch.
    """

    def half_products() -> AbstractContextManager[None]:
        return torch.autocast(images.device.type, dtype=precision, enabled=precision is not None)

    def embed(part: int, part_images: Tensor) -> Tensor:
        # Seeded by its number, a micro-batch draws the same dropout in both passes.
        seed_random_numbers(*seed, part)
        inputs = part_images if prepare is None else prepare(part_images)
        with half_products():
            embeddings: Tensor = backbone(inputs)
        return embeddings if precision is None else embeddings.float()

    def head_backward(embeddings: Tensor) -> Tensor:
        seed_random_numbers(*head_seed)
        with half_products():
            loss: Tensor = head(embeddings, labels)
        torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
        return loss.detach()

    with own_random_numbers(images.device):
        if micro_batches == 1:
            return head_backward(embed(0, images))
        parts = images.chunk(micro_batches)
        with torch.no_grad(), _kept_statistics(backbone):
            embeddings = torch.cat([embed(part, piece) for part, piece in enumerate(parts)])
        embeddings.requires_grad_()
        loss = head_backward(embeddings)
        assert embeddings.grad is not None
        gradients = embeddings.grad.chunk(micro_batches)
        for part, (piece, gradient) in enumerate(zip(parts, gradients, strict=True)):
            is_last = part == micro_batches - 1
            with nullcontext() if is_last else _without_exchange(backbone):
                torch.autograd.backward(embed(part, piece), gradient)
        return loss


def settle(backbone: nn.Module, inputs: Tensor) -> None:
    """Run a network forth and back once, without a trace in its state.

    A data-parallel network puts the gradients into the order in which they arrived the first time,
    and the order is in the last bits of their sums. After this a run that goes on has the same
    order as one that was never stopped.
    """
    with own_random_numbers(inputs.device), _kept_statistics(backbone):
        torch.autograd.backward(backbone(inputs).sum())
    for parameter in backbone.parameters():
        parameter.grad = None


def _without_exchange(backbone: nn.Module) -> AbstractContextManager[None]:
    """Gradients stay on their rank, to be summed with those of the last micro-batch."""
    if isinstance(backbone, nn.parallel.DistributedDataParallel):
        return backbone.no_sync()
    return nullcontext()


@contextmanager
def _kept_statistics(backbone: nn.Module) -> Iterator[None]:
    """Batch norm normalises by the batch, as ever, but leaves its running statistics alone."""
    norms = [m for m in backbone.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    try:
        for norm in norms:
            norm.track_running_stats = False
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
