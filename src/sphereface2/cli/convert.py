"""The command that writes images in another form: convert."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import Watch, console, say, stoppable
from sphereface2.cli.options import ListRoot
from sphereface2.files import require_writable
from sphereface2.workers import counted

if TYPE_CHECKING:
    from sphereface2.datatools.convert.conversion import Converted


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="Images: a folder, list, .rec or .parquet. Pairs: .bin, pairs.txt, a pair list.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="x.rec, x.parquet, x.txt (a list), x.bin (of pairs), or a folder."
        ),
    ],
    root: ListRoot = None,
    format: Annotated[  # noqa: A002 - the name of the option
        str | None,
        typer.Option(help="folder, list, recordio, parquet or bin, where OUT does not say."),
    ] = None,
    on_bad_image: Annotated[
        str, typer.Option(help="stop (nothing is written) or skip (they are left out).")
    ] = "stop",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT, or an unfinished other conversion.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads that check the images; 4 if not given.")
    ] = None,
) -> None:
    """Write images in another form, byte for byte: sphereface2 convert crops crops.rec

    After an interruption the same command resumes.
    """
    from sphereface2.datatools.convert import convert as convert_images

    require_writable(target.parent)  # it is made beside its place
    screen = console()
    with stoppable():
        done = convert_images(
            source,
            target,
            root=root,
            format=format,
            on_bad_image=on_bad_image,
            overwrite=overwrite,
            workers=workers,
            watch=Watch(screen),
        )
    for note in done.notes:
        say(screen, f"note: {note}")
    print(_summary(done))


def _summary(done: "Converted") -> str:
    from rich.filesize import decimal

    from sphereface2.files import printable

    people = "" if done.people is None else f" of {counted(done.people, 'person', 'people')}"
    images = counted(done.images, "image")
    lines = [f"{images}{people}, {decimal(done.bytes)}, in {done.seconds:.1f} s"]
    if done.pairs is not None:
        lines[0] = f"{counted(done.pairs, 'pair')}, {lines[0]}"
    if done.written < done.images:
        lines[0] += f" ({done.written:,} now, {done.images - done.written:,} before)"
    lines[0] += f", {done.written / max(done.seconds, 1e-9):,.0f} images/s"
    if done.skipped:
        what = "image" if done.pairs is None else "pair"
        lines.append(f"left out as unreadable: {counted(done.skipped, what)}")
    lines.append(f"{done.format}: {printable(done.path)}")
    return "\n".join(lines)
