"""What other projects call the layers of our backbones, where they compute the same.

A layout maps each of our modules to the name that it has there. Where a layer of ours has no
counterpart because it does nothing there, the layout says with which values ours does nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sphereface2.backbones import Backbone
from sphereface2.backbones.iresnet import IResNet
from sphereface2.backbones.mobilefacenet import MobileFaceNet
from sphereface2.backbones.networks import NETWORKS
from sphereface2.backbones.sfnet import SFNet

Modules = dict[str, str | None]
"""Our name of a module to theirs; None: they have none there."""


@dataclass(frozen=True)
class Layout:
    """The names of one project for one family of networks.

    source: whose network it is, in words
    family: the class of ours that computes the same
    modules: the names for one member of the family; None: ours
    fixed: options of our backbone that make it theirs, whatever the weights are
    channels: the order of the colours that these networks are trained with
    """

    source: str
    family: type[Backbone]
    modules: Callable[[type[Any]], Modules] | None = None
    fixed: tuple[tuple[str, Any], ...] = ()
    channels: str = "RGB"

    @property
    def backbones(self) -> list[str]:
        """The names of ours that such weights may fit."""
        return [name for name, kind in NETWORKS.items() if issubclass(kind, self.family)]

    def names(self, backbone: str, keys: list[str]) -> dict[str, str | None]:
        """Our names of a backbone's tensors to theirs; None: they have no such tensor."""
        if self.modules is None:
            return {key: key for key in keys}
        known = self.modules(NETWORKS[backbone])
        found: dict[str, str | None] = {}
        for key in keys:
            module, _, tensor = key.rpartition(".")
            theirs = known[module]
            is_free = theirs is not None and not (theirs == _ADAFACE_NORM and tensor in _AFFINE)
            found[key] = f"{theirs}.{tensor}" if is_free else None
        return found


def neutral(key: str, like: Tensor, *, eps: float) -> Tensor:
    """The values with which a layer of ours passes on what it gets."""
    tensor = key.rpartition(".")[2]
    if like.ndim == 4:  # a 1×1 convolution with as many channels behind it as before it
        return torch.eye(like.shape[0])[:, :, None, None]
    if tensor == "running_var":
        return torch.full(like.shape, 1.0 - eps)  # batch norm divides by sqrt(variance + eps)
    return torch.full(like.shape, float(tensor == "weight"), dtype=like.dtype)


def _staged(counts: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """The number of a block in all, its stage (from 1) and its number within that."""
    number = 0
    for stage, count in enumerate(counts, 1):
        for within in range(count):
            yield number, stage, within
            number += 1


_BRANCH = ("bn1", "conv1", "bn2", "prelu", "conv2", "bn3")


def _iresnet(kind: type[IResNet]) -> Modules:
    """InsightFace's arcface_torch, and OpenSphere, which has it from there."""
    names: Modules = {"stem.0": "conv1", "stem.1": "bn1", "stem.2": "prelu"}
    for number, stage, within in _staged(kind.blocks):
        theirs = f"layer{stage}.{within}"
        for place, name in enumerate(_BRANCH):
            names[f"stages.{number}.branch.{place}"] = f"{theirs}.{name}"
        for place in (0, 1):
            names[f"stages.{number}.shortcut.{place}"] = f"{theirs}.downsample.{place}"
    return names | {"output.0": "bn2", "output.3": "fc", "norm": "features"}


_ADAFACE_NORM = "output_layer.4"
_AFFINE = ("weight", "bias")  # which AdaFace's last batch norm does not have


def _adaface(kind: type[IResNet]) -> Modules:
    """AdaFace's `ir` networks: the first shortcut only halves the map, as pooling of size 1."""
    names: Modules = {f"stem.{place}": f"input_layer.{place}" for place in range(3)}
    for number, _, _ in _staged(kind.blocks):
        for place in range(len(_BRANCH)):
            names[f"stages.{number}.branch.{place}"] = f"body.{number}.res_layer.{place}"
        for place in (0, 1):
            theirs = f"body.{number}.shortcut_layer.{place}" if number else None
            names[f"stages.{number}.shortcut.{place}"] = theirs
    outputs: Modules = {f"output.{place}": f"output_layer.{place}" for place in (0, 3)}
    return names | outputs | {"norm": _ADAFACE_NORM}


def _sfnet(kind: type[SFNet], *, first: str = "conv1") -> Modules:
    """OpenSphere; `first` is what it calls the convolution that opens a stage."""
    names: Modules = {"project": "fc", "norm": "features"}
    for number, stage, within in _staged(tuple(1 + units for units in kind.units)):
        theirs = f"layer{stage}.{within}"
        if within == 0:
            names |= {
                f"stages.{number}.0": f"{theirs}.{first}",
                f"stages.{number}.1": f"{theirs}.bn1",
            }
            continue
        for place in (0, 1):
            names[f"stages.{number}.branch.{place}.0"] = f"{theirs}.conv{place + 1}"
            names[f"stages.{number}.branch.{place}.1"] = f"{theirs}.bn{place + 1}"
    return names


def _mbf(kind: type[MobileFaceNet]) -> Modules:
    """InsightFace's arcface_torch."""
    names: Modules = {}

    def convolution(ours: str, theirs: str) -> None:
        names.update({f"{ours}.{place}": f"{theirs}.layers.{place}" for place in range(3)})

    def bottleneck(number: int, theirs: str) -> None:
        ours = f"layers.{number}.branch"
        convolution(f"{ours}.0", f"{theirs}.layers.0")
        convolution(f"{ours}.1", f"{theirs}.layers.1")
        for place in (0, 1):
            names[f"{ours}.{place + 2}"] = f"{theirs}.layers.2.layers.{place}"

    convolution("layers.0", "layers.0")
    number = 1
    if kind.blocks[0] == 1:
        convolution("layers.1", "layers.1")
        number = 2
    for stage, count in enumerate(kind.blocks):
        if stage:
            bottleneck(number, f"layers.{2 * stage}")
            number += 1
        elif count == 1:
            continue
        for within in range(count):
            bottleneck(number, f"layers.{2 * stage + 1}.layers.{within}")
            number += 1
    convolution(f"layers.{number}", "conv_sep")
    for place in (0, 1):
        names[f"whole.{place}"] = f"features.layers.0.layers.{place}"
    return names | {"project": "features.layers.2", "norm": "features.layers.3"}


LAYOUTS = (
    Layout("sphereface2's sfnet", SFNet),
    Layout("sphereface2's iresnet", IResNet),
    Layout("sphereface2's mobilefacenet", MobileFaceNet),
    Layout("InsightFace's and OpenSphere's iresnet", IResNet, _iresnet),
    Layout("InsightFace's mbf", MobileFaceNet, _mbf),
    Layout("OpenSphere's sfnet", SFNet, _sfnet, fixed=(("relu_after_sum", True),)),
    Layout("OpenSphere's sfnet_deprecated", SFNet, partial(_sfnet, first="conv")),
    Layout("AdaFace's ir", IResNet, _adaface, channels="BGR"),
)
