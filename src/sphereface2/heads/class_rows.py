"""The class weights as the engine sees them: read in blocks, and written or moved in blocks.

`FusedSGD` is what moves them where they lie.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sphereface2.heads.contract import require, require_positive


@dataclass(frozen=True)
class BlockGradient:
    """dL/dW of a block, not yet multiplied out: unit·(G·X - along·W).

    G is dL/dcosine over the rows' norms (C×B), X the embeddings (B×D), both in the precision of
    products; `along` is what G·X has too much along W, None where the weights are not unit vectors.
    """

    product_g: Tensor
    product_x: Tensor
    along_c: Tensor | None
    unit: float


class FusedSGD(torch.optim.Optimizer):
    """Momentum SGD for a head's class weights, done inside the head's forward pass.

    The rule is that of `torch.optim.SGD`: v = μv + (gradient + decay·w), w = w - lr·v. The engine
    calls `apply` for a block as soon as its gradient is known, while the block is in the cache,
    so the weights have moved when the head's forward returns. Hence: set the learning rate
    before the forward pass, let the loss enter the backward pass with weight `loss_scale` (1), and
    clip gradients, if at all, without these weights. `step` and `zero_grad` have nothing left to
    do; schedules and checkpoints treat it like any other optimiser.
    """

    def __init__(
        self, weight: nn.Parameter, *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        require_positive(lr=lr)
        require(0.0 <= momentum < 1.0, f"momentum must lie in [0, 1), got {momentum}")
        require_positive(or_zero=True, weight_decay=weight_decay)
        super().__init__([weight], {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.state[weight]["momentum_buffer"] = torch.zeros_like(
            weight, memory_format=torch.preserve_format
        ).detach()
        self.loss_scale = 1.0
        self._noted: tuple[Tensor, float] | None = None

    @property
    def momentum_buffer(self) -> Tensor:
        buffer: Tensor = self.state[self.param_groups[0]["params"][0]]["momentum_buffer"]
        return buffer

    def apply(self, weight_cd: Tensor, momentum_cd: Tensor, gradient: BlockGradient) -> None:
        """Move a block by its gradient and the decay."""
        group = self.param_groups[0]
        momentum, decay, unit = group["momentum"], group["weight_decay"], gradient.unit
        product_g, product_x, along_c = gradient.product_g, gradient.product_x, gradient.along_c
        if product_g.dtype == momentum_cd.dtype:
            # One product that also scales the momentum: the gradient is never written down.
            momentum_cd.addmm_(product_g, product_x, beta=momentum, alpha=unit)
        else:
            product = (product_g @ product_x).to(momentum_cd.dtype)
            momentum_cd.mul_(momentum).add_(product, alpha=unit)
        if along_c is not None:
            momentum_cd.addcmul_(weight_cd, (decay - unit * along_c)[:, None])
        elif decay:
            momentum_cd.add_(weight_cd, alpha=decay)
        weight_cd.add_(momentum_cd, alpha=-group["lr"])

    def note_weight(self, weight: Tensor) -> None:
        """Take note of the weight with which the loss enters the backward pass.

        A wrong one is refused at once, or, if a device knows it, with the next log.
        """
        self._noted = weight, self.loss_scale
        if weight.device.type == "cpu":
            self.check_weight()

    def check_weight(self) -> None:
        """A RuntimeError if the weights have moved by another loss than was differentiated."""
        if self._noted is None:
            return
        (noted, scale), self._noted = self._noted, None
        weight = float(noted.cpu().numpy())
        if weight != scale:
            raise RuntimeError(
                f"the head's loss enters the backward pass with weight {weight:g}, but "
                f"fused_sgd has moved the class weights by loss_scale = {scale:g}; "
                "use the head's loss as it is, or an ordinary optimiser"
            )

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no loss to give back
        """Nothing: the weights moved in the forward pass."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: there is no gradient."""


# Sampled negatives: a step reads only the batch's own classes and a random share of the others.


@dataclass(frozen=True)
class Sample:
    """The classes that take part in a step.

    index: their rows, rising, a class perhaps twice; None: all classes;
    labels: the batch's labels counted within them;
    class_weight: what each counts as a negative so that the sum is right on average; None: 1;
    repeats: which of them are there a second time, and weigh nothing.
    """

    index: Tensor | None
    labels: Tensor
    class_weight: Tensor | None = None
    repeats: Tensor | None = None


def sample_classes(labels: Tensor, num_classes: int, rate: float, *, dtype: torch.dtype) -> Sample:
    """The classes of `labels` and each other class with probability `rate`, on their device.

    One class is drawn from each of rate·K equal spans of classes, which takes time in the number of
    draws and not in the number of classes. It weighs as many classes as its span has; the batch's
    own classes are always seen and weigh 1. How many places there are depends on the sizes alone,
    so that nothing waits for a device: a class that comes twice is a repeat, and a row without a
    class of its own repeats the first draw.
    """
    if num_classes == 0:
        empty = labels.new_empty(0)
        return Sample(empty, labels, empty.to(dtype))
    draws = max(1, math.ceil(rate * num_classes))
    edges = torch.arange(draws + 1, device=labels.device) * num_classes // draws
    width = edges.diff()
    share = torch.rand(draws, dtype=torch.float64, device=labels.device)
    drawn = edges[:-1] + torch.minimum((share * width).long(), width - 1)
    is_known = labels >= 0
    own = torch.where(is_known, labels.long(), drawn[:1])
    # Stable, so that of a class that comes twice a draw comes first.
    index, order = torch.cat([drawn, own]).sort(stable=True)
    repeats = torch.zeros_like(index, dtype=torch.bool)
    repeats[1:] = index[1:] == index[:-1]
    places = torch.searchsorted(index, own)
    is_own = torch.zeros_like(index).scatter_reduce(0, places, is_known.long(), "amax").bool()
    class_weight = torch.where(is_own, 1, torch.cat([width, torch.ones_like(own)])[order])
    class_weight = class_weight.masked_fill(repeats, 0).to(dtype)
    return Sample(index, torch.where(is_known, places, labels), class_weight, repeats)


