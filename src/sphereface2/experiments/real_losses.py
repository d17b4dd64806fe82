"""The losses on real faces: each tuned in as many trials, then trained with fresh seeds.

One half of the validation people chooses among the trials, the other half is reported, so that no
number is of people who chose it. Everything but the head is the same for all losses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from sphereface2.config.schema import load_config
from sphereface2.evaluation.comparison import Difference, compare_seeds
from sphereface2.evaluation.experiment_results import SeedRun, SweepFigure, SweepResult
from sphereface2.evaluation.pair_scores import SCORES, PairScores, load_scores
from sphereface2.evaluation.thresholds import tar_at_fars
from sphereface2.experiments.sweep.board import SweepEvents
from sphereface2.experiments.sweep.engine import run_sweep
from sphereface2.experiments.sweep.plan import Setting, Sweep, plan_sweep
from sphereface2.files import JsonResult

RECIPE = "real-faces"
OURS = "sphereface2-c"
TUNING_SEED = 9  # none of the seeds of the final trainings
ACCURACY, RATES = "accuracy", "rates"
FAR_TARGETS = (1e-2, 1e-3, 1e-4)
CHOSEN_BY = f"TAR@FAR {FAR_TARGETS[0]:g}"
_REPLICATES = 300


def trial(loss: str, **values: float) -> Setting:
    """A setting of a loss that is tried, by options of its head: `cosface, scale=30, margin=0.2`.

    matrix_step is the optimizer's.
    """
    words = [f"{key}={value}" for key, value in values.items()]
    rooms = ["optimizer" if key == "matrix_step" else "head" for key in values]
    overrides = [f"{room}.{word}" for room, word in zip(rooms, words, strict=True)]
    return Setting(", ".join([loss, *words]), (f"head.name={loss}", *overrides))


def _heads(name: str, key: str, *values: tuple[float, float]) -> tuple[Setting, ...]:
    return tuple(trial(name, **{key: first, "margin": margin}) for first, margin in values)


# On both sides of what is best in few steps, r 12 and s 16 with SGD, up to the paper's 30.
TRIALS: Mapping[str, tuple[Setting, ...]] = {
    **{
        f"sphereface2-{kind}": _heads(
            f"sphereface2-{kind}",
            "radius",
            (8, high),
            (12, low),
            (12, high),
            (20, high),
            (30, high),
        )
        for kind, low, high in (("c", 0.2, 0.4), ("a", 0.3, 0.5), ("m", 1.3, 1.7))
    },
    **{
        name: _heads(name, "scale", (12, high), (16, low), (16, high), (24, high), (30, high))
        for name, low, high in (
            ("cosface", 0.2, 0.35),
            ("arcface", 0.3, 0.5),
            ("adaface", 0.2, 0.4),
        )
    },
    "softmax": tuple(trial("softmax", matrix_step=step) for step in (0.01, 0.02, 0.03, 0.05, 0.1)),
}
"""Loss -> the settings that are tried; as many for each."""

NOISY = ("cosface", "arcface", OURS)
NOISE_RATES = (0.2, 0.4)


@dataclass(frozen=True)
class LossDifferences:
    """A loss less SphereFace2-C on the same pairs, means over seeds."""

    loss: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class PairedTests(JsonResult):
    """Every loss against SphereFace2-C, by a bootstrap over people."""

    IS: ClassVar[str] = "the paired tests of an experiment"
    WRITTEN_BY: ClassVar[str] = "sphereface2 reproduce"

    baseline: str
    seeds: tuple[int, ...]
    losses: tuple[LossDifferences, ...]


@dataclass(frozen=True)
class RealFaces:
    """Training images, and images of other people to tune on and to report.

    more: overrides of every run on them
    """

    train: Path
    validation: Path
    more: tuple[str, ...] = ()

    @classmethod
    def find(cls, root: Path, *, more: Sequence[str] = ()) -> "RealFaces":
        """The entries of a folder whose names have `train` and `val` in them."""
        if not root.is_dir():
            raise FileNotFoundError(f"--data {root} is not a folder")
        return cls(_images(root, "train"), _images(root, "val"), tuple(more))

    def overrides(self, *, half: str) -> tuple[str, ...]:
        """What turns the recipe to these images, and to one half of the validation people."""
        kind = "recordio" if self.train.suffix == ".rec" else "folder"
        train, validation = (
            "'" + str(path).replace("'", "''") + "'" for path in (self.train, self.validation)
        )
        people = f"name: drawn, path: {validation}, half: {half}"
        sets = f"[{{{people}, title: {ACCURACY}}}, "
        sets += f"{{{people}, title: {RATES}, pairs: 100000, impostors: 100000}}]"
        given = (f"data.name={kind}", f"data.path={train}", f"evaluation.sets={sets}")
        return (*given, *self.more)


def _images(root: Path, word: str) -> Path:
    found = [each for each in sorted(root.iterdir()) if word in each.name]
    found = [each for each in found if each.is_dir() or each.suffix == ".rec"]
    if len(found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise FileNotFoundError(
            f"{root} must have one folder of people or .rec file with '{word}' in its name; "
            f"it has {names}"
        )
    (entry,) = found
    records = sorted(entry.glob("*.rec")) if entry.is_dir() else []
    return (records[0] if len(records) == 1 else entry).resolve()


def tuning_sweep(faces: RealFaces, *, command: str = "") -> Sweep:
    """All trials of all losses, at half the epochs, judged on the first half of the people."""
    epochs = load_config(RECIPE, faces.overrides(half="first")).training.epochs
    if epochs is None:
        raise ValueError("the trials train for half the epochs: give training.epochs, not steps")
    given = (*faces.overrides(half="first"), f"training.epochs={max(1, epochs // 2)}")
    trials = tuple(
        replace(each, overrides=(*each.overrides, *given))
        for tried in TRIALS.values()
        for each in tried
    )
    title = "Tuning of the losses on real faces"
    return Sweep(
        "real-losses-tuning", title, RECIPE, trials, (TUNING_SEED,),
        scale="real", command=command, judged=RATES, judged_far=FAR_TARGETS[0],
    )  # fmt: skip


def compare_losses(
    faces: RealFaces,
    *,
    runs: Path,
    seeds: Sequence[int],
    jobs: int | None = None,
    events: SweepEvents | None = None,
    command: str = "",
) -> tuple[SweepResult, SweepResult]:
    """Tune every loss, and train the best setting of each with every seed."""
    trials = tuning_sweep(faces, command=command)
    plan_sweep(replace(trials, seeds=tuple(seeds)))  # not after the tuning: a seed may be wrong
    tuning = run_sweep(trials, runs=runs, jobs=jobs, events=events)
    tuning = _with_rates(tuning, runs)
    reached = {row.label: row.numbers(CHOSEN_BY) for row in tuning.rows}
    settings = []
    for loss, tried in TRIALS.items():
        done = [each for each in tried if reached[each.label]]
        if not done:
            raise ValueError(f"every trial of {loss} failed; see {runs}")
        best = max(done, key=lambda each: reached[each.label][0])
        overrides = (*best.overrides, *faces.overrides(half="second"))
        settings.append(replace(best, overrides=overrides))
    sweep = Sweep(
        "real-losses", "Loss functions on real faces", RECIPE, tuple(settings), tuple(seeds),
        scale="real", command=command, figure=SweepFigure("rows"),
        judged=RATES, judged_far=FAR_TARGETS[0],
    )  # fmt: skip
    return tuning, _with_rates(run_sweep(sweep, runs=runs, jobs=jobs, events=events), runs)


def with_label_noise(
    chosen: SweepResult,
    *,
    runs: Path,
    jobs: int | None = None,
    events: SweepEvents | None = None,
) -> SweepResult:
    """The chosen settings of three losses again, with a part of the training labels wrong."""
    rows = [row for row in chosen.rows if row.method in NOISY]
    settings = tuple(
        Setting(
            f"{row.method}, {100 * rate:g} %",
            (*row.overrides, *([f"label_noise.rate={rate}"] if rate else [])),
        )
        for row in rows
        for rate in (0.0, *NOISE_RATES)
    )
    sweep = Sweep(
        "real-noise", "Wrong labels on real faces", RECIPE, settings, chosen.seeds,
        scale="real", command=chosen.command, figure=SweepFigure("noise"),
        judged=RATES, judged_far=FAR_TARGETS[0],
    )  # fmt: skip
    return _with_rates(run_sweep(sweep, runs=runs, jobs=jobs, events=events), runs)


def _with_rates(result: SweepResult, runs: Path) -> SweepResult:
    """The result with the accuracy of the balanced pairs and TARs over the many impostors."""
    columns = ("accuracy", *(f"TAR@FAR {target:g}" for target in FAR_TARGETS))

    def measured(run: SeedRun) -> SeedRun:
        if run.error:
            return replace(run, values={})
        scored = _scores(runs / run.folder, RATES)
        tars = tar_at_fars(scored.scores, scored.same, FAR_TARGETS)
        numbers = [run.values[ACCURACY], *(round(100 * each.rate, 4) for each in tars)]
        return replace(run, values=dict(zip(columns, numbers, strict=True)))

    rows = tuple(replace(row, runs=tuple(map(measured, row.runs))) for row in result.rows)
    return replace(result, columns=columns, rows=rows, judged=CHOSEN_BY, measure="", pairs={})


def _scores(run: Path, name: str) -> PairScores:
    return next(each for each in load_scores(run / SCORES)[1] if each.name == name)


def paired_tests(result: SweepResult, *, runs: Path) -> PairedTests:
    """Every loss of a comparison against SphereFace2-C, on the pairs that its runs scored."""
    rows = sorted(result.rows, key=lambda row: row.method != OURS)
    scored = {
        name: [
            (row.method, [_scores(runs / run.folder, name) for run in row.runs if not run.error])
            for row in rows
        ]
        for name in (ACCURACY, RATES)
    }
    accuracy = compare_seeds(scored[ACCURACY], far_targets=(), replicates=_REPLICATES)
    rates = compare_seeds(scored[RATES], far_targets=FAR_TARGETS, replicates=_REPLICATES)
    losses = []
    for loss in (row.method for row in rows[1:]):
        tars = [each for each in rates[loss] if each.target is not None]
        losses.append(LossDifferences(loss, (accuracy[loss][0], *tars)))
    return PairedTests(rows[0].method, result.seeds, tuple(losses))
