"""The schema of a run: typed and strict, read from recipes and YAML files, with dotted overrides.

`load_config("quickstart", ["head.name=cosface", "training.epochs=5"])` reads, merges and checks;
`dump_config` writes YAML that loads to an equal config, which is how a run can be started again.
"""

import copy
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from sphereface2.config.loading import dump_yaml, named, read_run
from sphereface2.registry import SYNONYMS, DataPath, did_you_mean, mistake, near, nearest, shown

# What checks the options of a choice. These rooms come later in the line and load torch, so they
# are named here and imported when a config is read. Images and sets are checked where they are
# opened: a recipe may leave them for the user to give.
OPTIONS_OF = {
    "augmentation": ("sphereface2.data.augmentation", "augmentation_options"),
    "backbone": ("sphereface2.backbones", "backbone_options"),
    "head": ("sphereface2.heads", "head_options"),
}

START = "start"
"""The backbone's name where it is the network of training.start_from."""
REQUIRED = "???"  # in a recipe: a value that only the user can know


def _whole(value: Any) -> Any:
    """1e5 is a float in YAML, and a fine number of steps."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _yes_or_no(value: Any) -> Any:
    """The words of YAML 1.1 for true and false, where true or false is expected."""
    words = {"yes": True, "on": True, "no": False, "off": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


Whole = Annotated[int, BeforeValidator(_whole)]
Switch = Annotated[bool, BeforeValidator(_yes_or_no)]
_PerChannel = float | Annotated[tuple[float, float, float], Field(strict=False)]

_Beta = Annotated[float, Field(ge=0, lt=1)]
_ADAMW = {"learning_rate": 1e-3, "weight_decay": 0.05}  # where its defaults are not those of sgd


class _Section(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True
    )


class Choice(BaseModel):
    """A named choice and its options, which are checked against the signature of what it names."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)

    name: str = Field(min_length=1, description="which entry of the table")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return named(value)

    @property
    def options(self) -> dict[str, Any]:
        """The options as given, without the name: a copy."""
        return copy.deepcopy(self.model_extra or {})


def _require_one(section: str, **keys: float | None) -> None:
    """Of two ways to say the same, one is given."""
    given = [value for value in keys.values() if value is not None]
    if len(given) != 1:
        names = " and ".join(f"{section}.{key}" for key in keys)
        said = "both are given" if given else "neither is given"
        raise ValueError(f"give one of {names}; {said}")


class AverageConfig(_Section):
    """An average of the network's weights, which is evaluated and exported in their place."""

    decay: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of the average that a step keeps: 0.999 is about the last 1,000 steps; "
        "or give last_epochs",
    )
    last_epochs: Whole | None = Field(
        default=None,
        ge=1,
        description="the mean of the networks at the ends of so many last epochs; or give decay",
    )
    statistics: Whole = Field(
        default=4096,
        ge=2,
        description="training images, neither mirrored nor augmented, that the average's "
        "batch-norm statistics are made from",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_one("training.average", decay=self.decay, last_epochs=self.last_epochs)
        return self


class FreezeConfig(_Section):
    """Given weights that are kept for a while, their batch norm included."""

    parts: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        strict=False,
        description="modules of the backbone, such as stem or stages.0; none: all of it",
    )
    epochs: float | None = Field(
        default=1.0, gt=0, description="of the training, from its start; null: all of them"
    )


def _augmentation(value: Any) -> Any:
    """Options alone are those of an augmentation that does nothing else."""
    value = named(value)
    return {"name": "none", **value} if isinstance(value, Mapping) else value


