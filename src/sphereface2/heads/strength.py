"""How strongly a loss pulls: what makes losses comparable at one learning rate."""

import torch
from torch import Tensor

from sphereface2.heads.proxy import ProxyHead

SHOWN_CLASSES = 8631  # of VGGFace2, the paper's training set
SHOWN_COSINES = (0.0, 0.5)


def pull(head: ProxyHead, cosine: float) -> float:
    """-dL/d cos θ_y of one sample at this cosine, every other class at a right angle.

    A step moves a class by the learning rate times this. The head's weights are overwritten.
    """
    x = torch.zeros(1, head.dim)
    x[0, 0] = 1.0
    with torch.no_grad():
        head.weight.zero_()
        centres = head.weight if head.weight.ndim == 3 else head.weight[:, None]
        centres[:, :, 2] = 1.0
        own = torch.zeros(head.dim)
        own[0], own[1] = cosine, (1.0 - cosine**2) ** 0.5
        centres[0] = own
    loss = head(_length(head) * x, torch.zeros(1, dtype=torch.int64))
    (gradient,) = torch.autograd.grad(loss, [head.weight])
    # d cos θ / d w of a unit row is x - cos θ·w, and it is as long as sin θ.
    along: Tensor = gradient[0].reshape(-1, head.dim).sum(dim=0) @ (x[0] - cosine * own)
    return -float(along) / (1.0 - cosine**2)


def _length(head: ProxyHead) -> float:
    """An embedding's length that means nothing in particular to heads that look at it."""
    low, high = getattr(head, "norm_low", 1.0), getattr(head, "norm_high", 1.0)
    return float(low + high) / 2
