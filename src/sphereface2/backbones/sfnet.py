"""SFNet-4/10/20/36/64: the residual networks without batch norm of SphereFace and SphereFace2."""

from typing import ClassVar

from torch import Tensor, nn

from sphereface2.backbones.backbone import Backbone, halved


class SFNet(Backbone):
    """Four stages of a stride-2 convolution and residual units, then a fully connected layer.

    With `batch_norm` every convolution is followed by batch norm before its ReLU and has no bias
    of its own, and the embedding is batch-normed as well: easier to train at a high learning rate
    than the paper's network, which has none.

    A residual unit adds the identity after its last ReLU, as SphereFace does; with
    `relu_after_sum` before it, as ResNet and OpenSphere's later sfnets do.
    """

    units: ClassVar[tuple[int, int, int, int]]

    def __init__(
        self,
        *,
        width: int = 64,
        input_size: int = 112,
        embedding_dim: int = 512,
        batch_norm: bool = False,
        relu_after_sum: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width=width, input_size=input_size, embedding_dim=embedding_dim, dropout=dropout
        )
        stages: list[nn.Module] = []
        channels = 3
        for stage, units in enumerate(self.units):
            wider = width * 2**stage
            stages.append(_convolution(channels, wider, stride=2, batch_norm=batch_norm))
            stages += [
                _ResidualUnit(wider, batch_norm=batch_norm, relu_after_sum=relu_after_sum)
                for _ in range(units)
            ]
            channels = wider
        self.stages = nn.Sequential(*stages)
        side = halved(input_size, 4)
        self.project = nn.Linear(channels * side * side, embedding_dim)
        nn.init.xavier_normal_(self.project.weight)
        nn.init.zeros_(self.project.bias)
        self.norm = nn.BatchNorm1d(embedding_dim) if batch_norm else nn.Identity()

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.norm(self.project(self.dropout(self.stages(images).flatten(1))))
        return embeddings


class SFNet4(SFNet):
    """Four convolutions and no residual unit."""

    units = (0, 0, 0, 0)


class SFNet10(SFNet):
    """SFNet with 10 layers."""

    units = (0, 1, 2, 0)


class SFNet20(SFNet):
    """SFNet with 20 layers: the paper's ablations."""

    units = (1, 2, 4, 1)


class SFNet36(SFNet):
    """SFNet with 36 layers."""

    units = (2, 4, 8, 2)


class SFNet64(SFNet):
    """SFNet with 64 layers: the paper's benchmarks."""

    units = (3, 8, 16, 3)


class _ResidualUnit(nn.Module):
    """x + ReLU(conv(ReLU(conv(x)))), or ReLU(x + conv(ReLU(conv(x)))) with `relu_after_sum`."""

    def __init__(self, channels: int, *, batch_norm: bool, relu_after_sum: bool) -> None:
        super().__init__()
        # Without batch norm the units must start near the identity: their outputs are never
        # negative, so thirty of them with Xavier weights would explode.
        deviation = None if batch_norm else 0.01
        first, second = (
            _convolution(channels, channels, batch_norm=batch_norm, deviation=deviation)
            for _ in range(2)
        )
        self.branch = nn.Sequential(first, second[:-1] if relu_after_sum else second)
        self.relu_after_sum = relu_after_sum

    def forward(self, features: Tensor) -> Tensor:
        change: Tensor = self.branch(features)
        summed = features + change
        return summed.relu() if self.relu_after_sum else summed


def _convolution(
    channels: int,
    wider: int,
    *,
    batch_norm: bool,
    stride: int = 1,
    deviation: float | None = None,
) -> nn.Sequential:
    """A 3×3 convolution and ReLU; weights from N(0, deviation²), or Xavier's without one."""
    convolution = nn.Conv2d(channels, wider, 3, stride=stride, padding=1, bias=not batch_norm)
    if deviation is None:
        nn.init.xavier_normal_(convolution.weight)
    else:
        nn.init.normal_(convolution.weight, std=deviation)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    norm = [nn.BatchNorm2d(wider)] if batch_norm else []
    return nn.Sequential(convolution, *norm, nn.ReLU(inplace=True))