class ClassRows:
    """All class weights, or those among them that a sample names; its repeats move nothing.

    With a `step` the rows are moved block by block; otherwise a gradient of the weight's shape is
    filled, if it is wanted. A class may have several centres (K × centres × D); blocks are counted
    in classes and read as rows of all their centres. With `columns` a class is only that part of
    its rows.
    """

    def __init__(
        self,
        weight: Tensor,
        sample: Sample,
        *,
        wants_gradient: bool,
        step: FusedSGD | None,
        columns: slice,
    ) -> None:
        self.weight = weight[..., columns]
        self.step = step
        self._columns = columns
        self.index = sample.index
        self._sample = sample
        self._gradient: Tensor | None = None
        if wants_gradient and step is None:
            # Rows that are not sampled have no gradient; all others are filled by `write`.
            make = torch.empty_like if self.index is None else torch.zeros_like
            self._gradient = make(self.weight)

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def centres(self) -> int:
        """How many centres a class has."""
        return 1 if self.weight.ndim == 2 else self.weight.shape[1]

    def __len__(self) -> int:
        return len(self.weight) if self.index is None else len(self.index)

    def gather(self, rows: Tensor) -> Tensor:
        """The centres (n × centres × D) of the given classes, counted among those taking part."""
        own = self.weight[rows if self.index is None else self.index[rows]]
        return own if own.ndim == 3 else own[:, None]

    def pick(self, per_class: Tensor) -> Tensor:
        """Of something with an entry per class, the entries of the rows that take part."""
        return per_class if self.index is None else per_class[self.index]

    def add(self, per_class: Tensor, start: int, stop: int, values: Tensor) -> None:
        """Add the entries of a block to something with an entry per class."""
        if self.index is None:
            per_class[start:stop] += values
        else:
            per_class.index_add_(0, self.index[start:stop], values)

    def add_rows(self, per_class: Tensor, rows: Tensor, values: Tensor) -> None:
        """Add entries of the given classes, counted among those taking part; one may come twice."""
        per_class.index_add_(0, rows if self.index is None else self.index[rows], values)

    def class_weight(self, start: int, stop: int) -> Tensor | None:
        every = self._sample.class_weight
        return None if every is None else every[start:stop]

    def read(self, start: int, stop: int) -> Tensor:
        """The weights of a block: a view, or a copy where the rows are sampled."""
        return _centre_rows(self.weight[self._classes(start, stop)])

    def write(self, start: int, stop: int, gradient: BlockGradient) -> None:
        """Take in the gradient of a block: as such, or as a move of its weights."""
        if self.step is not None:
            self._move(self.step, start, stop, gradient)
        elif self._gradient is not None:
            classes = self._classes(start, stop)
            block = (gradient.product_g @ gradient.product_x).to(self.dtype)
            if gradient.along_c is not None:
                rows = _centre_rows(self.weight[classes])
                block.addcmul_(rows, gradient.along_c[:, None], value=-1.0)
            self._put(self._gradient, start, stop, block.mul_(gradient.unit))

    def gradient(self) -> Tensor | None:
        """dL/dW, once every block has been written; None where it was not wanted."""
        return self._gradient

    def _move(self, step: FusedSGD, start: int, stop: int, gradient: BlockGradient) -> None:
        momentum = step.momentum_buffer[..., self._columns]
        classes = self._classes(start, stop)
        weight_block = _centre_rows(self.weight[classes])
        momentum_block = _centre_rows(momentum[classes])
        step.apply(weight_block, momentum_block, gradient)
        if self.index is not None:
            # Only the sampled rows are read, moved, decayed and written back.
            self._put(self.weight, start, stop, weight_block)
            self._put(momentum, start, stop, momentum_block)

    def _put(self, per_class: Tensor, start: int, stop: int, rows: Tensor) -> None:
        """Write the rows of a block to where they belong."""
        values = rows.view(-1, *per_class.shape[1:])
        classes = self._classes(start, stop)
        repeats = self._sample.repeats
        if isinstance(classes, slice) or repeats is None:
            per_class[classes] = values
            return
        # As what is to be added, which is nothing for a repeat: two writes to a row would race.
        difference = values - per_class[classes]
        is_repeat = repeats[start:stop].view(-1, *(1,) * (values.ndim - 1))
        per_class.index_add_(0, classes, difference.masked_fill_(is_repeat, 0.0))

    def _classes(self, start: int, stop: int) -> slice | Tensor:
        return slice(start, stop) if self.index is None else self.index[start:stop]


def _centre_rows(block: Tensor) -> Tensor:
    """All centres of a block as rows: a view."""
    return block if block.ndim == 2 else block.view(-1, block.shape[-1])
