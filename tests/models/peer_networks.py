"""Other projects' networks, written from their published descriptions as plain torch functions.

Each takes a `Tape`, which makes a random tensor the first time that a name is asked for: running a
network once on an empty tape gives a state dict under that project's names. Nothing of ours is
used, and all sizes follow from the width, so that a test takes milliseconds.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor

Network = Callable[["Tape", Tensor], Tensor]


class Tape:
    """A state dict that fills itself with random values, and the layers that read it."""

    def __init__(self, *, seed: int = 0, eps: float = 1e-5) -> None:
        self.state: dict[str, Tensor] = {}
        self.generator = torch.Generator().manual_seed(seed)
        self.eps = eps

    def tensor(self, name: str, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        if name not in self.state:
            self.state[name] = torch.randn(*shape, generator=self.generator) * scale + shift
        return self.state[name]

    def conv(
        self,
        name: str,
        x: Tensor,
        out: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        padding: int | None = None,
    ) -> Tensor:
        fan = x.shape[1] // groups * kernel * kernel
        weight = self.tensor(
            f"{name}.weight", out, x.shape[1] // groups, kernel, kernel, scale=(2 / fan) ** 0.5
        )
        shift = self.tensor(f"{name}.bias", out, scale=0.1) if bias else None
        padding = kernel // 2 if padding is None else padding
        return functional.conv2d(x, weight, shift, stride=stride, padding=padding, groups=groups)

    def norm(self, name: str, x: Tensor, *, affine: bool = True) -> Tensor:
        count = x.shape[1]
        weight = bias = None
        if affine:
            weight = self.tensor(f"{name}.weight", count, scale=0.1, shift=1.0)
            bias = self.tensor(f"{name}.bias", count, scale=0.1)
        if f"{name}.running_var" not in self.state:
            # Near what the first images give, so that deep networks neither grow nor vanish.
            flat = x.transpose(0, 1).flatten(1)
            noise = torch.rand(2, count, generator=self.generator)
            self.state[f"{name}.running_mean"] = flat.mean(1) + 0.2 * (noise[0] - 0.5)
            self.state[f"{name}.running_var"] = flat.var(1) * (0.7 + 0.6 * noise[1]) + 1e-3
            self.state[f"{name}.num_batches_tracked"] = torch.tensor(7)
        mean = self.state[f"{name}.running_mean"]
        variance = self.state[f"{name}.running_var"]
        shape = (1, count) + (1,) * (x.ndim - 2)
        out = (x - mean.view(shape)) / (variance.view(shape) + self.eps).sqrt()
        if weight is not None and bias is not None:
            out = out * weight.view(shape) + bias.view(shape)
        return out

    def prelu(self, name: str, x: Tensor) -> Tensor:
        slope = self.tensor(f"{name}.weight", x.shape[1], scale=0.05, shift=0.25)
        return torch.where(x >= 0, x, x * slope.view(1, -1, 1, 1))

    def linear(self, name: str, x: Tensor, out: int, *, bias: bool = True) -> Tensor:
        weight = self.tensor(f"{name}.weight", out, x.shape[1], scale=x.shape[1] ** -0.5)
        return x @ weight.T + (self.tensor(f"{name}.bias", out, scale=0.1) if bias else 0.0)


def iresnet(blocks: tuple[int, ...], *, width: int = 4, dim: int = 6) -> Network:
    """ArcFace's improved residual network, as InsightFace and OpenSphere name its layers."""

    def run(tape: Tape, x: Tensor) -> Tensor:
        x = tape.prelu("prelu", tape.norm("bn1", tape.conv("conv1", x, width)))
        for stage, count in enumerate(blocks):
            out = width * 2**stage
            for block in range(count):
                at, stride = f"layer{stage + 1}.{block}", 2 if block == 0 else 1
                y = tape.conv(f"{at}.conv1", tape.norm(f"{at}.bn1", x), out)
                y = tape.prelu(f"{at}.prelu", tape.norm(f"{at}.bn2", y))
                y = tape.norm(f"{at}.bn3", tape.conv(f"{at}.conv2", y, out, stride=stride))
                if block == 0:
                    x = tape.conv(f"{at}.downsample.0", x, out, 1, stride=2)
                    x = tape.norm(f"{at}.downsample.1", x)
                x = x + y
        x = tape.norm("bn2", x).flatten(1)
        return tape.norm("features", tape.linear("fc", x, dim))

    return run


def adaface(blocks: tuple[int, ...], *, width: int = 4, dim: int = 6) -> Network:
    """AdaFace's `ir`: the first shortcut subsamples only; the last batch norm has no weights."""

    def run(tape: Tape, x: Tensor) -> Tensor:
        x = tape.norm("input_layer.1", tape.conv("input_layer.0", x, width))
        x = tape.prelu("input_layer.2", x)
        number = 0
        for stage, count in enumerate(blocks):
            out = width * 2**stage
            for block in range(count):
                at, stride = f"body.{number}", 2 if block == 0 else 1
                y = tape.norm(f"{at}.res_layer.0", x)
                y = tape.norm(f"{at}.res_layer.2", tape.conv(f"{at}.res_layer.1", y, out))
                y = tape.prelu(f"{at}.res_layer.3", y)
                y = tape.conv(f"{at}.res_layer.4", y, out, stride=stride)
                y = tape.norm(f"{at}.res_layer.5", y)
                if x.shape[1] == out:
                    x = functional.max_pool2d(x, 1, stride)
                else:
                    x = tape.conv(f"{at}.shortcut_layer.0", x, out, 1, stride=stride)
                    x = tape.norm(f"{at}.shortcut_layer.1", x)
                x = x + y
                number += 1
        x = tape.norm("output_layer.0", x).flatten(1)
        return tape.norm("output_layer.4", tape.linear("output_layer.3", x, dim), affine=False)

    return run


