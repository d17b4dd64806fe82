"""One table or figure of the paper from its name to its files.

reproduced/NAME/    result.json, table.md, table.csv, index.html, FIGURE.png, FIGURE.svg
reproduced/runs/    what was trained; a setting of several tables is trained once
reproduced/benchmarks/    rendered IJB-B, IJB-C and MegaFace, for the small scale
"""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sphereface2.data.public_sets import PAIR_SET_TITLES, PaperData, find_datasets
from sphereface2.datatools.rendered_benchmarks import small_root
from sphereface2.evaluation.experiment_results import SweepResult
from sphereface2.evaluation.pair_scores import COMBINED
from sphereface2.evaluation.verification import EvaluationResult
from sphereface2.experiments.paper.catalogue import EXPERIMENTS, Experiment, Scale
from sphereface2.experiments.paper.features import learn_features
from sphereface2.experiments.paper.parallel import measure_parallel
from sphereface2.experiments.paper.protocols import protocol_result, protocol_roc
from sphereface2.experiments.paper.settings import SMALL, paper_ground
from sphereface2.experiments.real_losses import (
    RealFaces,
    compare_losses,
    paired_tests,
    tuning_sweep,
    with_label_noise,
)
from sphereface2.experiments.sweep.board import SweepEvents
from sphereface2.experiments.sweep.engine import run_sweep
from sphereface2.experiments.sweep.plan import Sweep
from sphereface2.files import JsonResult
from sphereface2.registry import look_up
from sphereface2.reporting.figures.features import feature_plane, feature_sphere
from sphereface2.reporting.figures.formulas import DRAWINGS
from sphereface2.reporting.figures.sweep import (
    images_per_second,
    roc_over_seeds,
    score_distributions,
    sweep_figures,
)
from sphereface2.reporting.pages.sweep import RESULT, write_sweep_files
from sphereface2.reporting.style import NamedFigure, save_figure
from sphereface2.runs.folder import EVALUATION
from sphereface2.workers import Watch, unwatched

OUTPUT = Path("reproduced")
RUNS, BENCHMARKS = "runs", "benchmarks"
_FEATURE_MARGINS = {2: (0.0, 0.2), 3: (0.2,)}
_PAPER_IDENTITIES = 1_000_000
_TRAINING_SET = "vggface2"
_NO_DATA = (
    "--scale paper needs --data DIR, the folder that holds the paper's data sets (docs/data.md "
    "says which); --scale small needs none"
)


@dataclass(frozen=True)
class Reproduced:
    """What came out: the table if it is one, and all files, the one to look at first."""

    experiment: Experiment
    table: SweepResult | None
    files: tuple[Path, ...]


