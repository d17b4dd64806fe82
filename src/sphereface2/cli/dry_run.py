"""How `train --dry-run` shows what a training would need."""

import math
from typing import TYPE_CHECKING

from sphereface2.workers import in_words

if TYPE_CHECKING:
    from rich.table import Table

    from sphereface2.runs.estimate import DataNeed, Estimate

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
