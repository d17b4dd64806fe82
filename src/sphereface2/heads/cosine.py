"""Maths on cosines that several heads share: similarity adjustment, margins, gradient modes."""

import math
from typing import Literal

import torch
from torch import Tensor

GradientMode = Literal["exact", "straight-through"]
"""How a margin logit passes gradients to the cosine.

`exact`: the formula is differentiated as written (detached parts excepted).
`straight-through`: d logit / d cosine is the scale alone, as published checkpoints were trained.
"""

PastPi = Literal["falling", "cosine", "flat"]
"""What an ArcFace margin gives once θ + m passes π, where cos(θ + m) would rise again.

`falling`: c - m sin(π - m), which steps down at π and keeps falling in θ (TFace, CurricularFace,
    MagFace and InsightFace's older code).
`cosine`: cos(θ + m) as it is, so that the worst samples seem better again (InsightFace today).
`flat`: -1 (OpenSphere).
"""


def adjust(cosine: Tensor, sharpness: float) -> Tensor:
    """Similarity adjustment g(c) = 2((c+1)/2)^t - 1, increasing in c, from [-1,1] onto [-1,1]."""
    if sharpness == 1.0:
        return cosine
    # Rounding can push c below -1, where a non-integer power is NaN.
    return 2.0 * ((cosine + 1.0) / 2.0).clamp(0.0, 1.0).pow(sharpness) - 1.0


def adjust_half(cosine: Tensor, sharpness: float) -> Tensor:
    """(c+1)/2, kept off 0 where a power below one would have an infinite slope."""
    return ((cosine + 1.0) / 2.0).clamp_(1e-6 if sharpness < 1.0 else 0.0, 1.0)


def adjust_slope(cosine: Tensor, sharpness: float) -> Tensor:
    """g'(c) = t((c+1)/2)^(t-1); for t < 1 it is kept finite at c = -1."""
    return adjust_half(cosine, sharpness).pow_(sharpness - 1.0).mul_(sharpness)


def straight_through(value: Tensor, like: Tensor) -> Tensor:
    """The value of `value` with the gradient of `like`."""
    return like + (value - like).detach()  # detached: only `like` is to be differentiated


def for_gradient(value: Tensor, like: Tensor, gradient: GradientMode) -> Tensor:
    """`value` with its own gradient, or that of `like`, as the gradient mode asks for."""
    return straight_through(value, like) if gradient == "straight-through" else value


def adjust_for_gradient(cosine: Tensor, sharpness: float, gradient: GradientMode) -> Tensor:
    """g(c) in an autograd graph, with the slope that the gradient mode asks for."""
    if sharpness == 1.0:
        return cosine
    if gradient == "straight-through":
        return straight_through(adjust(cosine, sharpness), cosine)
    half = ((cosine + 1.0) / 2.0).clamp(1e-6 if sharpness < 1.0 else 0.0, 1.0)
    return 2.0 * half.pow(sharpness) - 1.0


def sine(cosine: Tensor) -> Tensor:
    """sin θ ≥ 0 from cos θ, kept off zero so that its gradient stays finite at c = ±1."""
    return (1.0 - cosine * cosine).clamp_min(1e-7).sqrt()


def add_angle(cosine: Tensor, margin: Tensor | float, past_pi: PastPi = "falling") -> Tensor:
    """cos(θ + m) while θ + m ≤ π, and what `past_pi` says beyond."""
    if not isinstance(margin, Tensor):
        margin = cosine.new_full((), margin)
    turned = cosine * margin.cos() - sine(cosine) * margin.sin()
    if past_pi == "cosine":
        return turned
    beyond = cosine - margin * (math.pi - margin).sin() if past_pi == "falling" else -1.0
    return torch.where(cosine > (math.pi - margin).cos(), turned, beyond)


def add_angle_saturating(cosine: Tensor, margin: float) -> Tensor:
    """cos(min(π, θ + m)): the ArcFace-type margin of SphereFace2, -1 once θ + m reaches π."""
    angle = cosine.clamp(-1.0, 1.0).arccos()
    return (angle + margin).clamp_max(math.pi).cos()


def multiply_angle(cosine: Tensor, margin: float) -> Tensor:
    """cos(min(m, π/θ)·θ): the multiplicative margin, -1 once mθ reaches π."""
    angle = cosine.clamp(-1.0, 1.0).arccos()
    return (angle * margin).clamp_max(math.pi).cos()
