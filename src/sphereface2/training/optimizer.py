"""Stochastic gradient descent over backbone and head, and the clipping of their gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sphereface2.config import OptimizerConfig


def build_optimizer(
    backbone: nn.Module, head: nn.Module, config: OptimizerConfig
) -> torch.optim.SGD:
    """SGD with momentum, as the paper trains.

    Weight decay is on all of the backbone, biases and norms included, as in the authors' code,
    and on the class weights of the head. It is not on the head's biases: SphereFace2's shared
    bias is the threshold that all classifiers agree on (-24 to 22 at the start of the published
    settings), and decay would pull it to zero whatever the data say.
    """
    head_decay = config.head_weight_decay
    if head_decay is None:
        head_decay = config.weight_decay
    trained = [parameter for parameter in head.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {
            "params": [p for p in backbone.parameters() if p.requires_grad],
            "weight_decay": config.weight_decay,
        },
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": head_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=config.nesterov,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this learning rate for every parameter."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: Iterable[nn.Parameter], clip_norm: float | None) -> Tensor:
    """The norm of the gradient over all parameters together, which is then at most `clip_norm`."""
    having = [parameter for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in having if p.grad is not None])
    if clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(having, clip_norm, norm)
    return norm
