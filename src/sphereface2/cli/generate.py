"""The command that makes a small benchmark for users without one: generate."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sphereface2.cli.console import Watch, console, say
from sphereface2.files import replacing, require_writable

KINDS = ("small-ijb",)
FULL_SIZE = ("ijb-b", "ijb-c", "megaface")


def generate(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))],
    output: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    scale: Annotated[float, typer.Option(help="Its size: 1 is a benchmark of 60 people.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed, other people.")] = 0,
) -> None:
    """Make a small benchmark of rendered people in the layout of IJB-C."""
    from sphereface2.datatools.rendered_benchmarks import render_ijb
    from sphereface2.registry import look_up

    if kind in FULL_SIZE:
        raise ValueError(
            f"{kind} of full size is made in a clone of the repository by "
            f"'python -m benchmarks.generate {kind} DIR' (here: {', '.join(KINDS)})"
        )
    look_up("benchmark", dict.fromkeys(KINDS), kind)
    if not 0 < scale <= 100 or seed < 0:
        raise ValueError(
            f"--scale must be above 0 and --seed not negative, got {scale:g} and {seed}"
        )
    screen = console()
    with made_beside(output) as making, Watch(screen)(f"making {kind}") as progress:
        render_ijb(making, people=max(4, round(60 * scale)), seed=seed, progress=progress)
    command = f"sphereface2 evaluate MODEL --protocol ijb-c --root {output}"
    say(screen, f"next: {command}")


@contextmanager
def made_beside(output: Path) -> Iterator[Path]:
    """A folder to work in that gets its name at the end: what has the name is whole."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} already exists and is not empty; choose another folder")
    require_writable(output)
    with replacing(output) as making:
        yield making
