"""Commands that make a run: train, resume; and what a training would need, with --dry-run."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import ProgressDisplay, Watch, all_ranks, console, rank, say, stdout
from sphereface2.workers import in_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sphereface2.runs.estimate import DataNeed, Estimate
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
            lost = left_out(recipe, overrides or [])
            if lost is not None and rank() == 0:
                say(screen, lost)
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


def left_out(recipe: str, overrides: Sequence[str]) -> str | None:
    """What a new name for the backbone drops of a recipe, in a sentence; None if nothing.

    Of the backbone only: the options of another head or data set seldom suit the new one. And of
    its options only those that the new one has, too.
    """
    from sphereface2.backbones import BACKBONES
    from sphereface2.config.loading import named, read_run
    from sphereface2.registry import option_names, shown

    before, after = (named(read_run(recipe, given).get("backbone")) for given in ((), overrides))
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return None
    factory = BACKBONES.get(after.get("name", ""))
    if before.get("name") == after.get("name") or factory is None:
        return None  # or the network is that of training.start_from, with all its options
    lost = [key for key in option_names(factory) if key in before and key not in after]
    if not lost:
        return None
    options = ", ".join(f"{key}={shown(before[key])}" for key in lost)
    return (
        f"backbone.name={after['name']} leaves out what {recipe} sets for "
        f"{before.get('name')} ({options}); what should stay has to be given again, "
        f"such as backbone.{lost[0]}={shown(before[lost[0]])}"
    )


def _forecast(recipe: str, data: Path | None, overrides: list[str]) -> None:
    """Show what a training would need; missing data are not a mistake."""
    from sphereface2.runs.estimate import estimate, plan_run

    missing = None
    try:
        found = _found(recipe, data)
    except FileNotFoundError as error:
        found, missing = (), str(error)
    config, known_data = plan_run(recipe, [*found, *overrides])
    with Watch(console())("estimating"):
        result = estimate(config, known_data=known_data)
    out = stdout()
    out.print(estimate_table(result, title=f"{recipe}: a dry run, nothing is trained"))
    for note in (missing, left_out(recipe, overrides)):
        if note is not None:
            say(out, note)


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


# -- how --dry-run shows what a training would need ----------------------------------------------

_HERE = "time on this machine"


def estimate_table(estimate: "Estimate", *, title: str, runs: int = 1, jobs: int = 1) -> "Table":
    """Two columns: what, and how much of it; of several such runs, the time of all together.

    jobs: how many of the runs go at once, each as fast as the estimate says
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    sections = (
        _data(estimate),
        _length(estimate),
        _network(estimate),
        _time(estimate, runs=runs, jobs=jobs),
    )
    for section in sections:
        for name, text in section:
            table.add_row(Text(name), Text(text))
        table.add_section()
    return table


def _data(estimate: "Estimate") -> list[tuple[str, str]]:
    rows = [(f"{need.use} data", _need(need)) for need in estimate.data]
    if all(need.use != "verification" for need in estimate.data):
        rows.append(
            ("verification data", "none: evaluation.sets is empty (--data DIR finds the paper's)")
        )
    images = "?" if estimate.images is None else f"{estimate.images:,}"
    people = f"{estimate.people:,}" if estimate.images is not None else "?"
    rows.append(("images", f"{images} of {people} people ({estimate.counted})"))
    return rows


def _need(need: "DataNeed") -> str:
    if need.found and need.path is None:
        return f"{need.source}: built in"
    where = "" if need.path is None else f" {need.path}"
    return f"{need.source}{where}: {'found' if need.found else f'missing, {need.problem}'}"


def _length(estimate: "Estimate") -> list[tuple[str, str]]:
    if estimate.steps is None:
        return [("steps", f"unknown without the data; batches of {estimate.batch_size:,} images")]
    epochs = "" if estimate.epochs is None else f" ({estimate.epochs:.3g} epochs)"
    return [
        ("steps", f"{estimate.steps:,} of {estimate.batch_size:,} images{epochs}"),
        ("image passes", f"{estimate.image_passes:,}"),
    ]


def _network(estimate: "Estimate") -> list[tuple[str, str]]:
    memory = estimate.memory
    precision = "half precision" if estimate.is_half else "float32"
    parts = (
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        ("momentum", memory.momentum),
        *([("averaged weights", memory.average)] if memory.average else []),
        (f"activations in {precision}", memory.activations),
        ("head's blocks", memory.head_blocks),
    )
    operations = f"{_scaled(estimate.operations_per_image)} for an image, forward"
    if estimate.operations is not None:
        operations += f"; {_scaled(estimate.operations)} in all"
    return [
        (
            "parameters",
            f"{estimate.backbone_parameters:,} backbone + {estimate.head_parameters:,} head",
        ),
        ("operations", f"{operations} (a multiplication and an addition are two)"),
        ("memory", f"{_bytes(memory.total)} on one rank; several share activations and head"),
        *((f"  {name}", _bytes(count)) for name, count in parts),
        (
            "checkpoint",
            f"{_bytes(estimate.checkpoint_bytes)}; the model {_bytes(estimate.model_bytes)}",
        ),
    ]


def _time(estimate: "Estimate", *, runs: int, jobs: int) -> list[tuple[str, str]]:
    rows = []
    speed = estimate.speed
    if speed is not None:
        total = "" if estimate.seconds is None else f"{in_words(estimate.seconds)}: "
        parts = (speed.backbone_seconds, speed.head_seconds, speed.update_seconds)
        network, head, update = map(in_words, parts)
        step = (
            f"{total}{_number(speed.images_per_second)} images/s, a step in "
            f"{in_words(speed.seconds_per_step)} (network {network}, head {head}, update {update})"
        )
        if runs > 1 and estimate.seconds is not None:
            rows.append((_HERE, _all_runs(estimate.seconds, runs=runs, jobs=jobs)))
            rows.append(("  one run", step))
        else:
            rows.append((_HERE, step))
        rows.append(("how it was obtained", speed.how))
    if estimate.image_passes is not None:
        passes = runs * estimate.image_passes
        what = f" for {runs:,} runs" if runs > 1 else ""
        example = f"N = 1,000: {in_words(passes / 1000)}"
        rows.append(("time elsewhere", f"at N images/s: {passes:,} / N seconds{what}; {example}"))
    return rows


def _all_runs(seconds: float, *, runs: int, jobs: int) -> str:
    """The time of `runs` like the one that takes `seconds`, in rounds of `jobs`."""
    jobs = min(jobs, runs)
    how = f"{jobs:,} at once" if jobs > 1 else "one after another"
    return f"{runs:,} runs, {how}: {in_words(math.ceil(runs / jobs) * seconds)}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{_number(count / size)} {unit}"
    return f"{count} bytes"


def _number(value: float) -> str:
    """Three figures, and no exponent for large numbers."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _scaled(count: int) -> str:
    for unit, size in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e6:.3g} MFLOP"
