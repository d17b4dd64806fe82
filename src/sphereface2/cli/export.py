"""The command that writes a model for other programs and for machines without torch: export."""

from pathlib import Path
from typing import Annotated

import typer

from sphereface2.cli.console import Watch, console, say
from sphereface2.cli.options import ListRoot, Workers, readers, refuse_idle
from sphereface2.files import require_writable


def export(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run or a model folder.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    to: Annotated[
        str,
        typer.Option(help="onnx or openvino (run without torch), or torchscript (model.pt)."),
    ] = "onnx",
    int8: Annotated[
        bool, typer.Option("--int8", help="In 8 bits: smaller and faster, and a little off.")
    ] = False,
    calibration_data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="For --int8: aligned crops in a folder per person, or a list."
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET",
            help="For --int8: what the loss is measured on; pairs of the calibration data if not "
            "given.",
        ),
    ] = None,
    root: ListRoot = None,
    most_loss: Annotated[
        float,
        typer.Option(help="For --int8: by how much TAR may fall before the export is refused."),
    ] = 0.01,
    workers: Workers = None,
) -> None:
    """Write a model as ONNX, OpenVINO or TorchScript: sphereface2 export MODEL OUT --to onnx

    The result is compared with torch at once, and refused if it differs. OUT is a model folder that
    'verify' and all other commands take; TorchScript is for programs of your own.
    """
    from sphereface2.runs.export import export_model

    if not int8:
        refuse_idle(context, "calibration_data", "on", "root", "most_loss", because="is for --int8")
    elif calibration_data is None:
        raise ValueError(
            "--int8 needs --calibration-data DIR: some hundred aligned crops, which show the range "
            "of each layer's values"
        )
    require_writable(output)
    done = export_model(
        model,
        output,
        to=to,
        calibration_data=calibration_data,
        on=on or [],
        root=root,
        most_loss=most_loss,
        workers=readers(workers),
        watch=Watch(console()),
    )
    for sentence in done.sentences():
        print(sentence)
    say(console(), f"written: {output}")
    if int8:
        say(
            console(),
            f"its scores are a little other than before: sphereface2 calibrate {output} --on SET",
        )
