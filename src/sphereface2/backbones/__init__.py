"""Backbones: the networks from an image to its embedding, by name.

A new backbone is one file and one line in `NETWORKS`; its keyword arguments are its options.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sphereface2.backbones.backbone import Backbone
from sphereface2.backbones.networks import NETWORKS
from sphereface2.backbones.views import Views
from sphereface2.registry import build, look_up, resolve_options

__all__ = ["BACKBONES", "Backbone", "backbone_options", "build_backbone", "outline_backbone"]

BACKBONES: dict[str, type[Backbone]] = {**NETWORKS, "views": Views}


def build_backbone(name: str, *, seed: int | None = None, **options: Any) -> Backbone:
    """The backbone called `name`, with fresh weights.

    With a `seed` the weights depend on it alone and torch's global generator is left as it was;
    without one they come from that generator, as for any torch module.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return build("backbone", BACKBONES, name, **options)


def outline_backbone(name: str, **options: Any) -> Backbone:
    """The backbone called `name` on torch's device meta: tensors of its shapes, without memory."""
    with _NoInitialValues(), torch.device("meta"):
        return build("backbone", BACKBONES, name, **options)


class _NoInitialValues(TorchFunctionMode):
    """Draws no values: there are none on meta, and yet torch loads its compiler for it (2 s)."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        draws = func in (Tensor.normal_, Tensor.uniform_)
        if draws or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def backbone_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of the backbone called `name`: `options` over its defaults, checked."""
    return resolve_options("backbone", name, look_up("backbone", BACKBONES, name), options)
