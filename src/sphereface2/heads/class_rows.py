"""The class weights as the engine sees them: read in blocks, and written or moved in blocks."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockGradient:
    """dL/dW of a block, not yet multiplied out: unit·(G·X - along·W).

    G is dL/dcosine over the rows' norms (C×B), X the embeddings (B×D), both in the precision of
    products; `along` is what G·X has too much along W, None where the weights are no unit vectors.
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

    `index` names the rows that take part, in rising order; None means all. `class_weight` is what
    each of them counts as a negative. With a `step` the rows are moved block by block; otherwise
    a gradient of the weight's shape is filled, if it is wanted. A class may have several centres
    (K × centres × D); blocks are counted in classes and read as rows of all their centres.
    """

    def __init__(
        self,
        weight: Tensor,
        *,
        wants_gradient: bool = False,
        step: Step | None = None,
        index: Tensor | None = None,
        class_weight: Tensor | None = None,
    ) -> None:
        self.weight = weight
        self.step = step
        self.index = index
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

    def put(self, per_class: Tensor, start: int, stop: int, values: Tensor) -> None:
        """Write the entries of a block into something with an entry per class."""
        if self.index is None:
            per_class[start:stop] = values
        else:
            per_class[self.index[start:stop]] = values

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
            self._gradient[classes] = block.mul_(gradient.unit).view(-1, *self.weight.shape[1:])

    def gradient(self) -> Tensor | None:
        """dL/dW, once every block has been written; None where it was not wanted."""
        return self._gradient

    def zero_gradient(self) -> Tensor | None:
        """dL/dW of a batch in which no row counts."""
        return None if self._gradient is None else self._gradient.zero_()

    def _move(self, step: Step, start: int, stop: int, gradient: BlockGradient) -> None:
        momentum = step.momentum_buffer
        classes = self._classes(start, stop)
        weight_block, momentum_block = self.weight[classes], momentum[classes]
        step.apply(_centre_rows(weight_block), _centre_rows(momentum_block), gradient)
        if self.index is not None:
            # Only the sampled rows are read, moved, decayed and written back.
            self.weight[classes] = weight_block
            momentum[classes] = momentum_block

    def _classes(self, start: int, stop: int) -> slice | Tensor:
        return slice(start, stop) if self.index is None else self.index[start:stop]


def _centre_rows(block: Tensor) -> Tensor:
    """All centres of a block as rows: a view."""
    return block if block.ndim == 2 else block.view(-1, block.shape[-1])
