"""The command that makes a table or figure of the paper: reproduce."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.showing import Watch, console

if TYPE_CHECKING:
    from sphereface2.reproducing.reproduce import Reproduced, Reproduction

ALL = "all"


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table or figure, see --list; or 'all'.")
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Show every name, its place in the paper, its claim.")
    ] = False,
    scale: Annotated[
        str,
        typer.Option(help="small: rendered people, on a laptop; paper: the paper's data sets."),
    ] = "small",
    data: Annotated[
        Path | None,
        typer.Option(help="The folder with the paper's data sets, for --scale paper."),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="How many (3: the seeds 0, 1 and 2), or which (0,4,7).")
    ] = "3",
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at once; one a GPU, or else one a core, if not given."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("reproduced"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it needs, and for how long.")
    ] = False,
) -> None:
    """Make a table or figure of the paper: sphereface2 reproduce principles

    Stopped or killed, the same command goes on; runs that are done are not run again, in whichever
    table they stand.
    """
    if show_list:
        _show_list()
        return
    if name is None:
        raise ValueError("give the name of a table or figure, or --list to see them all")
    from sphereface2.sweeping.grid import seeds_of_text
    from sphereface2.tables import look_up

    look_up("--scale", {"small": 0, "paper": 0}, scale)
    from sphereface2.reproducing.catalogue import EXPERIMENTS
    from sphereface2.reproducing.reproduce import Reproduction, find_experiment
    from sphereface2.sweeping.display import SweepDisplay
    from sphereface2.sweeping.engine import SweepStopped

    names = list(EXPERIMENTS) if name == ALL else [find_experiment(name).name]
    screen = console()
    work = Reproduction(
        output,
        scale="paper" if scale == "paper" else "small",
        data=data,
        seeds=seeds_of_text(seeds),
        jobs=jobs,
        events=SweepDisplay(screen),
        watch=Watch(screen),
    )
    if name == ALL and scale == "paper":
        names = [each for each in names if EXPERIMENTS[each].paper_recipe is not None]
    failed = 0
    for each in names:
        if dry_run:
            _tell_plan(work, each)
            continue
        try:
            failed += _show(work.reproduce(each))
        except SweepStopped as stop:
            text = f"{stop}; go on with the same command: {work.command(name)}"
            screen.print(text, highlight=False, markup=False, soft_wrap=True)
            raise typer.Exit(130) from None
    if failed:
        typer.echo(
            f"sphereface2: {failed} runs failed, see above; the same command tries them again",
            err=True,
        )
        raise typer.Exit(1)


def _show_list() -> None:
    from rich.console import Console
    from rich.table import Table

    from sphereface2.reproducing.catalogue import EXPERIMENTS

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("place", no_wrap=True)
    table.add_column("what the paper says")
    for each in EXPERIMENTS.values():
        table.add_row(each.name, each.where, f"{each.title}. {each.claim}")
    screen = Console()
    screen.print(table)
    screen.print("\nnext: sphereface2 reproduce NAME   (or 'all')", highlight=False)


def _show(made: "Reproduced") -> int:
    """Print the table and the files; how many runs failed."""
    from rich.console import Console

    from sphereface2.reporting.sweep_tables import console_table

    screen = Console()
    if made.table is not None:
        screen.print(console_table(made.table))
    screen.print(f"the paper, {made.experiment.where}: {made.experiment.claim}", highlight=False)
    for path in made.files:
        screen.print(str(path), highlight=False, markup=False, soft_wrap=True)
    rows = made.table.rows if made.table is not None else ()
    return sum(bool(run.error) for row in rows for run in row.runs)


def _tell_plan(work: "Reproduction", name: str) -> None:
    """What one experiment needs: its runs, and what the first of them needs."""
    from rich.console import Console

    from sphereface2.cli.dry_run import estimate_table
    from sphereface2.estimating import estimate, plan_run

    sweep = work.plan(name)
    screen = Console()
    if sweep is None:
        screen.print(f"{name}: no runs to plan, it takes minutes", highlight=False)
        return
    first = sweep.settings[0]
    planned = plan_run(sweep.recipe, first.overrides)
    with Watch(console())("estimating"):
        result = estimate(planned.config, known_data=planned.known_data)
    rows, seeds = len(sweep.settings), len(sweep.seeds)
    title = f"{name}: {rows} settings of {sweep.recipe}, {seeds} seeds: {rows * seeds} runs like"
    screen.print(estimate_table(result, title=f"{title} '{first.label}'"))
    missing = work.missing(name)
    if missing is not None:
        screen.print(missing, highlight=False, markup=False, soft_wrap=True)
