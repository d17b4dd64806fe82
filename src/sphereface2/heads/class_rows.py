"""The class weights as the engine sees them: read in blocks, and written or moved in blocks."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


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


class Step(Protocol):
    """An update rule that moves a block of weights where it lies (see `heads.fused`)."""

    def apply(self, weight_cd: Tensor, momentum_cd: Tensor, gradient: BlockGradient) -> None: ...

    @property
    def momentum_buffer(self) -> Tensor: ...


class ClassRows:
    """All class weights, or the sampled ones among them.

    `index` names the rows that take part, in rising order; None means all. A row may stand there
    twice, so that the length is known beforehand; of such, all but one are `repeats`, and they
    move nothing. `class_weight` is what each class counts as a negative, 0 for repeats. With a
    `step` the rows are moved block by block; otherwise a gradient of the weight's shape is filled,
    if it is wanted. A class may have several centres
    (K × centres × D); blocks are counted in classes and read as rows of all their centres.
    """

    def __init__(
        self,
        weight: Tensor,
        *,
        wants_gradient: bool = False,
        step: Step | None = None,
        index: Tensor | None = None,
        repeats: Tensor | None = None,
        class_weight: Tensor | None = None,
    ) -> None:
        self.weight = weight
        self.step = step
        self.index = index
        self._repeats = repeats
        self._class_weight = class_weight
        self._gradient: Tensor | None = None
        if wants_gradient and step is None:
            # Rows that are not sampled have no gradient; all others are filled by `write`.
            make = torch.empty_like if index is None else torch.zeros_like
            self._gradient = make(weight)

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
        return None if self._class_weight is None else self._class_weight[start:stop]

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

    def _move(self, step: Step, start: int, stop: int, gradient: BlockGradient) -> None:
        momentum = step.momentum_buffer
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
        if isinstance(classes, slice) or self._repeats is None:
            per_class[classes] = values
            return
        # As what is to be added, which is nothing for a repeat: two writes to a row would race.
        difference = values - per_class[classes]
        is_repeat = self._repeats[start:stop].view(-1, *(1,) * (values.ndim - 1))
        per_class.index_add_(0, classes, difference.masked_fill_(is_repeat, 0.0))

    def _classes(self, start: int, stop: int) -> slice | Tensor:
        return slice(start, stop) if self.index is None else self.index[start:stop]


def _centre_rows(block: Tensor) -> Tensor:
    """All centres of a block as rows: a view."""
    return block if block.ndim == 2 else block.view(-1, block.shape[-1])
