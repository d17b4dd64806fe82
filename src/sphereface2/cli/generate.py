"""The command that makes benchmarks for those who have none: generate."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import Watch, console
from sphereface2.cli.options import refuse_idle
from sphereface2.files import require_writable

if TYPE_CHECKING:
    from sphereface2.progress import Progress

KINDS = ("ijb-b", "ijb-c", "megaface", "small-ijb")


def generate(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))],
    output: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    scale: Annotated[
        float, typer.Option(help="Its size: 1 is the official one, or 60 people in small-ijb.")
    ] = 1.0,
    dim: Annotated[
        int, typer.Option(help="Dimensions of generated embeddings; small-ijb has none.")
    ] = 512,
    seed: Annotated[int, typer.Option(help="Another seed, other people.")] = 0,
) -> None:
    """Make a benchmark in the official layout: full-size embeddings, or a small one of images."""
    from sphereface2.registry import nearest

    if kind not in KINDS:
        raise ValueError(
            f"unknown benchmark '{kind}'{nearest(kind, KINDS)} (known: {', '.join(KINDS)})"
        )
    if kind == "small-ijb":
        refuse_idle(context, "dim", because="is for generated embeddings; small-ijb is of images")
    if not 0 < scale <= 100 or dim < 2 or seed < 0:
        raise ValueError(
            f"--scale must be above 0, --dim at least 2 and --seed not negative, got {scale:g}, "
            f"{dim} and {seed}"
        )
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} is there already and not empty; choose another folder")
    screen = console()
    # Made beside its place: what has the name is whole.
    making = output.with_name(f".{output.name}.making")
    require_writable(making)
    shutil.rmtree(making, ignore_errors=True)
    try:
        with Watch(screen)(f"making {kind}") as progress:
            use = _generate(kind, making, scale=scale, dim=dim, seed=seed, progress=progress)
        if output.exists():
            output.rmdir()
        making.replace(output)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    command = f"sphereface2 {use.format(output)}"
    screen.print(f"next: {command}", highlight=False, markup=False, soft_wrap=True)


def _generate(
    kind: str, root: Path, *, scale: float, dim: int, seed: int, progress: "Progress | None"
) -> str:
    """Make it in `root`; how to use it, as the end of a command."""
    if kind == "small-ijb":
        from sphereface2.datatools.generate.rendered_ijb import render_ijb

        render_ijb(root, people=max(4, round(60 * scale)), seed=seed, progress=progress)
        return "evaluate MODEL --protocol ijb-c --root {0}"
    if kind == "megaface":
        from sphereface2.datatools.generate.megaface import generate_megaface

        generate_megaface(root, scale=scale, dim=dim, seed=seed, progress=progress)
        return "evaluate --embeddings {0} --protocol megaface"
    from sphereface2.datatools.generate.ijb import IJBB, IJBC, generate_ijb

    sizes = IJBB if kind == "ijb-b" else IJBC
    generate_ijb(root, sizes=sizes, scale=scale, dim=dim, seed=seed, progress=progress)
    return f"evaluate --embeddings {{0}}/embeddings.npy --protocol {kind} --root {{0}}"
