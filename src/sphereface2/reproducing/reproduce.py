"""One table or figure of the paper from its name to its files.

reproduced/NAME/    result.json, table.md, table.csv, index.html, FIGURE.png, FIGURE.svg
reproduced/runs/    what was trained; a setting of several tables is trained once
reproduced/benchmarks/    rendered IJB-B, IJB-C and MegaFace, for the small scale
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sphereface2.evaluation.json_result import JsonResult, write_atomically
from sphereface2.evaluation.results import EvaluationResult
from sphereface2.evaluation.sweep_result import SweepResult
from sphereface2.reporting.experiment_figures import (
    NamedFigure,
    figures_of_features,
    figures_of_formulas,
    figures_of_parallel,
    figures_of_roc,
    figures_of_scores,
    figures_of_sweep,
    save_figure,
)
from sphereface2.reporting.sweep_report import write_sweep_report
from sphereface2.reporting.sweep_tables import csv_table, markdown_table
from sphereface2.reproducing.catalogue import EXPERIMENTS, Experiment, Scale
from sphereface2.reproducing.datasets import PAIR_SETS, PaperData, find_datasets
from sphereface2.reproducing.features import learn_features
from sphereface2.reproducing.parallel import measure_parallel
from sphereface2.reproducing.protocols import protocol_result, protocol_roc
from sphereface2.reproducing.settings import SMALL, Ground, paper_ground
from sphereface2.reproducing.small_roots import small_root
from sphereface2.run_folder import EVALUATION
from sphereface2.scoring import Watch, unwatched
from sphereface2.sweeping.board import SweepEvents
from sphereface2.sweeping.engine import run_sweep
from sphereface2.sweeping.grid import Setting, Sweep
from sphereface2.tables import look_up

RUNS, BENCHMARKS, RESULT = "runs", "benchmarks", "result.json"
_SMALL_RECIPE = "small"
_MARGINS_2D, _MARGINS_3D = (0.0, 0.2), (0.2,)
_PAPER_IDENTITIES = 1_000_000
_PROTOCOLS_OF_ROC = ("ijb-b", "ijb-c")
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
    """

    def __init__(
        self,
        folder: Path,
        *,
        scale: Scale = "small",
        data: Path | None = None,
        seeds: Sequence[int] = (0, 1, 2),
        jobs: int | None = None,
        events: SweepEvents | None = None,
        watch: Watch = unwatched,
    ) -> None:
        self.folder = folder
        self.scale: Scale = scale
        self.data: PaperData | None = None if data is None else find_datasets(data)
        self.seeds = tuple(seeds)
        self.jobs = jobs
        self.events = events
        self.watch = watch

    @property
    def runs(self) -> Path:
        return self.folder / RUNS

    def reproduce(self, name: str) -> Reproduced:
        """Make one table or figure; whatever is there already is used."""
        experiment = find_experiment(name)
        if experiment.rows is not None:
            return self._trained(experiment, self._sweep_of(experiment))
        if name == "parallel":
            return self._parallel(experiment)
        if name.startswith("fig-features"):
            return self._features(experiment)
        return self._keep(experiment, figures_of_formulas(name))

    def plan(self, name: str) -> Sweep | None:
        """What would be trained, whether its data are there or not; None if nothing is."""
        experiment = find_experiment(name)
        return None if experiment.rows is None else self._sweep_of(experiment, with_data=False)

    def missing(self, name: str) -> str | None:
        """One sentence on the data sets that this would need and that are not there."""
        if self.scale == "small":
            return None
        if self.data is None:
            return _NO_DATA
        wanted = _protocols(find_experiment(name))
        return self.data.missing(_TRAINING_SET, *PAIR_SETS, *wanted)

    def _sweep_of(self, experiment: Experiment, *, with_data: bool = True) -> Sweep:
        assert experiment.rows is not None
        ground = self._ground(experiment)
        given = self._data_overrides(experiment) if with_data else ()
        settings = [
            Setting(each.label, (*each.overrides, *given), each.published)
            for each in experiment.rows(ground)
        ]
        return Sweep(
            name=experiment.name,
            title=experiment.title,
            recipe=ground.recipe,
            settings=tuple(settings),
            seeds=self.seeds,
            where=experiment.where,
            scale=self.scale,
            command=self.command(experiment.name),
            published_columns=ground.columns,
        )

    def command(self, name: str) -> str:
        """What a user types for this."""
        words = ["sphereface2", "reproduce", name]
        if self.scale != "small":
            words += ["--scale", self.scale]
        if self.data is not None:
            words += ["--data", str(self.data.root)]
        if self.seeds != (0, 1, 2):
            count = len(self.seeds)
            plain = self.seeds == tuple(range(count))
            words += ["--seeds", str(count) if plain else ",".join(map(str, self.seeds)) + ","]
        return shlex.join(words)

    # -- what a scale means ------------------------------------------------------------------------

    def _ground(self, experiment: Experiment) -> Ground:
        if self.scale == "small":
            return replace(SMALL, recipe=_SMALL_RECIPE)
        if experiment.paper_recipe is None:
            raise ValueError(f"'{experiment.name}' has one scale only; leave out --scale paper")
        return paper_ground(experiment.paper_recipe)

    def _data_overrides(self, experiment: Experiment) -> tuple[str, ...]:
        if self.scale == "small":
            return ()
        if self.data is None:
            raise ValueError(_NO_DATA)
        self.data.require(*_protocols(experiment))
        return self.data.overrides(_TRAINING_SET)

    def _root(self, protocol: str) -> Path:
        if self.scale == "small" or self.data is None:
            return small_root(protocol, self.folder / BENCHMARKS, watch=self.watch)
        return self.data.protocols[protocol]

    # -- the kinds of experiments ------------------------------------------------------------------

    def _trained(self, experiment: Experiment, sweep: Sweep) -> Reproduced:
        result = run_sweep(sweep, runs=self.runs, jobs=self.jobs, events=self.events)
        if experiment.name == "fig-scores":
            return self._keep(experiment, figures_of_scores(self._histograms(result)), result)
        if experiment.name == "fig-roc":
            curves = {
                protocol: protocol_roc(
                    result, protocol, runs=self.runs, root=self._root(protocol), watch=self.watch
                )
                for protocol in _PROTOCOLS_OF_ROC
            }
            drawn = {
                protocol: [(curve.label, curve.rocs) for curve in found]
                for protocol, found in curves.items()
            }
            return self._keep(experiment, figures_of_roc(drawn), result)
        if experiment.protocol is not None:
            result = protocol_result(
                result,
                experiment.protocol,
                runs=self.runs,
                root=self._root(experiment.protocol),
                name=result.name,
                title=result.title,
                where=result.where,
                command=result.command,
                table=experiment.table,
                rows=experiment.row_names,
                watch=self.watch,
            )
        return self._keep(experiment, figures_of_sweep(result), result)

    def _histograms(self, result: SweepResult) -> list[EvaluationResult]:
        """The evaluation of each row's first run that is done."""
        found = []
        for row in result.rows:
            done = [run.folder for run in row.runs if not run.error]
            if done:
                evaluation = EvaluationResult.load(self.runs / done[0] / EVALUATION)
                found.append(replace(evaluation, title=row.label))
        return found

    def _features(self, experiment: Experiment) -> Reproduced:
        dim, margins = (2, _MARGINS_2D) if experiment.name.endswith("2d") else (3, _MARGINS_3D)
        learned = [
            learn_features(
                dim=dim,
                margin=margin,
                workdir=self.runs,
                watch=self.watch,
            )
            for margin in margins
        ]
        figures = figures_of_features(learned)
        files = {f"features-{each.margin:g}.json": each for each in learned}
        return self._keep(experiment, figures, more=files)

    def _parallel(self, experiment: Experiment) -> Reproduced:
        with self.watch("timing the heads on every number of ranks") as progress:
            result = (
                measure_parallel(progress=progress)
                if self.scale == "small"
                else measure_parallel(
                    identities=_PAPER_IDENTITIES, device="cuda", progress=progress
                )
            )
        return self._keep(experiment, figures_of_parallel(result), more={RESULT: result})

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
        suffix = "" if self.scale == "small" else f"-{self.scale}"
        place = self.folder / f"{experiment.name}{suffix}"
        files = []
        if table is not None:
            page = place / "index.html"
            drawn = [(figure.caption, figure.figure) for figure in figures]
            write_sweep_report(page, table, figures=drawn)
            table.save(place / RESULT)
            write_atomically(place / "table.md", markdown_table(table))
            write_atomically(place / "table.csv", csv_table(table))
            files += [page, place / RESULT, place / "table.md", place / "table.csv"]
        for figure in figures:
            files += save_figure(place, figure)
        for name, content in (more or {}).items():
            content.save(place / name)
            files.append(place / name)
        return Reproduced(experiment, table, tuple(files))


def find_experiment(name: str) -> Experiment:
    """The experiment of that name, or one sentence with the nearest."""
    return look_up("experiment", EXPERIMENTS, name)


def _protocols(experiment: Experiment) -> tuple[str, ...]:
    if experiment.name == "fig-roc":
        return _PROTOCOLS_OF_ROC
    return () if experiment.protocol is None else (experiment.protocol,)
