"""The skeleton of every page: one HTML file that holds everything it shows and loads nothing."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sphereface2.data.sources.image_file import encode
from sphereface2.data.transforms import fit_within
from sphereface2.files import write_atomically
from sphereface2.reporting.style import ImageArray

Definitions = Sequence[tuple[str, str]]


class Section(NamedTuple):
    """A part of a page that its list of contents leads to."""

    anchor: str
    title: str
    content: Sequence[Markup]


class Tile(NamedTuple):
    """A number to be seen first; `small` stands beside it, `style` is "main", "base" or nothing."""

    label: str
    value: str
    note: str
    style: str = ""
    small: str = ""


class LegendEntry(NamedTuple):
    """A line of a legend; `style` is "dashed", "filled" or nothing."""

    label: str
    colour: str
    style: str = ""


@dataclass(frozen=True)
class Page:
    """What a page shows; every text is escaped, and `blocks` give the markup between.

    kind: what the style sheet knows the page by; kicker: what kind of page it is, in words
    head: what stands above the list of contents
    versions: what it was made with
    """

    kind: str
    kicker: str
    title: str
    accent: str
    sections: Sequence[Section]
    head: Sequence[Markup] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def render(self) -> str:
        return _environment().get_template("page.html.jinja").render(**vars(self))

    def write(self, path: Path) -> None:
        """Write the page, all of it or nothing."""
        write_atomically(path, self.render())


def blocks() -> Any:
    """The macros of blocks.html.jinja: each gives the markup of one kind of content."""
    return _environment().get_template("blocks.html.jinja").module


def definitions(terms: Definitions) -> Section:
    return Section("definitions", "Definitions", [blocks().definitions(terms)])


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("sphereface2.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


# -- pictures inside a page ------------------------------------------------------------------------


def png_data_uri(image: ImageArray, *, max_size: int | None = None) -> str:
    """An RGB image as a PNG inside a data URI; `max_size` bounds its longer side."""
    return _data_uri(image, "png", max_size)


def jpeg_data_uri(image: ImageArray) -> str:
    """An RGB image as a small JPEG inside a data URI; hundreds of them fit on a page."""
    return _data_uri(image, "jpeg", 112, quality=85)


def _data_uri(
    image: ImageArray, kind: str, max_size: int | None, *, quality: int | None = None
) -> str:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(
            "a picture of the report must be uint8 of the shape (height, width, 3), got "
            f"{image.dtype} of the shape {image.shape}"
        )
    if max_size is not None:
        image = fit_within(image, max_size)
    encoded = encode(image, f".{kind}", quality=quality)
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode('ascii')}"