class Reproduction:
    """A folder in which tables and figures of the paper are made, at one scale.

    data: the folder with the paper's data sets, for the paper's scale
    overrides: of every run, over its own settings
    """

    def __init__(
        self,
        folder: Path = OUTPUT,
        *,
        scale: Scale = "small",
        data: Path | None = None,
        seeds: Sequence[int] = (0, 1, 2),
        jobs: int | None = None,
        overrides: Sequence[str] = (),
        events: SweepEvents | None = None,
        watch: Watch = unwatched,
    ) -> None:
        if data is not None and scale == "small":
            raise ValueError("--data goes with --scale paper; the small scale renders its people")
        if data is None and scale == "real":
            raise ValueError(
                "give the faces as --data DIR, a folder with one entry called like train and one "
                "like val, each a folder of people or a .rec file"
            )
        self.folder, self.runs = folder, folder / RUNS
        self.scale: Scale = scale
        self.root = data
        self.data: PaperData | None = find_datasets(data) if data and scale == "paper" else None
        self.seeds = tuple(seeds)
        self.jobs = jobs
        self.overrides = tuple(overrides)
        self.events = events
        self.watch = watch

    def reproduce(self, name: str) -> Reproduced:
        """Make one table or figure; whatever is there already is used."""
        experiment = self._find(name)
        make = {
            "table": self._table,
            "scores": self._scores,
            "roc": self._roc,
            "features": self._features,
            "parallel": self._parallel,
            "drawing": self._drawing,
            "real": self._real,
        }
        return make[experiment.kind](experiment)

    def plan(self, name: str) -> Sweep | None:
        """What would be trained, whether its data are there or not; None if nothing is."""
        experiment = self._find(name)
        if self.root is not None and experiment.kind == "real":
            faces = RealFaces.find(self.root, more=self.overrides)
            return tuning_sweep(faces, command=self.command(name))
        if experiment.rows is None:
            return None
        given: tuple[str, ...] = ()
        if self.data is not None:
            with suppress(FileNotFoundError):  # `missing` reports it
                given = self.data.overrides(_TRAINING_SET, all_sets=False)
        return self._sweep(experiment, given)

    def missing(self, name: str) -> str | None:
        """One sentence on the data sets that this would need and that are not there."""
        experiment = self._find(name)
        if self.scale == "small" or experiment.rows is None:
            return None
        if self.data is None:
            return _NO_DATA
        return self.data.missing(_TRAINING_SET, *PAIR_SET_TITLES, *experiment.protocols)

    def command(self, name: str) -> str:
        """What a user types for this."""
        words = ["sphereface2", "reproduce", name, *self.overrides]
        if self.scale == "paper":
            words += ["--scale", self.scale]
        if self.root is not None:
            words += ["--data", str(self.root)]
        if self.seeds != (0, 1, 2):
            count = len(self.seeds)
            plain = self.seeds == tuple(range(count))
            words += ["--seeds", str(count) if plain else ",".join(map(str, self.seeds)) + ","]
        if self.jobs is not None:
            words += ["--jobs", str(self.jobs)]
        if self.folder != OUTPUT:
            words += ["--output", str(self.folder)]
        return shlex.join(words)

    # -- what a scale means ------------------------------------------------------------------------

    def _find(self, name: str) -> Experiment:
        experiment = look_up("experiment", EXPERIMENTS, name)
        if self.scale not in experiment.scales:
            raise ValueError(f"'{name}' has one scale only; leave out --scale {self.scale}")
        return experiment

    def _sweep(self, experiment: Experiment, given: tuple[str, ...]) -> Sweep:
        """The settings of an experiment, with what turns the recipe to its data."""
        assert experiment.rows is not None
        ground = SMALL if self.scale == "small" else paper_ground(experiment.recipe)
        rows = experiment.rows(ground)
        more = (*given, *self.overrides)
        return Sweep(
            name=experiment.name,
            title=experiment.title,
            recipe=ground.recipe,
            settings=tuple(replace(each, overrides=(*each.overrides, *more)) for each in rows),
            seeds=self.seeds,
            where=experiment.where,
            scale=self.scale,
            command=self.command(experiment.name),
            published_columns=ground.columns,
            figure=experiment.figure,
        )

    def _trained(self, experiment: Experiment) -> SweepResult:
        """The runs of an experiment, those that are not done yet trained."""
        given: tuple[str, ...] = ()
        if self.scale == "paper":
            if self.data is None:
                raise ValueError(_NO_DATA)
            self.data.require(*experiment.protocols)
            given = self.data.overrides(_TRAINING_SET)
        sweep = self._sweep(experiment, given)
        return run_sweep(sweep, runs=self.runs, jobs=self.jobs, events=self.events)

    def _root(self, protocol: str) -> Path:
        if self.data is None:
            return small_root(protocol, self.folder / BENCHMARKS, watch=self.watch)
        return self.data.protocols[protocol]

    # -- the kinds of experiments ------------------------------------------------------------------

    def _table(self, experiment: Experiment) -> Reproduced:
        result = self._trained(experiment)
        for protocol in experiment.protocols:
            measured = protocol_result(
                result,
                protocol,
                runs=self.runs,
                root=self._root(protocol),
                table=experiment.table,
                rows=experiment.row_names,
                watch=self.watch,
            )
            result = replace(measured, measure="")  # its columns say what they are
        return self._keep(experiment, sweep_figures(result), result)

    def _scores(self, experiment: Experiment) -> Reproduced:
        result = self._trained(experiment)
        panels = []
        for row in result.rows:
            done = [run.folder for run in row.runs if not run.error]
            if done:
                evaluation = EvaluationResult.load(self.runs / done[0] / EVALUATION)
                found = evaluation.find(evaluation.model, COMBINED)
                if found is not None:
                    panels.append((row.label, found.histogram))
        if not panels:
            return self._keep(experiment, [], result)
        figure = NamedFigure("scores", "Scores of all pairs", score_distributions(panels))
        return self._keep(experiment, [figure], result)

    def _roc(self, experiment: Experiment) -> Reproduced:
        result = self._trained(experiment)
        figures = []
        for protocol in experiment.protocols:
            curves = protocol_roc(
                result, protocol, runs=self.runs, root=self._root(protocol), watch=self.watch
            )
            if curves:
                figure = roc_over_seeds(curves, title=protocol.upper())
                figures.append(NamedFigure(f"roc-{protocol}", f"ROC on {protocol}", figure))
        return self._keep(experiment, figures, result)

    def _features(self, experiment: Experiment) -> Reproduced:
        learned = [
            learn_features(dim=experiment.dim, margin=margin, workdir=self.runs, watch=self.watch)
            for margin in _FEATURE_MARGINS[experiment.dim]
        ]
        files = {f"features-{each.margin:g}.json": each for each in learned}
        if experiment.dim == 2:
            caption = "Features in the plane and the decision boundaries"
            named = NamedFigure("features-2d", caption, feature_plane(learned))
        else:
            caption = "Features in space and the decision planes"
            named = NamedFigure("features-3d", caption, feature_sphere(learned[0]))
        return self._keep(experiment, [named], more=files)

    def _parallel(self, experiment: Experiment) -> Reproduced:
        size: dict[str, Any] = {}
        if self.scale == "paper":
            size = {"identities": _PAPER_IDENTITIES, "device": "cuda"}
        with self.watch("timing the heads on every number of ranks") as progress:
            result = measure_parallel(progress=progress, **size)
        named = NamedFigure("parallel", "Images per second over ranks", images_per_second(result))
        return self._keep(experiment, [named], more={RESULT: result})

    def _drawing(self, experiment: Experiment) -> Reproduced:
        drawing = experiment.name.removeprefix("fig-")
        caption, draw = DRAWINGS[drawing]
        return self._keep(experiment, [NamedFigure(drawing, caption, draw())])

    def _real(self, experiment: Experiment) -> Reproduced:
        assert self.root is not None
        faces = RealFaces.find(self.root, more=self.overrides)
        tuning, result = compare_losses(
            faces,
            runs=self.runs,
            seeds=self.seeds,
            jobs=self.jobs,
            events=self.events,
            command=self.command(experiment.name),
        )
        if experiment.name == "real-noise":
            result = with_label_noise(result, runs=self.runs, jobs=self.jobs, events=self.events)
            return self._keep(experiment, sweep_figures(result), result)
        with self.watch("testing the differences"):
            tests = paired_tests(result, runs=self.runs)
        more: dict[str, JsonResult] = {"tuning.json": tuning, "tests.json": tests}
        return self._keep(experiment, sweep_figures(result), result, more=more)

    # -- the files ---------------------------------------------------------------------------------

    def _keep(
        self,
        experiment: Experiment,
        figures: Sequence[NamedFigure],
        table: SweepResult | None = None,
        *,
        more: Mapping[str, JsonResult] | None = None,
    ) -> Reproduced:
        """Write everything below the experiment's folder."""
        suffix = "-paper" if self.scale == "paper" else ""
        place = self.folder / f"{experiment.name}{suffix}"
        files: list[Path] = []
        if table is not None:
            files += write_sweep_files(place, table, figures=figures)
        for figure in figures:
            files += save_figure(place, figure)
        for name, content in (more or {}).items():
            content.save(place / name)
            files.append(place / name)
        return Reproduced(experiment, table, tuple(files))
