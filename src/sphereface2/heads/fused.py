"""SGD that moves each block of class weights where it lies, so that no K×D gradient exists."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from sphereface2.heads.class_rows import BlockGradient
from sphereface2.heads.contract import require, require_positive


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
        require(
            math.isfinite(weight_decay) and weight_decay >= 0.0,
            f"weight_decay must be at least 0, got {weight_decay}",
        )
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
