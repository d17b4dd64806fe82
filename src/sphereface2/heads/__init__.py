"""Heads: from embeddings and labels to a loss. One line in `HEADS` makes a head known."""

from collections.abc import Callable
from typing import Any

from sphereface2.heads.contract import UNKNOWN
from sphereface2.heads.head import Head
from sphereface2.heads.hybrids import DeepID2, Ring
from sphereface2.heads.pairs import Contrastive, Triplet
from sphereface2.heads.proxy import ProxyHead
from sphereface2.heads.quality import AdaFace, MagFace
from sphereface2.heads.sigmoid import Sigmoid
from sphereface2.heads.simple import SimPLE
from sphereface2.heads.softmax import (
    ArcFace,
    Circle,
    CosFace,
    CurricularFace,
    NormFace,
    PlainSoftmax,
    SphereFace,
)
from sphereface2.heads.sphereface2 import SphereFace2, SphereFace2A, SphereFace2M
from sphereface2.heads.uniface import UniFace, UniTSFace
from sphereface2.registry import OPTION_ALIASES, build, look_up, resolve_options

HEADS: dict[str, Callable[..., Head]] = {
    "sphereface2-c": SphereFace2,
    "sphereface2-a": SphereFace2A,
    "sphereface2-m": SphereFace2M,
    "uniface": UniFace,
    "sigmoid": Sigmoid,
    "softmax": PlainSoftmax,
    "normface": NormFace,
    "sphereface": SphereFace,
    "cosface": CosFace,
    "arcface": ArcFace,
    "curricularface": CurricularFace,
    "circle": Circle,
    "magface": MagFace,
    "adaface": AdaFace,
    "contrastive": Contrastive,
    "triplet": Triplet,
    "simple": SimPLE,
    "deepid2": DeepID2,
    "ring": Ring,
    "unitsface": UniTSFace,
}


def build_head(name: str, dim: int, num_classes: int, **options: Any) -> Head:
    """The head called `name`, for embeddings of `dim` numbers and `num_classes` people."""
    options = _own_options(name, options)
    return build("head", HEADS, name, dim, num_classes, aliases=OPTION_ALIASES, **options)


def head_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """All options of a head under our own names, defaults filled in."""
    factory = look_up("head", HEADS, name)
    options = _own_options(name, options)
    return resolve_options("head", name, factory, options, aliases=OPTION_ALIASES)


# What wespeaker and OpenSphere call the margin's type, which is part of the names of our heads.
_MARGIN_TYPE = ("margin_type", "magn_type")


def _own_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options without the margin's type, which is checked against the head's name."""
    family, _, own_type = name.rpartition("-")
    if family != "sphereface2":
        return options
    for word in options.keys() & set(_MARGIN_TYPE):
        wanted = f"{family}-{options[word]}".lower()
        if wanted != name:
            look_up("head", HEADS, wanted)
            raise ValueError(
                f"head '{name}' has the margin type {own_type.upper()}; the head for "
                f"{word}={wanted[-1].upper()} is '{wanted}'"
            )
    return {key: value for key, value in options.items() if key not in _MARGIN_TYPE}


__all__ = [
    "HEADS",
    "UNKNOWN",
    "AdaFace",
    "ArcFace",
    "Circle",
    "Contrastive",
    "CosFace",
    "CurricularFace",
    "DeepID2",
    "Head",
    "MagFace",
    "NormFace",
    "PlainSoftmax",
    "ProxyHead",
    "Ring",
    "Sigmoid",
    "SimPLE",
    "SphereFace",
    "SphereFace2",
    "SphereFace2A",
    "SphereFace2M",
    "Triplet",
    "UniFace",
    "UniTSFace",
    "build_head",
    "head_options",
]
