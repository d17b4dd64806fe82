"""The command that makes a model of weights that others have saved: import."""

from pathlib import Path
from typing import Annotated

import typer

from sphereface2.cli.console import console, say
from sphereface2.files import require_writable


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Weights: .pt, .pth, .ckpt or .safetensors.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The model folder to write.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Options of the backbone that the weights do not show: norm_eps=2e-5 ...",
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The backbone; by default the one that fits."),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the tensors' names begin with, in a file of several networks.",
        ),
    ] = None,
    colour: Annotated[
        str | None,
        typer.Option(
            metavar="RGB|BGR",
            help="The order of the channels; by default that of the project it comes from.",
        ),
    ] = None,
    mean: Annotated[
        str,
        typer.Option(metavar="M|M,M,M", help="What is taken from a value of 0 to 255."),
    ] = "127.5",
    scale: Annotated[
        str, typer.Option(metavar="S|S,S,S", help="What the rest is divided by.")
    ] = "127.5",
    size: Annotated[
        int | None, typer.Option(help="The side of the images, where several fit the weights.")
    ] = None,
    flip: Annotated[
        bool,
        typer.Option("--flip/--no-flip", help="Whether embeddings add those of mirror images."),
    ] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model folder that is there.")
    ] = False,
) -> None:
    """Make a model folder of weights from elsewhere: import backbone.pth models/r50

    Understood are InsightFace's iresnet and mbf, OpenSphere's sfnet and iresnet, AdaFace's ir, and
    state dicts of our own backbones. Reading the file runs no code from it.
    """
    from sphereface2.config.yaml_text import parse_yaml
    from sphereface2.models.importing import import_weights, save_import

    require_writable(output)
    if output.exists() and not overwrite:
        raise ValueError(f"{output} is there already; choose another folder, or give --overwrite")
    given = {}
    for text in options or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"an option of the backbone looks like norm_eps=2e-5; got '{text}'")
        given[key.removeprefix("backbone.")] = parse_yaml(value, origin=f"option '{text}'")
    model = import_weights(
        file,
        backbone=backbone,
        options=given,
        part=part,
        channels=None if colour is None else colour.upper(),
        mean=_numbers("--mean", mean),
        scale=_numbers("--scale", scale),
        size=size,
    )
    save_import(model, output, flip=flip)
    lines = [f"{model.source}, as {model.name}: {output}", f"takes images of {model.preprocessing}"]
    if model.ignored:
        shown = ", ".join(model.ignored[:3]) + (" ..." if len(model.ignored) > 3 else "")
        lines.append(f"left behind, since a model has no use for them: {shown}")
    lines.append(f"next: sphereface2 evaluate {output} --on SET, which shows whether that is right")
    say(console(), "\n".join(lines))


def _numbers(flag: str, text: str) -> float | tuple[float, float, float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if len(found) == 1:
        return found[0]
    if len(found) == 3:
        return found[0], found[1], found[2]
    raise ValueError(f"{flag} takes a number, or three with commas in between, got '{text}'")
