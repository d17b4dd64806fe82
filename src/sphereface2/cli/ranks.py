"""Commands under torchrun: all ranks work, rank 0 speaks for them."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import typer

from sphereface2.cli.console import console

GO_ON = "the same command resumes where it was"


@contextmanager
def all_ranks(*, go_on: str | None = None) -> Iterator[AbstractContextManager[None]]:
    """Join the processes that torchrun started, until the end of the block.

    Gives a block in which a mistake that one of them finds ends them all. `go_on` is what to do
    after one of them was lost, where that is not to resume a training.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield nullcontext()
        return
    from sphereface2.training.distributed import LostRankError, ReportedElsewhereError, joined

    try:
        with joined() as team:
            yield team.together()
            with team.together():
                pass  # all leave in step, whatever rank 0 alone had to do at last
    except ReportedElsewhereError:
        raise typer.Exit(2) from None
    except LostRankError as error:
        lost, _, resume = str(error).partition("; ")
        print(f"sphereface2: {lost}; {go_on or resume}", file=sys.stderr)
        raise typer.Exit(1) from None


@contextmanager
def stoppable() -> Iterator[None]:
    """Work that Ctrl-C stops and the same command resumes."""
    try:
        yield
    except KeyboardInterrupt:
        console().print(f"stopped; {GO_ON}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
