"""The command that embeds images into a file: extract."""

from pathlib import Path
from typing import Annotated

import typer

from sphereface2.cli.console import RESUMES, Watch, all_ranks, console, say, stoppable
from sphereface2.cli.options import BatchSize, Device, Flip, ListRoot, Workers, readers
from sphereface2.files import require_writable


def extract(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run or a model folder.")],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Images: a folder, list, .rec or .parquet.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT.npy", help="The file to write.")],
    root: ListRoot = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there.")
    ] = False,
    flip: Flip = None,
    workers: Workers = None,
    batch_size: BatchSize = 256,
    device: Device = "auto",
) -> None:
    """Embed images into a .npy file, names and people beside it: extract MODEL crops crops.npy

    Under torchrun the ranks share the work. After an interruption the same command resumes.
    """
    with stoppable(), all_ranks(after_loss=RESUMES):
        from sphereface2.data.sources import open_images
        from sphereface2.data.sources.source import Faces
        from sphereface2.models.extraction import open_embedder
        from sphereface2.training.distributed import current_team

        screen = console()
        team = current_team()
        with team.together():
            require_writable(output, is_file=True)
            embedder = open_embedder(
                model,
                flip=flip,
                workers=readers(workers),
                batch_size=batch_size,
                device=device,
                watch=Watch(screen),
            )
            source = open_images(data, root=root)
        numbers = range(len(source))
        found = embedder.extract(
            Faces(source),
            output,
            title=f"embedding {data}",
            names=[source.name(number) for number in numbers],
            people=[source.person(number) for number in numbers],
            overwrite=overwrite,
        )
        say(
            screen,
            f"{len(found):,} embeddings of {found.shape[1]} dimensions: {output}, names in "
            f"{output.with_suffix('.txt').name}, model in {output.with_suffix('.json').name}",
        )