class TrainingConfig(_Section):
    """How long, in which batches, and what is done along the way."""

    epochs: Whole | None = Field(
        default=None, ge=1, description="passes over the data; or give steps"
    )
    steps: Whole | None = Field(default=None, ge=1, description="optimiser steps; or give epochs")
    batch_size: Whole = Field(
        default=128, ge=1, description="images per optimiser step, over all ranks"
    )
    accumulate: Whole = Field(
        default=1, ge=1, description="micro-batches that one step is split into"
    )
    sample_rate: float = Field(
        default=1.0, gt=0, le=1, description="share of the other classes that a step sees"
    )
    workers: Whole = Field(
        default=2, ge=0, description="processes or threads that read images; 0: none"
    )
    worker_kind: Literal["auto", "processes", "threads"] = Field(
        default="auto",
        description="what workers are; auto: processes for files on Linux, else threads",
    )
    start_from: DataPath | None = Field(
        default=None,
        min_length=1,
        description="whose weights the network starts from: a run, a model folder, or a file of "
        "another project; null: random ones",
    )
    start_classes: Literal["random", "means", "same"] = Field(
        default="random",
        description="class weights at the start; means: of the people's embeddings; same: those of "
        "the run in start_from, which has the same people",
    )
    freeze: FreezeConfig | None = Field(
        default=None, description="what of the given weights is kept at first; null: nothing"
    )
    flip: Switch = Field(default=True, description="mirror every other image, at random")
    clip_norm: float | None = Field(
        default=None,
        gt=0,
        description="largest gradient norm, without the matrices that muon turns; null: any",
    )
    average: AverageConfig | None = Field(
        default=None, description="average the network's weights; null: take the last ones"
    )
    discriminant: Switch = Field(
        default=False,
        description="weigh the embedding's axes in the exported model by how well they tell the "
        "training people apart (linear discriminant analysis)",
    )
    compile: Switch = Field(
        default=False,
        description="compile the network and the head's maps, which takes a compiler and minutes "
        "at the start; without a compiler: as false",
    )
    evaluate_every: Whole = Field(
        default=1, ge=0, description="epochs between evaluations; 0: at the end"
    )
    checkpoint_every: Whole = Field(default=1, ge=1, description="epochs between checkpoints")
    checkpoint_every_steps: Whole = Field(
        default=0, ge=0, description="steps between further checkpoints within an epoch; 0: none"
    )
    log_every: Whole = Field(default=20, ge=1, description="steps between lines of metrics.jsonl")
    tensorboard: Switch = Field(default=False, description="write TensorBoard files as well")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_one("training", epochs=self.epochs, steps=self.steps)
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"training.batch_size ({self.batch_size}) must be a multiple of "
                f"training.accumulate ({self.accumulate})"
            )
        if self.start_from is None:
            for key, is_set in (
                (f"start_classes={self.start_classes}", self.start_classes != "random"),
                ("freeze", self.freeze is not None),
            ):
                if is_set:
                    raise ValueError(
                        f"training.{key} needs training.start_from, the weights to start from"
                    )
        return self


