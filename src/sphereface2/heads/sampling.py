"""Sampled negatives: a step reads only the batch's own classes and a random share of the others."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """The classes that take part in a step.

    index: their rows, rising; labels: the batch's labels counted within them;
    class_weight: what each counts as a negative so that the sum is right on average.
    """

    index: Tensor
    labels: Tensor
    class_weight: Tensor


def sample_classes(labels: Tensor, num_classes: int, rate: float, *, dtype: torch.dtype) -> Sample:
    """The classes of `labels` and each other class with probability `rate`, on their device.

    Classes are drawn with replacement and counted once, which takes time in the number of draws and
    not in the number of classes. A class is then seen with probability π = 1 - (1 - 1/K)^draws, and
    weighs 1/π when it is; the batch's own classes are always seen and weigh 1.
    """
    draws = 0
    if num_classes > 1:
        draws = max(1, math.ceil(math.log1p(-rate) / math.log1p(-1.0 / num_classes)))
    drawn = torch.randint(max(num_classes, 1), (draws,), device=labels.device)
    own = torch.unique(labels[labels >= 0])
    index = torch.unique(torch.cat([own, drawn]))
    probability = -math.expm1(draws * math.log1p(-1.0 / num_classes)) if num_classes > 1 else 1.0
    class_weight = torch.full(index.shape, 1.0 / probability, dtype=dtype, device=labels.device)
    class_weight[torch.searchsorted(index, own)] = 1.0
    places = torch.searchsorted(index, labels.clamp_min(0))
    return Sample(index, torch.where(labels >= 0, places, labels), class_weight)
