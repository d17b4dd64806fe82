"""The runs of a sweep before any of them starts: each with its config and its folder's name."""

import hashlib
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sphereface2.config.schema import RunConfig, dump_config, load_config
from sphereface2.experiments.sweep.grid import Setting, Sweep
from sphereface2.runs.train import resolve


@dataclass(frozen=True)
class PlannedRun:
    """One seed of one setting.

    config_yaml: the resolved config, as it stands in the run folder
    name: of the run folder; runs with one config have one name, in whichever sweep
    """

    setting: Setting
    seed: int
    config: RunConfig
    config_yaml: str
    name: str


def plan_sweep(sweep: Sweep) -> tuple[PlannedRun, ...]:
    """All runs, setting by setting; whatever a config can get wrong is found here."""
    if not sweep.settings:
        raise ValueError(f"the sweep '{sweep.name}' has no settings")
    if not sweep.seeds:
        raise ValueError(f"the sweep '{sweep.name}' has no seeds")
    twice = [seed for seed, count in Counter(sweep.seeds).items() if count > 1]
    if twice:
        raise ValueError(f"seed {twice[0]} is given twice")
    planned = tuple(
        _plan(sweep.recipe, setting, seed) for setting in sweep.settings for seed in sweep.seeds
    )
    _refuse_doubles(planned)
    return planned


def run_name(config: RunConfig) -> str:
    """The head's name and a digest of the whole resolved config."""
    digest = hashlib.sha256(dump_config(config).encode("utf-8")).hexdigest()
    return f"{config.head.name}-{digest[:10]}"


def train_command(recipe: str, run: PlannedRun, *, runs: Path) -> str:
    """What trains this run by hand, in the folder of runs `runs`."""
    overrides = [*run.setting.overrides, f"seed={run.seed}"]
    return shlex.join(
        ["sphereface2", "train", recipe, *overrides, "--output", str(runs / run.name)]
    )


def by_hand(store: Path) -> Path:
    """A folder for runs that are trained by hand once the sweep has them in its store."""
    return Path("runs" if store.resolve() != Path("runs").resolve() else "runs-by-hand")


def _plan(recipe: str, setting: Setting, seed: int) -> PlannedRun:
    if any(override.partition("=")[0].strip() == "seed" for override in setting.overrides):
        raise ValueError("seed is not part of the grid; give the seeds with --seeds 0,4,7")
    config = resolve(load_config(recipe, [*setting.overrides, f"seed={seed}"]))
    if not config.evaluation.sets:
        raise ValueError(
            f"{recipe} names no evaluation.sets, so there is nothing to measure its runs by; give "
            "one, such as 'evaluation.sets=[{name: pairs, path: pairs.txt}]'"
        )
    return PlannedRun(setting, seed, config, dump_config(config), run_name(config))


def _refuse_doubles(planned: tuple[PlannedRun, ...]) -> None:
    seen: dict[str, Setting] = {}
    labels: dict[str, Setting] = {}
    for run in planned:
        other = seen.setdefault(run.name, run.setting)
        if other is not run.setting:
            raise ValueError(
                f"the settings '{other.label}' and '{run.setting.label}' come to the same config; "
                "leave one of them out"
            )
        if labels.setdefault(run.setting.label, run.setting) is not run.setting:
            raise ValueError(f"two settings are called '{run.setting.label}'")
