"""A small sweep, made up, for the tests of its tables and its page."""

from collections.abc import Mapping, Sequence

from sphereface2.evaluation.experiment_results import SeedRun, SweepResult, SweepRow

COLUMNS = ("plain", "combined")
PAPER = {"plain": "LFW", "combined": "Combined"}


def made_row(
    label: str,
    numbers: Mapping[str, Sequence[float | None]],
    *,
    published: Mapping[str, float] | None = None,
    error: str = "",
) -> SweepRow:
    """A row from the numbers of its seeds; a seed whose numbers are None failed with `error`."""
    method = label.lower()
    seeds = len(next(iter(numbers.values())))
    runs = []
    for seed in range(seeds):
        values = {name: each[seed] for name, each in numbers.items()}
        found = {name: value for name, value in values.items() if value is not None}
        runs.append(
            SeedRun(
                seed=seed,
                folder=f"{method}-{seed}",
                values=found,
                seconds=60.0 + seed,
                error="" if found else error,
            )
        )
    return SweepRow(
        label=label,
        method=method,
        overrides=(f"head.name={method}",),
        command=f"sphereface2 train small head.name={method} seed=0",
        config=f"head:\n  name: {method}\nseed: 0\n",
        runs=tuple(runs),
        published=published or {},
    )


def made_sweep(*rows: SweepRow, columns: tuple[str, ...] = COLUMNS) -> SweepResult:
    return SweepResult(
        name="losses",
        title="The losses compared",
        recipe="small",
        columns=columns,
        rows=rows,
        where="Table 5",
        command="sphereface2 reproduce losses",
        published_columns=PAPER,
        versions={"sphereface2": "0.1.0"},
    )


SOFTMAX = {"plain": (90.0, 91.0, 92.5), "combined": (70.0, 71.0, 70.2)}
ARCFACE = {"plain": (94.0, None, 94.4), "combined": (80.1, None, 82.3)}
SPHEREFACE2 = {"plain": (94.1, 95.0, 94.2), "combined": (81.9, 82.4, 81.5)}


def example_sweep() -> SweepResult:
    """A row far below, one with two of three seeds near the best, the best, and one that failed."""
    return made_sweep(
        made_row("Softmax", SOFTMAX, published={"plain": 98.2, "combined": 89.05}),
        made_row(
            "ArcFace",
            ARCFACE,
            published={"plain": 99.47, "combined": 93.97},
            error="the loss is not finite at step 12.",
        ),
        made_row("SphereFace2-C", SPHEREFACE2, published={"plain": 99.5, "combined": 94.28}),
        made_row(
            "Circle | <b>",
            {"plain": (None,) * 3, "combined": (None,) * 3},
            error="the disk is full",
        ),
    )
