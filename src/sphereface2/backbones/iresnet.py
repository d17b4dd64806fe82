"""IResNet-18/34/50/100: the improved residual networks of ArcFace and today's face recognition."""

from typing import ClassVar

from torch import Tensor, nn

from sphereface2.backbones.backbone import Backbone, PReLU, halved


class IResNet(Backbone):
    """A convolution at full size, four stages that halve it, BN-dropout-linear-BN at the end.

    norm_eps: what batch norm adds to the variance; networks that stem from MXNet have 2e-5
    """

    blocks: ClassVar[tuple[int, int, int, int]]

    def __init__(
        self,
        *,
        width: int = 64,
        input_size: int = 112,
        embedding_dim: int = 512,
        dropout: float = 0.0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(
            width=width, input_size=input_size, embedding_dim=embedding_dim, dropout=dropout
        )
        if not 0 < norm_eps < 1:
            raise ValueError(f"backbone.norm_eps must lie in (0, 1), got {norm_eps}")
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), PReLU(width)
        )
        stages: list[nn.Module] = []
        channels = width
        for stage, blocks in enumerate(self.blocks):
            wider = width * 2**stage
            stages.append(_Block(channels, wider, stride=2))
            stages += [_Block(wider, wider, stride=1) for _ in range(blocks - 1)]
            channels = wider
        self.stages = nn.Sequential(*stages)
        side = halved(input_size, 4)
        self.output = nn.Sequential(
            nn.BatchNorm2d(channels),
            self.dropout,
            nn.Flatten(),
            nn.Linear(channels * side * side, embedding_dim),
        )
        self.norm = nn.BatchNorm1d(embedding_dim)
        # The heads look at directions only: a free scale of each coordinate would let weight decay
        # shrink some of them away.
        self.norm.weight.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.1)
            elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.eps = norm_eps

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.norm(self.output(self.stages(self.stem(images))))
        return embeddings


class IResNet18(IResNet):
    """IResNet with 18 layers."""

    blocks = (2, 2, 2, 2)


class IResNet34(IResNet):
    """IResNet with 34 layers."""

    blocks = (3, 4, 6, 3)


class IResNet50(IResNet):
    """IResNet with 50 layers."""

    blocks = (3, 4, 14, 3)


class IResNet100(IResNet):
    """IResNet with 100 layers."""

    blocks = (3, 13, 30, 3)


class _Block(nn.Module):
    """BN-conv-BN-PReLU-conv-BN beside a shortcut; the stride is in the second convolution."""

    def __init__(self, channels: int, wider: int, *, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.Conv2d(channels, wider, 3, padding=1, bias=False),
            nn.BatchNorm2d(wider),
            PReLU(wider),
            nn.Conv2d(wider, wider, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(wider),
        )
        self.stride = stride
        self.shortcut = (
            nn.Sequential(nn.Conv2d(channels, wider, 1, bias=False), nn.BatchNorm2d(wider))
            if stride != 1 or channels != wider
            else nn.Identity()
        )

    def forward(self, features: Tensor) -> Tensor:
        # A 1×1 convolution of stride 2, but by hand: with fewer than eight channels oneDNN's own
        # gradient of it writes past its memory (torch 2.13 on a CPU, images channels last).
        kept = features[:, :, :: self.stride, :: self.stride]
        summed: Tensor = self.shortcut(kept) + self.branch(features)
        return summed
