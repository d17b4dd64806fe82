"""Views: a network for each of several parts of the face, trained side by side and used as one."""

import copy
import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn
from torch.nn.functional import normalize

from sphereface2.backbones.backbone import Backbone, check_option
from sphereface2.backbones.networks import NETWORKS
from sphereface2.config.loading import named
from sphereface2.data.transforms import resize_inputs
from sphereface2.registry import look_up, resolve_options

Square = tuple[float, float, float]
"""Top, left and side as shares of the image's side."""


def _view(given: Any) -> Any:
    """Checked here: pydantic would complain of the first alternative of the type only."""
    is_square = (
        isinstance(given, list | tuple)
        and len(given) == 3
        and all(isinstance(share, int | float) and math.isfinite(share) for share in given)
    )
    if not isinstance(given, str) and not is_square:
        raise ValueError("must be names or [top, left, side]")
    return given


View = Annotated[str | Square, BeforeValidator(_view)]

# For faces aligned to the usual five points.
SQUARES: dict[str, Square] = {
    "whole": (0.0, 0.0, 1.0),
    "upper": (10 / 64, 12 / 64, 40 / 64),  # the eyes and the nose
    "lower": (24 / 64, 12 / 64, 40 / 64),  # the nose, the mouth and the chin
    "side": (12 / 64, 24 / 64, 40 / 64),  # one half of the face; the mirror image shows the other
}


def _all_options(network: Any) -> Any:
    """A network's name with all its options, so that a model folder has them written out."""
    given = named(network)
    if not isinstance(given, Mapping):
        raise ValueError("must be a name or {name: ..., options}")
    options = {key: value for key, value in given.items() if key != "name"}
    name = given.get("name")
    if not isinstance(name, str):
        raise ValueError("needs a name, such as {name: sfnet10, width: 32}")
    for key, follows in (("input_size", "view_size"), ("embedding_dim", "embedding_dim")):
        if key in options:
            raise ValueError(f"has no {key} of its own: it follows from backbone.{follows}")
    resolved = resolve_options("network", name, look_up("network", NETWORKS, name), options)
    del resolved["input_size"], resolved["embedding_dim"]
    return {"name": name, **resolved}


class Views(Backbone):
    """Networks of one kind that each see a square of the image; an embedding joins their parts.

    A small network that sees a whole face learns the training people's hair and background by
    heart; squares have less of that, in more pixels, and networks of other squares err in other
    ways (DeepID, CVPR 2014). They start from weights of their own, and a head with class weights
    classifies every part by itself (`ProxyHead.split`), so that each learns as it would alone. In
    evaluation the parts are of one length: a cosine of two images is the mean of the networks'
    cosines. With the mirror image a part is longer where a network is surer of it.

    Args:
        views: names of squares (whole, upper, lower, side) or [top, left, side] as shares of the
            image's side.
        view_size: pixels across at which every network sees its square.
        network: the name of a backbone, or {name, options...}: one for each view.
        input_size: pixels across of the image.
        embedding_dim: of all parts together.
    """

    resizes_by_products = False

    def __init__(
        self,
        *,
        views: tuple[View, ...] = ("whole", "upper", "lower", "side"),
        view_size: int = 40,
        network: Annotated[dict[str, Any] | str, BeforeValidator(_all_options)] = "sfnet10",
        input_size: int = 64,
        embedding_dim: int = 512,
    ) -> None:
        super().__init__(width=1, input_size=input_size, embedding_dim=embedding_dim)
        check_option("view_size", view_size, at_least=16)
        if not views:
            raise ValueError("backbone.views must name at least one view")
        if embedding_dim % len(views):
            near = max(1, round(embedding_dim / len(views))) * len(views)
            raise ValueError(
                f"backbone.embedding_dim={embedding_dim} is not {len(views)} equal parts, one for "
                f"each of backbone.views; backbone.embedding_dim={near} is"
            )
        self.view_size = view_size
        self.windows = [_window(view, input_size) for view in views]
        options = _all_options(network)
        kind = NETWORKS[options.pop("name")]
        part = embedding_dim // len(views)
        try:
            self.networks = nn.ModuleList(
                kind(**options, input_size=view_size, embedding_dim=part) for _ in views
            )
        except ValueError as error:  # the networks know nothing of where their options stand
            raise ValueError(str(error).replace("backbone.", "backbone.network.", 1)) from None

    def embed(self, images: Tensor) -> Tensor:
        parts = [
            network(self._seen(images, window))
            for network, window in zip(self.networks, self.windows, strict=True)
        ]
        if not self.training:
            parts = [normalize(part.float()) for part in parts]
        return torch.cat(parts, dim=1)

    def for_export(self) -> "Views":
        network = copy.copy(self)  # the original may be in use, or in another export, meanwhile
        network.resizes_by_products = True
        return network

    def parts(self) -> list[Backbone]:
        return [network for network in self.networks if isinstance(network, Backbone)]

    def _seen(self, images: Tensor, window: tuple[int, int, int]) -> Tensor:
        top, left, side = window
        square = images[:, :, top : top + side, left : left + side]
        if side == self.view_size:
            return square
        return resize_inputs(square, self.view_size, by_products=self.resizes_by_products)


def _window(view: str | Square, size: int) -> tuple[int, int, int]:
    """Top, left and side of a view in the pixels of an image of that size."""
    square = look_up("view", SQUARES, view) if isinstance(view, str) else view
    top, left, side = (round(share * size) for share in square)
    # Rounded, a square at the edge may be a pixel too large.
    side = min(side, size - top, size - left)
    if not (min(square) >= 0 and max(square[:2]) + square[2] <= 1 + 1e-9 and side > 0):
        raise ValueError(
            f"backbone.views: [top, left, side] = {list(square)} is not a square within the image; "
            "all three are shares of its side"
        )
    return top, left, side