class OptimizerConfig(_Section):
    """Stochastic gradient descent with momentum, AdamW, or Muon."""

    name: Literal["sgd", "adamw", "muon"] = Field(
        default="sgd",
        description="sgd, as the paper trains, adamw, or muon: fewer steps to the same network",
    )
    learning_rate: float = Field(
        default=0.1,
        gt=0,
        description=f"the peak, after the warm-up; adamw: {_ADAMW['learning_rate']}",
    )
    momentum: float = Field(
        default=0.9,
        ge=0,
        lt=1,
        description="share of the last update that is kept; for sgd and muon only",
    )
    weight_decay: float = Field(
        default=5e-4,
        ge=0,
        description="of the backbone, and of the head if unset; "
        f"adamw: {_ADAMW['weight_decay']}, beside the gradient",
    )
    nesterov: Switch = Field(
        default=False, description="look ahead by one momentum step; for sgd only"
    )
    betas: tuple[_Beta, _Beta] = Field(
        default=(0.9, 0.999),
        strict=False,
        description="share of the mean and of the mean square that is kept; for adamw only",
    )
    eps: float = Field(
        default=1e-8, gt=0, description="added to the root of the mean square; for adamw only"
    )
    decay_norms_and_biases: Switch | None = Field(
        default=None,
        description="decay the backbone's norms, biases and slopes as well; null: sgd does, as the "
        "authors' code, the others do not",
    )
    head_learning_rate: float = Field(
        default=1.0, gt=0, description="of the class weights, as a multiple of learning_rate"
    )
    backbone_learning_rate: float = Field(
        default=1.0, gt=0, description="of the backbone, as a multiple of learning_rate"
    )
    head_weight_decay: float | None = Field(
        default=None, ge=0, description="of the head; null: the same"
    )
    fused_head: Switch = Field(
        default=False,
        description="move class weights within the loss, without a gradient in memory; clip_norm "
        "then leaves them out; for sgd and muon only",
    )
    matrix_step: float = Field(
        default=0.03,
        gt=0,
        lt=1,
        description="muon: how far a step moves each matrix of the backbone, as a share of its "
        "length, at the peak; all else moves by sgd at learning_rate",
    )

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, value: Any) -> Any:
        value = named(value)
        is_adamw = isinstance(value, Mapping) and value.get("name") == "adamw"
        return {**_ADAMW, **value} if is_adamw else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key, names in (("nesterov", ("sgd",)), ("fused_head", ("sgd", "muon"))):
            if self.name not in names and getattr(self, key):
                raise ValueError(
                    f"optimizer.{key} is for optimizer.name={' or '.join(names)}; set "
                    f"optimizer.{key}=false for {self.name}"
                )
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov needs optimizer.momentum above 0, got 0")
        if self.nesterov and self.fused_head:
            raise ValueError(
                "optimizer.fused_head has no Nesterov momentum; set one of optimizer.fused_head "
                "and optimizer.nesterov to false"
            )
        return self


class ScheduleConfig(_Section):
    """The learning rate over time."""

    name: Literal["step", "cosine", "polynomial", "constant"] = Field(
        default="cosine", description="the shape after the warm-up"
    )
    unit: Literal["epochs", "steps"] = Field(
        default="epochs", description="what warmup and milestones are counted in"
    )
    warmup: float = Field(default=0.0, ge=0, description="linear rise from zero, in units")
    milestones: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(), strict=False, description="when the rate drops, in units; for step only"
    )
    decay: float = Field(
        default=0.1, gt=0, lt=1, description="factor at each milestone; for step only"
    )
    power: float = Field(
        default=2.0, gt=0, description="of the remaining share; for polynomial only"
    )
    final: float = Field(
        default=0.0, ge=0, le=1, description="last rate over peak rate; for cosine and polynomial"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(a >= b for a, b in zip(self.milestones, self.milestones[1:], strict=False)):
            raise ValueError(f"schedule.milestones must ascend, got {shown(self.milestones)}")
        if self.name == "step" and not self.milestones:
            raise ValueError(
                "schedule 'step' needs schedule.milestones, such as "
                f"schedule.milestones=[10,16] (in {self.unit})"
            )
        return self


class EvaluationConfig(_Section):
    """What is verified during and after the training."""

    sets: tuple[Choice, ...] = Field(default=(), strict=False, description="the verification sets")
    choose_on: tuple[Choice, ...] = Field(
        default=(),
        strict=False,
        description="other sets, on which the step to export is chosen; none: the last step",
    )
    set_aside: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the training people who are kept out, to choose the step on their "
        "pairs",
    )
    flip: Switch = Field(default=True, description="sum with the embedding of the mirror image")
    batch_size: Whole = Field(default=256, ge=1, description="images embedded at a time")


class LabelNoiseConfig(_Section):
    """Training labels made wrong on purpose."""

    rate: float = Field(gt=0, le=1, description="share of the images whose label is drawn again")
    kind: Literal["flip", "resample"] = Field(
        default="flip",
        description="flip: exactly that share of each person's images, never the true label; "
        "resample: each image by chance, any label",
    )
    seed: Whole | None = Field(
        default=None, ge=0, lt=2**63, description="of the noise; null: the run's seed"
    )


