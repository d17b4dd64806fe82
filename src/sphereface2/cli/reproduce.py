"""The command that makes a table or figure of the paper: reproduce."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import Watch, console, say, stdout, stoppable
from sphereface2.cli.options import Jobs, Seeds, given_options, refuse_idle
from sphereface2.files import require_writable

if TYPE_CHECKING:
    from sphereface2.experiments.paper.catalogue import Scale
    from sphereface2.experiments.paper.reproduce import Reproduced, Reproduction

ALL = "all"


def reproduce(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A table or figure, see --list; or 'all'.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="What to change in every run, such as precision=fast or training.compile=true.",
        ),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Show every name, its place in the paper and its claim.")
    ] = False,
    scale: Annotated[
        str,
        typer.Option(help="small: rendered people, on a laptop; paper: the paper's data sets."),
    ] = "small",
    data: Annotated[
        Path | None,
        typer.Option(help="The paper's data sets, for --scale paper; for real-...: your faces."),
    ] = None,
    seeds: Seeds = "3",
    jobs: Jobs = None,
    output: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("reproduced"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it needs, and for how long.")
    ] = False,
) -> None:
    """Make a table or figure of the paper: sphereface2 reproduce principles

    After a stop or a crash the same command resumes; finished runs are not run again.
    """
    if show_list:
        others = [each for each in given_options(context) if each != "show_list"]
        refuse_idle(context, *others, because="has no meaning beside --list")
        _show_list()
        return
    if name is None:
        raise ValueError("give the name of a table or figure, or --list to see them all")
    from sphereface2.experiments.paper.catalogue import BOTH, EXPERIMENTS
    from sphereface2.experiments.paper.reproduce import Reproduction
    from sphereface2.experiments.sweep.board import SweepDisplay
    from sphereface2.experiments.sweep.plan import seeds_of_text
    from sphereface2.registry import look_up

    chosen: Scale = look_up("--scale", {each: each for each in BOTH}, scale)
    names = [each for each, what in EXPERIMENTS.items() if chosen in what.scales]
    if name != ALL:
        experiment = look_up("experiment", {**EXPERIMENTS, ALL: None}, name)
        if experiment is not None and experiment.kind == "real":
            refuse_idle(context, "scale", because=f"has no meaning for {name}: give --data DIR")
            chosen = "real"
        elif experiment is not None and experiment.rows is None:
            none = f"is for runs, which {name} has none of"
            refuse_idle(context, "overrides", "seeds", "jobs", because=none)
        names = [name]
    screen = console()
    work = Reproduction(
        output,
        scale=chosen,
        data=data,
        seeds=seeds_of_text(seeds),
        jobs=jobs,
        overrides=overrides or (),
        events=SweepDisplay(screen),
        watch=Watch(screen),
    )
    if dry_run:
        _print_plans(work, names)
        return
    require_writable(output)
    failed = []
    for each in names:
        with stoppable(work.command(name)):
            made = work.reproduce(each)
        _show(made)
        rows = made.table.rows if made.table is not None else ()
        failed += [run for row in rows for run in row.runs if run.error]
    if failed:
        log = work.runs / failed[0].folder / "log.txt"
        typer.echo(
            f"sphereface2: {len(failed)} runs failed, the first with: {failed[0].error} (log: "
            f"{log}); the same command tries them again",
            err=True,
        )
        raise typer.Exit(1)


def _show_list() -> None:
    from rich.table import Table
    from rich.text import Text

    from sphereface2.experiments.paper.catalogue import EXPERIMENTS

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "place", "what, and what the paper says of it"):
        table.add_column(column, no_wrap=column == "name", min_width=8)
    for each in EXPERIMENTS.values():
        table.add_row(each.name, each.where, Text.assemble(each.title, "\n", (each.claim, "dim")))
    screen = stdout()
    screen.print(table)
    say(screen, "\nnext: sphereface2 reproduce NAME, or 'all'")


def _show(made: "Reproduced") -> None:
    """Print the table, what the paper says of it, and the files."""
    from sphereface2.reporting.pages.sweep import sweep_content

    screen = stdout()
    if made.table is not None:
        screen.print(sweep_content(made.table))
    say(screen, f"{made.experiment.where}: {made.experiment.claim}", wrap=True)
    for path in made.files:
        say(screen, str(path))


def _print_plans(work: "Reproduction", names: list[str]) -> None:
    """What experiments need: their runs, and what the first run of each recipe needs."""
    from sphereface2.cli.train import estimate_table
    from sphereface2.runs.estimate import Estimate, estimate, plan_run
    from sphereface2.workers import usable_cores

    screen = stdout()
    cores = usable_cores()
    jobs = work.jobs or cores
    estimates: dict[str, Estimate] = {}
    for name in names:
        sweep = work.plan(name)
        if sweep is None:
            say(screen, f"{name}: trains nothing that could be planned", wrap=True)
            continue
        first = sweep.settings[0]
        if sweep.recipe not in estimates:
            config, known = plan_run(sweep.recipe, first.overrides)
            with Watch(console())("estimating"):
                found = estimate(config, known_data=known, threads=max(1, cores // jobs))
            estimates[sweep.recipe] = found
        rows, seeds = len(sweep.settings), len(sweep.seeds)
        runs = f"{rows} settings of {sweep.recipe} with {seeds} seed{'s' * (seeds > 1)} each"
        title = f"{name}: {runs}; a run like '{first.label}'"
        table = estimate_table(estimates[sweep.recipe], title=title, runs=rows * seeds, jobs=jobs)
        screen.print(table)
        if work.scale == "real":
            count = len(work.seeds)
            more = f"{count} seed{'s' * (count > 1)} each"
            screen.print(f"then the best of each loss at twice the epochs, {more}", highlight=False)
        missing = work.missing(name)
        if missing is not None:
            say(screen, missing)
