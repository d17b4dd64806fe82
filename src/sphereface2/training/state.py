"""The tensors that a run is made of at a step, by name: what a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sphereface2.heads.head import Head
from sphereface2.heads.proxy import ProxyHead


def class_parameters(head: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a head with a row for each class, by name."""
    if not isinstance(head, ProxyHead):
        return {}
    return {name: value for name, value in head.named_parameters() if _is_per_class(head, name)}


def _is_per_class(head: ProxyHead, name: str) -> bool:
    return name == "weight" or (name == "bias" and head.bias is not None and head.bias.ndim == 1)


def state_tensors(
    backbone: nn.Module, head: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Parameters, buffers and momentum, as the tensors themselves: filling them sets the state.

    Momentum stands under the name of its parameter, whichever optimiser moves that.
    """
    found = {
        **{f"backbone.{name}": value for name, value in backbone.state_dict().items()},
        **{f"head.{name}": value for name, value in head.state_dict().items()},
    }
    names = {
        **{parameter: f"backbone.{name}" for name, parameter in backbone.named_parameters()},
        **{parameter: f"head.{name}" for name, parameter in head.named_parameters()},
    }
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"] if group["momentum"] else ():
                state = optimizer.state[parameter]
                if state.get("momentum_buffer") is None:
                    # What SGD starts from; it makes the buffer with the first gradient only.
                    state["momentum_buffer"] = torch.zeros_like(parameter).detach()
                found[f"momentum.{names[parameter]}"] = state["momentum_buffer"]
    return found


def state_rows(head: Head) -> dict[str, int]:
    """The entries of `state_tensors` that are cut over ranks, and their rows over all ranks."""
    names = [f"head.{name}" for name in class_parameters(head)]
    return {f"{prefix}{name}": head.num_classes for name in names for prefix in ("", "momentum.")}