class OpenSetConfig(_Section):
    """Images of people whom nobody knows, as negatives for every class."""

    share: float = Field(gt=0, lt=1, description="part of every batch that strangers make up")
    data: Choice = Field(
        description="their images; with name: folder, all images below path at any depth"
    )


class PreprocessingConfig(_Section):
    """What the network is shown of a pixel: (value - mean) / scale, channel by channel."""

    channels: Literal["RGB", "BGR"] = Field(default="RGB", description="their order")
    mean: _PerChannel = Field(default=127.5, description="one number, or one for each channel")
    scale: _PerChannel = Field(default=127.5, description="one number, or one for each channel")


class RunConfig(_Section):
    """Everything that determines a run."""

    seed: Whole = Field(default=0, ge=0, lt=2**63, description="of every random choice of the run")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:N or mps")
    precision: Literal["auto", "fast", "float32", "bf16", "fp16"] = Field(
        default="auto",
        description="auto: bf16 on a CUDA device that has it, float32 elsewhere; fast: bf16 on a "
        "CPU that has it, too",
    )
    data: Choice = Field(description="the training images")
    label_noise: LabelNoiseConfig | None = Field(
        default=None, description="labels made wrong on purpose; null: none"
    )
    open_set: OpenSetConfig | None = Field(
        default=None, description="further images of unknown people; null: none"
    )
    preprocessing: PreprocessingConfig | None = Field(
        default=None,
        description="what the network is shown; null: as training.start_from, else RGB in [-1, 1]",
    )
    augmentation: Annotated[Choice, BeforeValidator(_augmentation)] = Field(
        default_factory=lambda: Choice(name="none"),
        description="training images changed at random; none, light, strong or adaface",
    )
    backbone: Choice = Field(description=f"the network; {START}: that of training.start_from")
    head: Choice = Field(description=f"the loss; {START}: that of the run in training.start_from")
    training: TrainingConfig = Field(description="length, batches, logging")
    optimizer: OptimizerConfig = Field(
        default_factory=OptimizerConfig, description="what moves the weights"
    )
    schedule: ScheduleConfig = Field(
        default_factory=ScheduleConfig, description="learning rate over time"
    )
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig, description="verification"
    )

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        known = ("auto", "cpu", "cuda", "mps")
        if value not in known and not re.fullmatch(r"cuda:\d+", value):
            raise ValueError(
                f"device must be auto, cpu, cuda, cuda:N or mps, got {shown(value)}"
                f"{nearest(value, known)}"
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        average, epochs = self.training.average, self.training.epochs
        if average is not None and (average.last_epochs or 0) > (epochs or math.inf):
            raise ValueError(
                f"training.average.last_epochs={average.last_epochs} is more than "
                f"training.epochs={epochs:g}; give at most that"
            )
        # The length is known here only in its own unit; steps per epoch depend on the data.
        length = getattr(self.training, self.schedule.unit)
        if length is None:
            return self
        unit = self.schedule.unit
        if self.schedule.warmup >= length:
            raise ValueError(
                f"schedule.warmup ({self.schedule.warmup:g} {unit}) must be shorter than the "
                f"training ({length:g} {unit}); schedule.warmup=0 leaves it out"
            )
        if self.schedule.name == "step" and self.schedule.milestones[-1] >= length:
            raise ValueError(
                f"schedule.milestones: {self.schedule.milestones[-1]:g} is not before the end of "
                f"the training ({length} {unit})"
            )
        return self


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of a recipe's name, a YAML file or a run folder, with `a.b=value` overrides.

    Of two overrides the more specific one wins, else the later one. A new name for the data, the
    backbone, the head or a set drops the options that the file gives for the old name.
    """
    return config_from_mapping(read_run(source, overrides))


def config_from_mapping(values: Mapping[str, Any]) -> RunConfig:
    """The checked config; a ValueError says in one sentence what is wrong."""
    absent = next(_left_to_the_user(values), None)
    try:
        config = RunConfig.model_validate(dict(values))
    except ValidationError as error:
        details = error.errors(include_url=False)
        # An unknown key is often the cause of what else is wrong, such as a missing one.
        unknown = [detail for detail in details if detail["type"] == "extra_forbidden"]
        if unknown or absent is None:
            detail = (unknown or details)[0]
            raise ValueError(_sentence(cast("dict[str, Any]", detail))) from None
    if absent is not None:
        raise ValueError(f"{absent} has no value yet; give it as {absent}=VALUE")
    for section in OPTIONS_OF:
        choice: Choice = getattr(config, section)
        if section in ("backbone", "head") and choice.name == START:
            if config.training.start_from is None:
                raise ValueError(f"{section}.name={START} needs training.start_from")
            continue  # known when the weights are read
        options_of(section, choice)
    return config


def options_of(section: str, choice: Choice) -> dict[str, Any]:
    """All options of an augmentation, a backbone or a head, checked."""
    room, function = OPTIONS_OF[section]
    options: dict[str, Any] = getattr(import_module(room), function)(choice.name, choice.options)
    return options


def dump_config(config: RunConfig) -> str:
    """YAML that loads to an equal config, every default written out."""
    return dump_yaml(config.model_dump())


def _left_to_the_user(value: Any, key: str = "") -> Iterator[str]:
    """The keys of a mapping whose value only the user can know."""
    if value == REQUIRED:
        yield key
    items = value.items() if isinstance(value, Mapping) else ()
    for name, inner in enumerate(value) if isinstance(value, list | tuple) else items:
        yield from _left_to_the_user(inner, f"{key}.{name}" if key else str(name))


def _sentence(detail: dict[str, Any]) -> str:
    """One of pydantic's error details in a sentence with the dotted key and the value."""
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == "extra_forbidden":
        return f"unknown key '{key}'{_nearest_key(key)}"
    if detail["type"] == "missing" and isinstance(detail["loc"][-1], str):
        return f"the key '{key}' is missing"
    if detail["type"] == "missing":  # of a list, not of a section
        key = key.rpartition(".")[0]
    return mistake(key, detail)


# Who comes from another project may look for a key in the wrong one of these.
_NEIGHBOURS = ("training", "optimizer", "schedule")


def _nearest_key(key: str) -> str:
    """A hint at what is near in the same section, or at the one key elsewhere with that word.

    Where nothing is near, all keys of the section.
    """
    words = {known: known.rpartition(".")[2] for known, _ in settings()}
    section, _, word = key.rpartition(".")

    def meant(candidates: Collection[str]) -> list[str]:
        found = near(word, [words[known] for known in candidates])
        return [known for known in candidates if words[known] in found]

    siblings = [known for known in words if known.rpartition(".")[0] == section]
    same = [known for known in words if words[known] in (word, *SYNONYMS.get(word, ()))]
    if not section:
        elsewhere = same or meant(words)  # the key may have lost its section: rather one level
        least = min((known.count(".") for known in elsewhere), default=0)
        elsewhere = [known for known in elsewhere if known.count(".") == least]
    else:
        elsewhere = same if len(same) == 1 and same[0].startswith(_NEIGHBOURS) else []
    listing = f" (known: {', '.join(words[known] for known in siblings)})"
    return did_you_mean((meant(siblings) or elsewhere)[:3]) or listing


def settings(
    model: type[BaseModel] = RunConfig, prefix: str = "", *, choices: bool = True
) -> Iterator[tuple[str, Any]]:
    """Every key of a config with its field, which has its default and says what it is.

    choices: also the keys of a choice, of which only its name is the same for all
    """
    for name, field in model.model_fields.items():
        yield prefix + name, field
        # A section that may be left out is of the type `Section | None`.
        for kind in get_args(field.annotation) or (field.annotation,):
            if isinstance(kind, type) and issubclass(
                kind, _Section | Choice if choices else _Section
            ):
                yield from settings(kind, f"{prefix}{name}.", choices=choices)
