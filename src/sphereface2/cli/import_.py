"""The command that makes a model of weights that others have saved: import."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sphereface2.cli.console import console, say
from sphereface2.cli.options import given_options, named_options, refuse_idle
from sphereface2.files import require_writable

if TYPE_CHECKING:
    from sphereface2.data.transforms import Preprocessing

# The flags whose values a model calls otherwise.
_FLAGS = {
    "preprocessing.channels": "colour",
    "preprocessing.mean": "mean",
    "preprocessing.scale": "scale",
    "preprocessing.input_size": "size",
    "backbone.input_size": "size",
}


def import_(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Weights (.pt, .pth, .safetensors) or .onnx."),
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
        str | None,
        typer.Option(
            metavar="M|M,M,M", help="Subtracted from each value of 0 to 255; 127.5 if not given."
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(metavar="S|S,S,S", help="What the rest is divided by; 127.5 if not given."),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="The side of the images, where several fit the weights.")
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of an ONNX file with several outputs, the embedding."),
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

    Accepts InsightFace's iresnet and mbf, OpenSphere's sfnet and iresnet, AdaFace's ir, and
    state dicts of our own backbones; and any network in one ONNX file. Reading a file runs no code
    from it.
    """
    from sphereface2.models.importing import import_weights, save_import

    require_writable(output)
    if output.exists() and not overwrite:
        raise ValueError(f"{output} already exists; choose another folder, or give --overwrite")
    shown: dict[str, Any] = {
        "channels": None if colour is None else colour.upper(),
        "mean": None if mean is None else _numbers("--mean", mean),
        "scale": None if scale is None else _numbers("--scale", scale),
        "size": size,
    }
    if file.suffix.lower() == ".onnx":
        from sphereface2.models.folder import import_onnx
        from sphereface2.models.runtimes import import_preprocessing

        refuse_idle(context, "options", "backbone", "part", because="is not for an ONNX file")
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}")
        with _naming_flags(context):
            preprocessing = import_preprocessing(file, **shown)
        width = import_onnx(file, output, preprocessing=preprocessing, output=embedding, flip=flip)
        _report(f"{file.name}, {width} dimensions: {output}", preprocessing, output)
        return
    refuse_idle(context, "embedding", because="is for an ONNX file")
    with _naming_flags(context):
        model = import_weights(
            file,
            backbone=backbone,
            options=named_options("backbone", options, like="norm_eps=2e-5"),
            part=part,
            **{name: value for name, value in shown.items() if value is not None},
        )
    save_import(model, output, flip=flip)
    _report(f"{model.source}, as {model.name}: {output}", model.preprocessing, output)
    if model.left_behind:
        say(console(), model.left_behind)


@contextmanager
def _naming_flags(context: typer.Context) -> Iterator[None]:
    """Let the message about a value name the flag that gave it."""
    try:
        yield
    except ValueError as error:
        said, given = str(error), given_options(context)
        for key, name in _FLAGS.items():
            said = said.replace(key, f"--{name}") if name in given else said
        raise ValueError(said) from None


def _report(what: str, preprocessing: "Preprocessing", output: Path) -> None:
    say(console(), f"{what}\ntakes images of {preprocessing}")
    say(
        console(),
        f"next: sphereface2 evaluate {output} --on SET, which shows whether that is right",
    )


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
