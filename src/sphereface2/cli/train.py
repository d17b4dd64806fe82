"""Commands that make a run: train, resume."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import Watch, all_ranks, console, rank, say
from sphereface2.workers import in_words

if TYPE_CHECKING:
    from rich.console import Console

    from sphereface2.training.result import TrainingResult

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the config: head.name=cosface ..."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name, a YAML file, or a run folder to run again.")
    ],
    overrides: Overrides = None,
    output: Annotated[
        str | None, typer.Option(metavar="PATH", help="The run folder; runs/RECIPE if not given.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is already in the folder.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A folder of data sets: a recipe of the paper finds its images and its "
            "verification sets there.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only say what it needs: data, steps, memory, disk and time."
        ),
    ] = False,
) -> None:
    """Train a model: sphereface2 train quickstart head.name=cosface --output runs/cosface"""
    from sphereface2.config.schema import load_config

    if output == "":  # a Path would be the present folder
        raise ValueError("--output is empty; give the name of a folder, or leave it out")
    folder = Path("runs") / name_of(recipe) if output is None else Path(output)
    if dry_run:
        if rank() == 0:
            _forecast(recipe, data, overrides or [])
            _print_place(folder, overwrite=overwrite)
        return
    screen = console()
    with all_ranks() as together:
        with together:
            config = load_config(recipe, [*_found(recipe, data), *(overrides or [])])
        from sphereface2.cli.progress import ProgressDisplay
        from sphereface2.runs import train as runs

        result = runs.train(
            config,
            folder,
            overwrite=overwrite,
            events=ProgressDisplay(screen),
            watch=Watch(screen),
        )
    _print_end(screen, folder, result)


def resume(run: RunFolder, overrides: Overrides = None) -> None:
    """Continue a run from its last checkpoint: sphereface2 resume runs/first training.epochs=40

    May change: paths of data, workers, device, precision, length, optimizer, schedule, clip_norm,
    intervals and evaluation sets.
    """
    screen = console()
    with all_ranks():
        from sphereface2.cli.progress import ProgressDisplay
        from sphereface2.runs import train as runs

        result = runs.resume(
            run, overrides=overrides or (), events=ProgressDisplay(screen), watch=Watch(screen)
        )
    _print_end(screen, run, result)


def name_of(recipe: str) -> str:
    """What a recipe, a YAML file or a run folder is called."""
    path = Path(recipe)
    if path.is_dir():
        return path.resolve().name
    return path.stem if path.suffix in (".yaml", ".yml") else path.name


def _found(recipe: str, data: Path | None) -> tuple[str, ...]:
    """The overrides that turn a recipe to the data sets of a folder."""
    if data is None:
        return ()
    from sphereface2.data.public_sets import find_datasets, known_data_of

    wanted = known_data_of(recipe)
    if not wanted:
        raise ValueError(
            f"--data: the recipe '{recipe}' names no public data set; give data.path=PATH instead"
        )
    found = find_datasets(data)
    training = next((key for key in wanted if key in found.training), wanted[0])
    return found.overrides(training, all_sets=False)


def _forecast(recipe: str, data: Path | None, overrides: list[str]) -> None:
    """Show what a training would need; missing data are not a mistake."""
    from rich.console import Console

    from sphereface2.cli.dry_run import estimate_table
    from sphereface2.runs.estimate import estimate, plan_run

    missing = None
    try:
        found = _found(recipe, data)
    except FileNotFoundError as error:
        found, missing = (), str(error)
    draft = plan_run(recipe, [*found, *overrides])
    with Watch(console())("estimating"):
        result = estimate(draft.config, known_data=draft.known_data)
    out = Console()
    out.print(estimate_table(result, title=f"{recipe}: a dry run, nothing is trained"))
    if missing is not None:
        say(out, missing)


def _print_place(folder: Path, *, overwrite: bool) -> None:
    """Where a training would write, and what is in its way there."""
    from sphereface2.runs.folder import refuse_used_folder

    text = f"would be trained in {folder}" + (", what is there replaced" if overwrite else "")
    if not overwrite:
        try:
            refuse_used_folder(folder)
        except ValueError as error:
            text = str(error)
    typer.echo(text)


def _print_end(screen: "Console", folder: Path, result: "TrainingResult") -> None:
    """Say how the training ended and what to do next."""
    from sphereface2.runs.folder import run_config
    from sphereface2.runs.train import longer
    from sphereface2.training.stopping import exit_code

    run = shlex.quote(str(folder))  # what is to be typed
    if result.interrupted:
        say(
            screen,
            f"stopped at step {result.steps} of {result.total_steps}; "
            f"continue with: sphereface2 resume {run}",
        )
        raise typer.Exit(exit_code(result.stopped_by))
    config = run_config(folder)
    judge = f"sphereface2 evaluate {run}" + ("" if config.evaluation.sets else " --on SET")
    if result.was_finished:
        say(
            screen,
            f"{folder} is finished: {result.steps} steps in {in_words(result.seconds)}; "
            f"to train it longer: sphereface2 resume {run} {longer(config)}\nnext: {judge}",
        )
        return
    say(
        screen,
        f"trained {result.steps} steps in {in_words(result.seconds)}\n"
        f"model: {folder / 'model'}, {result.model_step.in_words()}\nnext: {judge}",
    )
