"""The paper's figures that need no data: the loss over the cosine, and the adjustment g."""

import colorsys
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from sphereface2.heads.cosine import adjust
from sphereface2.heads.proxy import ProxyHead
from sphereface2.heads.softmax import NormFace
from sphereface2.heads.sphereface2 import SphereFace2
from sphereface2.reporting.figures.verification import INK, MUTED, method_colour, prepare_axes

Curve = npt.NDArray[np.float64]
WIDTH = 7.2  # inches: two cards of a page side by side
_OTHERS = 0.2  # the cosine of every class but the target, as the paper fixes it
_FOUND = (-0.2, 1.0)  # where the paper finds most cosines of pairs


def loss_against_cosine(
    *, scales: Sequence[float] = (1, 3, 10, 30), radii: Sequence[float] = (1, 3, 10, 30)
) -> Figure:
    """What a sample costs over its target's cosine: softmax for several s, L_e for several r."""
    figure = Figure(figsize=(WIDTH, 2.9), layout=ConstrainedLayoutEngine(wspace=0.06))
    softmax, binary = figure.subplots(1, 2)
    cosines = np.linspace(-1, 1, 81)
    _prepare(softmax, f"(a) softmax, three other classes at cos θ = {_OTHERS:g}", "loss")
    for scale, colour in zip(scales, shades(method_colour("normface"), len(scales)), strict=True):
        _draw(softmax, cosines, softmax_loss(cosines, scale), f"s = {scale:g}", colour)
    _prepare(binary, "(b) SphereFace2, the positive term (λ = 1)", "loss")
    for radius, colour in zip(radii, shades(method_colour("sphereface2"), len(radii)), strict=True):
        _draw(binary, cosines, binary_loss(cosines, radius), f"r = {radius:g}", colour)
    for axes in (softmax, binary):
        axes.set_ylim(bottom=0)
        axes.set_xlabel("cos θ of the target class", fontsize=8.5, color=MUTED)
        _legend(axes, loc="upper right")
    return figure


def similarity_adjustment(*, sharpness: Sequence[float] = (1, 2, 3, 4, 5)) -> Figure:
    """g(z) for several t, and what it makes of the range where cosines are found."""
    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    axes: Axes = figure.add_subplot()
    _prepare(axes, "g(z) = 2 ((z + 1) / 2)ᵗ − 1", "g(cos θ)")
    axes.set_xlabel("cos θ", fontsize=8.5, color=MUTED)
    cosines = np.linspace(-1, 1, 201)
    colours = shades(method_colour("sphereface2"), len(sharpness))
    axes.axvspan(*_FOUND, color=method_colour("sphereface2"), alpha=0.07, linewidth=0)
    low, high = _FOUND
    for t, colour in zip(sharpness, colours, strict=True):
        _draw(axes, cosines, _adjusted(cosines, t), f"t = {t:g}", colour)
        reached = float(_adjusted(np.array([low]), t)[0])
        axes.plot(low, reached, "o", markersize=5, color=colour, markeredgecolor="white")
    axes.set_ylim(-1.03, 1.03)
    axes.set_yticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
    axes.text(
        low + 0.04,
        0.97,
        f"[{low:g}, {high:g}]: where cosines lie".replace("-", "−"),
        va="top",
        fontsize=8,
        color=MUTED,
    )
    _legend(axes, loc="upper left")
    return figure


def softmax_loss(cosines: Curve, scale: float) -> Curve:
    """The s-normalised softmax loss of four classes over the cosine of the target."""
    return _losses(NormFace(2, 4, scale=scale), cosines)


def binary_loss(cosines: Curve, radius: float) -> Curve:
    """L_e with λ = 1 over the cosine of the target: the positive term alone."""
    head = SphereFace2(2, 2, balance=1.0, radius=radius, margin=0.0, sharpness=1.0, bias="none")
    return _losses(head, cosines)


def shades(colour: str, count: int) -> list[str]:
    """`count` shades of one colour, from light to dark: small to large values of one setting."""
    hue, _, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    lightness = np.linspace(0.78, 0.28, count) if count > 1 else [0.5]
    mixed = [colorsys.hls_to_rgb(hue, float(light), saturation) for light in lightness]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in mixed]


def _losses(head: ProxyHead, cosines: Curve) -> Curve:
    """What the head itself charges for one sample whose cosine to its class takes these values."""
    sample, target = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    losses = []
    with torch.no_grad():
        # The sample stands still; the classifiers are put around it at the angles that are asked.
        head.weight[:] = _direction(_OTHERS)
        for cosine in cosines:
            head.weight[0] = _direction(float(cosine))
            losses.append(float(head(sample, target)))
    return np.asarray(losses)


def _direction(cosine: float) -> torch.Tensor:
    return torch.tensor([cosine, math.sqrt(max(0.0, 1 - cosine**2))])


def _adjusted(cosines: Curve, sharpness: float) -> Curve:
    return np.asarray(adjust(torch.from_numpy(cosines), sharpness).numpy())


def _prepare(axes: Axes, title: str, y_label: str) -> None:
    prepare_axes(axes, "", y_label)
    axes.set_title(title, loc="left", fontsize=8.5, fontweight="bold", color=INK)
    axes.set_xlim(-1, 1)
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])


def _draw(axes: Axes, x: Curve, y: Curve, label: str, colour: str) -> None:
    axes.plot(x, y, color=colour, linewidth=2.0, label=label, solid_capstyle="round")


def _legend(axes: Axes, *, loc: Literal["upper left", "upper right"]) -> None:
    axes.legend(fontsize=8, frameon=False, labelcolor=MUTED, loc=loc, handlelength=1.6)
