"""What `benchmarks/head.py` compares: each contender does one training step of a classifier layer.

A step is forward, backward and SGD with momentum 0.9 and weight decay 5e-4 on the class weights,
for a batch of embeddings whose gradient is needed too.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sphereface2.experiments.paper.parallel import DECAY, LEARNING_RATE, MOMENTUM, HeadStep
from sphereface2.heads.proxy import ProxyHead

Step = Callable[[Tensor, Tensor], None]


def ours(name: str, dim: int, classes: int, *, device: str = "cpu") -> tuple[Step, ProxyHead]:
    """A head of this project with its fused SGD; options follow its name after commas."""
    method, *options = name.split(", ")
    rates = [float(option.split()[1]) for option in options if option.startswith("sample_rate")]
    step = HeadStep(
        method,
        dim,
        classes,
        sample_rate=rates[0] if rates else 1.0,
        device=device,
        compiled="compiled" in options,
    )
    return step, step.head


def dense_sphereface2(dim: int, classes: int) -> Step:
    """SphereFace2-C as its authors' code computes it: dense, one-hot, a matrix of weights."""
    balance, radius, margin, sharpness = 0.7, 30.0, 0.4, 3.0
    weight = nn.Parameter(F.normalize(torch.randn(dim, classes), dim=0))
    bias = nn.Parameter(torch.tensor(-3.0))
    optimiser = _sgd([weight, bias])

    def step(x: Tensor, y: Tensor) -> None:
        optimiser.zero_grad()
        with torch.no_grad():
            weight.copy_(F.normalize(weight, dim=0))
        cosine = F.normalize(x.requires_grad_(), dim=1) @ weight
        one_hot = torch.zeros_like(cosine).scatter_(1, y[:, None], 1.0)
        with torch.no_grad():
            adjusted = 2.0 * ((cosine + 1.0) / 2.0).pow(sharpness) - 1.0
            shift = adjusted - margin * (2.0 * one_hot - 1.0) - cosine
        logits = radius * (cosine + shift) + bias
        weights = balance * one_hot + (1.0 - balance) * (1.0 - one_hot)
        loss = F.binary_cross_entropy_with_logits(
            logits, one_hot, weight=weights * (classes / radius)
        )
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimiser.step()

    return step


def dense_softmax(dim: int, classes: int, *, arc: bool = False) -> Step:
    """CosFace or ArcFace as their usual code computes them: dense, cross-entropy."""
    scale, margin = 64.0, 0.5 if arc else 0.35
    weight = nn.Parameter(torch.randn(classes, dim) * 0.01)
    optimiser = _sgd([weight])

    def step(x: Tensor, y: Tensor) -> None:
        optimiser.zero_grad()
        cosine = F.linear(F.normalize(x.requires_grad_()), F.normalize(weight)).clamp(-1, 1)
        rows = torch.arange(len(y), device=y.device)
        if arc:
            with torch.no_grad():
                shift = (cosine[rows, y].arccos() + margin).cos() - cosine[rows, y]
        else:
            shift = torch.full(y.shape, -margin, device=y.device)
        logits = scale * cosine.index_put((rows, y), shift, accumulate=True)
        F.cross_entropy(logits, y).backward()  # type: ignore[no-untyped-call]  # as above
        optimiser.step()

    return step


def limit(dim: int, classes: int) -> Step:
    """The physical limit: the three matrix products of such a step, and nothing else."""
    weight = torch.randn(classes, dim)
    weight_gradient = torch.empty_like(weight)

    def step(x: Tensor, y: Tensor) -> None:
        logits = x @ weight.T
        logits @ weight
        torch.mm(logits.T, x, out=weight_gradient)

    return step


def build(
    name: str, dim: int, classes: int, *, device: str = "cpu"
) -> tuple[Step, ProxyHead | None]:
    """A contender by its name in the tables; `ours` ones come with their head."""
    if name.split(",")[0] in ("sphereface2-c", "cosface", "arcface"):
        return ours(name, dim, classes, device=device)
    dense = {
        "dense sphereface2": lambda: dense_sphereface2(dim, classes),
        "dense cosface": lambda: dense_softmax(dim, classes),
        "dense arcface": lambda: dense_softmax(dim, classes, arc=True),
        "limit": lambda: limit(dim, classes),
    }
    with torch.device(device):
        return dense[name](), None


def held_bytes(name: str, dim: int, classes: int) -> int:
    """Weights and momentum: what every contender must hold; the limit holds no momentum."""
    return classes * dim * 4 * (1 if name == "limit" else 2)


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=DECAY)