def sfnet(units: tuple[int, ...], *, batch_norm: bool, width: int = 4, dim: int = 6) -> Network:
    """OpenSphere's sfnet: ReLU after the sum, as in ResNet; with or without batch norm."""

    def convolution(tape: Tape, at: str, number: int, x: Tensor, out: int, stride: int) -> Tensor:
        x = tape.conv(f"{at}.conv{number}", x, out, stride=stride, bias=not batch_norm)
        return tape.norm(f"{at}.bn{number}", x) if batch_norm else x

    def run(tape: Tape, x: Tensor) -> Tensor:
        for stage, count in enumerate(units):
            out, at = width * 2**stage, f"layer{stage + 1}"
            x = convolution(tape, f"{at}.0", 1, x, out, 2).relu()
            for unit in range(1, count + 1):
                y = convolution(tape, f"{at}.{unit}", 1, x, out, 1).relu()
                x = (x + convolution(tape, f"{at}.{unit}", 2, y, out, 1)).relu()
        x = tape.linear("fc", x.flatten(1), dim)
        return tape.norm("features", x) if batch_norm else x

    return run


def sfnet_deprecated(units: tuple[int, ...], *, width: int = 4, dim: int = 6) -> Network:
    """SphereFace's own network as OpenSphere names it: the sum after the ReLU."""

    def run(tape: Tape, x: Tensor) -> Tensor:
        for stage, count in enumerate(units):
            out, at = width * 2**stage, f"layer{stage + 1}"
            x = tape.conv(f"{at}.0.conv", x, out, stride=2, bias=True).relu()
            for unit in range(1, count + 1):
                y = tape.conv(f"{at}.{unit}.conv1", x, out, bias=True).relu()
                x = x + tape.conv(f"{at}.{unit}.conv2", y, out, bias=True).relu()
        return tape.linear("fc", x.flatten(1), dim)

    return run


def mbf(
    blocks: tuple[int, ...] = (1, 4, 6, 2), *, scale: int = 2, width: int = 4, dim: int = 6
) -> Network:
    """InsightFace's MobileFaceNet, whose channels between bottlenecks are `scale` times wider."""

    def unit(
        tape: Tape, at: str, x: Tensor, out: int, kernel: int, stride: int, groups: int
    ) -> Tensor:
        x = tape.conv(f"{at}.layers.0", x, out, kernel, stride=stride, groups=groups)
        return tape.prelu(f"{at}.layers.2", tape.norm(f"{at}.layers.1", x))

    def bottleneck(tape: Tape, at: str, x: Tensor, out: int, hidden: int, stride: int) -> Tensor:
        x = unit(tape, f"{at}.layers.0", x, hidden, 1, 1, 1)
        x = unit(tape, f"{at}.layers.1", x, hidden, 3, stride, hidden)
        x = tape.conv(f"{at}.layers.2.layers.0", x, out, 1)
        return tape.norm(f"{at}.layers.2.layers.1", x)

    def repeated(tape: Tape, at: str, x: Tensor, hidden: int, count: int) -> Tensor:
        for block in range(count):
            x = x + bottleneck(tape, f"{at}.layers.{block}", x, x.shape[1], hidden, 1)
        return x

    def run(tape: Tape, x: Tensor) -> Tensor:
        narrow, wide = width * scale, 2 * width * scale
        x = unit(tape, "layers.0", x, narrow, 3, 2, 1)
        if blocks[0] == 1:
            x = unit(tape, "layers.1", x, narrow, 3, 1, width)
        else:
            x = repeated(tape, "layers.1", x, 2 * width, blocks[0])
        x = bottleneck(tape, "layers.2", x, narrow, 2 * width, 2)
        x = repeated(tape, "layers.3", x, 2 * width, blocks[1])
        x = bottleneck(tape, "layers.4", x, wide, 4 * width, 2)
        x = repeated(tape, "layers.5", x, 4 * width, blocks[2])
        x = bottleneck(tape, "layers.6", x, wide, 8 * width, 2)
        x = repeated(tape, "layers.7", x, 4 * width, blocks[3])
        x = unit(tape, "conv_sep", x, 8 * width, 1, 1, 1)
        at = "features.layers.0.layers"
        x = tape.conv(f"{at}.0", x, x.shape[1], x.shape[2], groups=x.shape[1], padding=0)
        x = tape.norm(f"{at}.1", x).flatten(1)
        x = tape.linear("features.layers.2", x, dim, bias=False)
        return tape.norm("features.layers.3", x)

    return run
