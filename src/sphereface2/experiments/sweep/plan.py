"""What a sweep runs: settings, which are overrides over one recipe, times seeds; all checked."""

import hashlib
import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from sphereface2.backbones import build_backbone
from sphereface2.config.schema import RunConfig, dump_config, load_config
from sphereface2.data.mixing import build_training_source, learned_people
from sphereface2.data.pairs import sets_of_choice
from sphereface2.evaluation.experiment_results import SweepFigure
from sphereface2.heads import build_head
from sphereface2.runs.train import resolve
from sphereface2.training.devices import choose_device, choose_precision
from sphereface2.training.trainer import Trainer

_T = TypeVar("_T")
_MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    published: column -> the paper's number; empty if the paper has no such row
    drawn_as: what a figure calls the row, if not by its label
    """

    label: str
    overrides: tuple[str, ...]
    published: Mapping[str, float] = field(default_factory=dict)
    drawn_as: str = ""


@dataclass(frozen=True)
class Sweep:
    """All settings, each to be trained with every seed; the other fields go to the result.

    judged_far: progress shows the TAR at this FAR of the judged set; None: its accuracy
    """

    name: str
    title: str
    recipe: str
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    where: str = ""
    scale: str = "small"
    command: str = ""
    published_columns: Mapping[str, str] = field(default_factory=dict)
    judged: str = ""
    judged_far: float | None = None
    figure: SweepFigure = field(default_factory=SweepFigure)


def settings_of_grid(assignments: Sequence[str]) -> tuple[Setting, ...]:
    """Every combination of `head.margin=0.2,0.3 head.sharpness=1,3`, the last key fastest.

    Commas inside [..], {..} or quotes do not split. Labels say what varies. Nothing given is one
    setting.
    """
    if not assignments:
        return (Setting("the recipe as it is", ()),)
    axes = dict(_axis(assignment) for assignment in assignments)
    if len(axes) < len(assignments):
        counts = Counter(_axis(assignment)[0] for assignment in assignments)
        key = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"{key} is given twice; write its values in one word, as {key}=A,B")
    varying = [key for key, values in axes.items() if len(values) > 1] or list(axes)
    words = _words(varying)
    settings = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        label = ", ".join(words[key] + chosen[key] for key in varying)
        settings.append(Setting(label, tuple(f"{key}={value}" for key, value in chosen.items())))
    return tuple(settings)


def seeds_of_text(text: str) -> tuple[int, ...]:
    """`3` is the first three seeds, 0, 1 and 2; `0,4,7` are these, and `4,` is one of them."""
    numbers = [part.strip() for part in text.removesuffix(",").split(",")]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"--seeds is a count, such as 3, or a list, such as 0,4,7; got '{text}'")
    if "," in text:
        return tuple(int(number) for number in numbers)
    if not 1 <= int(text) <= _MOST_SEEDS:
        raise ValueError(f"--seeds: a count is from 1 to {_MOST_SEEDS:,}, got {text}")
    return tuple(range(int(text)))


def split_values(text: str) -> list[str]:
    """The values between commas, as YAML would split them inside brackets."""
    values, current, depth = [], "", 0
    quote = closed = ""  # the quote that is open, and the one that the last character closed
    for character in text:
        at_start = not current.strip() or (depth > 0 and current.rstrip()[-1] in "[{,:")
        was_closed, closed = closed, ""
        if quote:
            backslashes = len(current) - len(current.rstrip("\\"))
            is_escaped = quote == '"' and backslashes % 2 == 1
            if character == quote and not is_escaped:
                quote, closed = "", quote
        # A doubled quote inside quotes closes and opens again, which comes to the same.
        elif character in "'\"" and (at_start or character == was_closed):
            quote = character
        elif character in "[{" and (at_start or depth):
            depth += 1
        elif character in "]}" and depth:
            depth -= 1
        elif character == "," and not depth:
            values.append(current.strip())
            current = ""
            continue
        current += character
    return [*values, current.strip()]


def _axis(assignment: str) -> tuple[str, list[str]]:
    key, equals, text = assignment.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ValueError(
            "a grid is made of section.key=value,value, such as head.margin=0.2,0.3; "
            f"got '{assignment}'"
        )
    values = split_values(text)
    if not all(values):
        raise ValueError(f"{key} has an empty value in '{assignment}'; write null for none")
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{key} has the value {twice[0]} twice in '{assignment}'")
    return key, values


def _words(keys: Sequence[str]) -> dict[str, str]:
    """What comes before a value in labels: the last word of its key, or all of it if need be."""
    last = Counter(key.rpartition(".")[2] for key in keys)
    words = {}
    for key in keys:
        word = key.rpartition(".")[2]
        words[key] = f"{word if last[word] == 1 else key}="
    # The name of a head speaks for itself.
    return words | ({"head.name": ""} if "head.name" in words else {})


@dataclass(frozen=True)
class PlannedRun:
    """One seed of one setting.

    config_yaml: the resolved config, as it is in the run folder
    name: of the run folder, the head's and a digest of the whole config; runs with one config have
        one name, in whichever sweep
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
    written = dump_config(config)
    digest = hashlib.sha256(written.encode("utf-8")).hexdigest()
    return PlannedRun(setting, seed, config, written, f"{config.head.name}-{digest[:10]}")


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


def check_buildable(runs: Sequence[PlannedRun]) -> None:
    """A ValueError, with the setting, for the first run that could not even start.

    Nothing is rendered, trained or written. What settings have in common is built once.
    """
    built: dict[str, Any] = {}
    firsts: dict[str, PlannedRun] = {}  # the other seeds differ in nothing that could be wrong
    for run in runs:
        firsts.setdefault(run.setting.label, run)
    for label, run in firsts.items():
        try:
            _build(run.config, built)
        except ValueError as error:
            raise ValueError(f"setting '{label}': {error}") from None


def _build(config: RunConfig, built: dict[str, Any]) -> None:
    def once(choice: object, build: Callable[[], _T]) -> _T:
        if repr(choice) not in built:
            built[repr(choice)] = build()
        found: _T = built[repr(choice)]
        return found

    choose_precision(config.precision, choose_device(config.device))
    evaluation, network = config.evaluation, config.backbone
    people = (config.data, config.label_noise, config.open_set, evaluation.set_aside)
    source = once(people, lambda: build_training_source(config))
    backbone = once(network, lambda: build_backbone(network.name, seed=0, **network.options))
    for part in ("sets", "choose_on"):
        for number, choice in enumerate(getattr(evaluation, part)):
            if f"set {choice!r}" not in built:
                sets_of_choice(choice.name, choice.options, key=f"evaluation.{part}.{number}")
                built[f"set {choice!r}"] = None  # only that it is right: it may be large
    with torch.random.fork_rng(devices=[]):
        classes = learned_people(config, source.num_classes)
        head = build_head(config.head.name, backbone.embedding_dim, classes, **config.head.options)
    # On the CPU: GPUs are the workers'.
    here = config.model_copy(update={"device": "cpu", "precision": "float32"})
    Trainer(backbone, head, source, here, run_folder=Path())
