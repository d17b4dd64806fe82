"""The command that runs many settings of a recipe: sweep."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import console, stdout, stoppable
from sphereface2.cli.options import Jobs, Seeds
from sphereface2.cli.train import name_of
from sphereface2.files import require_writable

if TYPE_CHECKING:
    from sphereface2.evaluation.experiment_results import SweepResult
    from sphereface2.experiments.sweep.plan import Sweep


def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, a YAML file, or a run folder.")],
    grid: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE[,VALUE]]...",
            help="Values to combine: head.margin=0.2,0.3 head.sharpness=1,3 training.epochs=5; "
            "the recipe as it is if not given.",
        ),
    ] = None,
    seeds: Seeds = "3",
    output: Annotated[
        Path | None, typer.Option(help="Where the result goes; sweeps/RECIPE if not given.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--runs", help="Where the runs go; sweeps may share it. OUTPUT/runs if not."),
    ] = None,
    jobs: Jobs = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be run, and what is done.")
    ] = False,
) -> None:
    """Train every combination with every seed, and put mean and deviation into a table.

    After a stop or a crash the same command resumes; finished runs are not run again.
    """
    from sphereface2.experiments.sweep.plan import Sweep, seeds_of_text, settings_of_grid

    folder = output or Path("sweeps") / name_of(recipe)
    runs = store or folder / "runs"
    words = ["sphereface2", "sweep", recipe, *(grid or []), "--seeds", seeds]
    words += ["--output", str(folder)]
    words += ["--runs", str(store)] if store else []
    words += ["--jobs", str(jobs)] if jobs else []
    wanted = Sweep(
        name=folder.name,
        title=f"Sweep over {recipe}",
        recipe=recipe,
        settings=settings_of_grid(grid or []),
        seeds=seeds_of_text(seeds),
        scale="",
        command=shlex.join(words),
    )
    _refuse_other_result(folder, wanted)
    if dry_run:
        print_plan(wanted, runs, jobs=jobs)
        return
    from sphereface2.experiments.sweep.board import SweepDisplay
    from sphereface2.experiments.sweep.engine import run_sweep

    for place in (folder, runs):
        require_writable(place)
    with stoppable(wanted.command):
        result = run_sweep(wanted, runs=runs, jobs=jobs, events=SweepDisplay(console()))
    _keep(folder, result)
    failed = [(row, run) for row in result.rows for run in row.runs if run.error]
    if failed:
        row, run = failed[0]
        text = (
            f"{len(failed)} of {len(result.rows) * len(wanted.seeds)} runs failed, the first at "
            f"'{row.label}', seed {run.seed}: {run.error} (log: {runs / run.folder / 'log.txt'}); "
            "the same command tries them again"
        )
        typer.echo(f"sphereface2: {text}", err=True)
        raise typer.Exit(1)


def _refuse_other_result(folder: Path, wanted: "Sweep") -> None:
    """A ValueError where the table would take the place of one that it does not hold."""
    from sphereface2.evaluation.experiment_results import SweepResult
    from sphereface2.reporting.pages.sweep import RESULT

    if not (folder / RESULT).exists():
        return
    try:
        there = SweepResult.load(folder / RESULT)
    except ValueError:
        is_part = False  # of another version, or something else
    else:
        settings = {setting.overrides for setting in wanted.settings}
        is_part = (
            there.recipe == wanted.recipe
            and {row.overrides for row in there.rows} <= settings
            and set(there.seeds) <= set(wanted.seeds)
        )
    if not is_part:
        raise ValueError(
            f"{folder / RESULT} is of another sweep, with settings or seeds that this one does not "
            "have; give another --output (and --runs, to share what is trained), or remove it"
        )


def print_plan(wanted: "Sweep", runs: Path, *, jobs: int | None = None) -> None:
    """How many runs there are, which are done, and what trains each."""
    from sphereface2.experiments.sweep.board import Status
    from sphereface2.experiments.sweep.engine import look_up_runs
    from sphereface2.experiments.sweep.plan import check_buildable, train_command

    states = look_up_runs(wanted, runs=runs)
    check_buildable([state.plan for state in states if state.status is not Status.DONE])
    done = sum(state.status is Status.DONE for state in states)
    at_once = "" if jobs is None else f", {jobs} at once"
    typer.echo(f"{len(states)} runs, {done} done already{at_once}")
    for state in states:
        word = "done" if state.status is Status.DONE else "to do"
        typer.echo(f"{word:5}  {train_command(wanted.recipe, state.plan, runs=runs)}")


def _keep(folder: Path, result: "SweepResult") -> None:
    """Print the table and write the same as JSON, Markdown, CSV and a page."""
    from sphereface2.reporting.pages.sweep import sweep_content, write_sweep_files

    page, data, *_ = write_sweep_files(folder, result)
    stdout().print(sweep_content(result))
    typer.echo(f"result: {data}\nreport: {page}")
