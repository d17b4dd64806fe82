"""MobileFaceNet: a network of about a million parameters for phones (arXiv 1804.07573)."""

from typing import ClassVar

from torch import Tensor, nn

from sphereface2.backbones.backbone import Backbone, PReLU, halved

# The paper's Table 1, in units of the width: what the first bottleneck of a stage, which halves the
# map, widens to; the stage's channels; what its further bottlenecks widen to.
_STAGES = ((2, 1, 2), (4, 2, 4), (8, 2, 4))


class MobileFaceNet(Backbone):
    """Depthwise convolutions, inverted residuals, and one weight per place at the end.

    The closing depthwise convolution spans the whole feature map: unlike an average it lets the
    network weigh the middle of the face and its rim differently.
    """

    scale: ClassVar[int] = 1  # of the channels between the bottlenecks
    blocks: ClassVar[tuple[int, int, int, int]] = (1, 4, 6, 2)  # of stride 1 in each stage

    def __init__(
        self,
        *,
        width: int = 64,
        input_size: int = 112,
        embedding_dim: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width=width, input_size=input_size, embedding_dim=embedding_dim, dropout=dropout
        )
        channels = self.scale * width
        layers: list[nn.Module] = [_convolution(3, channels, kernel=3, stride=2)]
        if self.blocks[0] == 1:
            layers.append(_convolution(channels, channels, kernel=3, groups=width))
        else:
            repeated = range(self.blocks[0])
            layers += [_Bottleneck(channels, channels, hidden=2 * width) for _ in repeated]
        for (first, multiple, further), count in zip(_STAGES, self.blocks[1:], strict=True):
            wider = multiple * self.scale * width
            layers.append(_Bottleneck(channels, wider, hidden=first * width, stride=2))
            layers += [_Bottleneck(wider, wider, hidden=further * width) for _ in range(count)]
            channels = wider
        layers.append(_convolution(channels, 8 * width, kernel=1))
        self.layers = nn.Sequential(*layers)
        side = halved(input_size, 4)
        self.whole = nn.Sequential(
            nn.Conv2d(8 * width, 8 * width, side, groups=8 * width, bias=False),
            nn.BatchNorm2d(8 * width),
            nn.Flatten(),
        )
        self.project = nn.Linear(8 * width, embedding_dim, bias=False)
        self.norm = nn.BatchNorm1d(embedding_dim)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        nn.init.xavier_normal_(self.project.weight)

    def embed(self, images: Tensor) -> Tensor:
        features = self.dropout(self.whole(self.layers(images)))
        embeddings: Tensor = self.norm(self.project(features))
        return embeddings


class MBF(MobileFaceNet):
    """InsightFace's mbf: twice the channels between the bottlenecks, which widen no further."""

    scale = 2

    def __init__(
        self,
        *,
        width: int = 64,
        input_size: int = 112,
        embedding_dim: int = 512,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width=width, input_size=input_size, embedding_dim=embedding_dim, dropout=dropout
        )


class MBFLarge(MBF):
    """InsightFace's mbf_large: four times the channels, and twice the blocks."""

    scale = 4
    blocks = (2, 8, 12, 4)


class _Bottleneck(nn.Module):
    """Expand, filter each channel, and narrow again without an activation."""

    def __init__(self, channels: int, wider: int, *, hidden: int, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution(channels, hidden, kernel=1),
            _convolution(hidden, hidden, kernel=3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, wider, 1, bias=False),
            nn.BatchNorm2d(wider),
        )
        self.residual = stride == 1 and channels == wider

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.branch(features)
        return features + out if self.residual else out


def _convolution(
    channels: int, wider: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(
            channels, wider, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
        ),
        nn.BatchNorm2d(wider),
        PReLU(wider),
    )
