"""MobileFaceNet: a network of about a million parameters for phones (arXiv 1804.07573)."""

from torch import Tensor, nn

from sphereface2.backbones.backbone import Backbone, halved

# The paper's Table 1: expansion t, channels c in units of the width, repetitions n, stride s.
_BOTTLENECKS = ((2, 1, 5, 2), (4, 2, 1, 2), (2, 2, 6, 1), (4, 2, 1, 2), (2, 2, 2, 1))


class MobileFaceNet(Backbone):
    """Depthwise convolutions, inverted residuals, and one weight per place at the end.

    The closing depthwise convolution spans the whole feature map: unlike an average it lets the
    network weigh the middle of the face and its rim differently.
    """

    def __init__(self, *, width: int = 64, input_size: int = 112, embedding_dim: int = 128) -> None:
        super().__init__(width=width, input_size=input_size, embedding_dim=embedding_dim)
        layers: list[nn.Module] = [
            _convolution(3, width, kernel=3, stride=2),
            _convolution(width, width, kernel=3, groups=width),
        ]
        channels = width
        for expansion, multiple, repetitions, stride in _BOTTLENECKS:
            for repetition in range(repetitions):
                layers.append(
                    _Bottleneck(
                        channels,
                        multiple * width,
                        expansion=expansion,
                        stride=stride if repetition == 0 else 1,
                    )
                )
                channels = multiple * width
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
        embeddings: Tensor = self.norm(self.project(self.whole(self.layers(images))))
        return embeddings


class _Bottleneck(nn.Module):
    """Expand, filter each channel, and narrow again without an activation."""

    def __init__(self, channels: int, wider: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = expansion * channels
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
        nn.PReLU(wider),
    )
