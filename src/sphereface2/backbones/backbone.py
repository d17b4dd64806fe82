"""What every backbone is: a network from square RGB images to embeddings of one size."""

from typing import Any

import torch
from torch import Tensor, nn

LARGEST = 65_536
"""No side or width of a network is near it; the sizes of tensors stay within 64 bits."""


class Backbone(nn.Module):
    """Maps (B, 3, S, S) in [-1, 1] to (B, D); the embeddings are not normalised.

    A subclass builds its layers and embeds in `embed`. Its keyword arguments are the options that
    a config may set; `width` is the channels of the first layer, to which all others keep their
    proportion, and `dropout` is the share of the last features that each training step drops
    before they are projected to the embedding.
    """

    def __init__(
        self, *, width: int, input_size: int, embedding_dim: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_option("width", width, at_least=1)
        # Every network here halves the image four times.
        check_option("input_size", input_size, at_least=16)
        check_option("embedding_dim", embedding_dim, at_least=1)
        if not 0 <= dropout < 1:
            raise ValueError(f"backbone.dropout must lie in [0, 1), got {dropout}")
        self.dropout = nn.Dropout(dropout)
        self.input_size = input_size
        self.embedding_dim = embedding_dim

    def forward(self, images: Tensor) -> Tensor:
        expected = (3, self.input_size, self.input_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"this backbone takes images of shape (B, 3, {expected[1]}, {expected[2]}), "
                f"got {tuple(images.shape)}"
            )
        return self.embed(images)

    def embed(self, images: Tensor) -> Tensor:
        """The embeddings of images that have the right shape."""
        raise NotImplementedError  # every backbone defines its own

    def parts(self) -> "list[Backbone]":
        """The networks that an embedding is put together from: this one, but for `Views`."""
        return [self]

    def for_export(self) -> "Backbone":
        """The same network, its weights shared, in operations that all runtimes compute alike.

        Whether it is an export is not asked of torch: 2.6 does not know, later ones say so of a
        compilation.
        """
        return self

    def last_layers(self) -> tuple[nn.Linear, nn.BatchNorm1d | None]:
        """The layers that end the network: its projection and the norm of the embedding, if any."""
        *_, linear = (module for module in self.modules() if isinstance(module, nn.Linear))
        *_, last = self.children()
        return linear, last if isinstance(last, nn.BatchNorm1d) else None


def summed_embeddings(backbone: nn.Module, inputs: Tensor, *, flip: bool) -> Tensor:
    """The (B, D) embeddings of inputs; with `flip`, each plus that of its mirror image.

    The plain sum: neither summand is normalised first.
    """
    embeddings: Tensor = backbone(inputs).float()
    return embeddings + backbone(inputs.flip(3)).float() if flip else embeddings


def check_option(option: str, value: int, *, at_least: int) -> None:
    """Refuse an option that is too small, or so large that torch cannot count the numbers."""
    if not at_least <= value <= LARGEST:
        raise ValueError(
            f"backbone.{option} must lie between {at_least} and {LARGEST}, got {value}"
        )


def halved(size: int, times: int) -> int:
    """The side of a feature map after that many layers of stride 2 (3×3 with padding, or 1×1)."""
    for _ in range(times):
        size = (size + 1) // 2
    return size


class PReLU(nn.PReLU):
    """One slope per channel for what is below zero.

    The gradient of torch's kernel is computed number by number on a CPU and takes a quarter of a
    training step of MobileFaceNet; here it is a few vectorised operations with the same results.
    """

    def forward(self, features: Tensor) -> Tensor:
        learns = torch.is_grad_enabled() and (features.requires_grad or self.weight.requires_grad)
        on_cpu = features.device.type == "cpu" and not torch.compiler.is_compiling()
        if not (learns and on_cpu) or features.dtype != self.weight.dtype:
            return super().forward(features)
        out: Tensor = _PReLU.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            features, self.weight
        )
        return out


class _PReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(features, slope)
        return torch.prelu(features, slope)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        features, slope = ctx.saved_tensors
        others = [axis for axis in range(features.ndim) if axis != 1]
        of_slope = None
        if ctx.needs_input_grad[1]:
            of_slope = features.clamp_max(0.0).mul_(grad).sum(dim=others)
            if len(slope) == 1:
                of_slope = of_slope.sum(dim=0, keepdim=True)
        of_features = None
        if ctx.needs_input_grad[0]:
            # Selecting costs ten times as much as arithmetic: one summand of each pair is 0.
            above = torch.ops.aten.threshold_backward(grad, features, 0.0)
            each = slope.view(-1, *(1,) * (features.ndim - 2))
            of_features = above.addcmul_(grad - above, each)
        return of_features, of_slope
