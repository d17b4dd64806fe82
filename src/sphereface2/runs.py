"""A run from its config to its report: the one place where all stages meet.

A run folder holds config.yaml (resolved: it can start the same run again), metrics.jsonl,
checkpoints/, model/ (what training exports), evaluation.json and report.html.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sphereface2.backbones import Backbone, backbone_options, build_backbone
from sphereface2.backbones.model_folder import LoadedModel, Preprocessing, load_model, save_model
from sphereface2.config import Choice, RunConfig, config_from_mapping, dump_config, load_config
from sphereface2.data import SOURCES, VERIFICATION_SETS
from sphereface2.data.source import Progress, Source
from sphereface2.data.verification_sets import VerificationSet
from sphereface2.evaluation.embed import embed, raw_pixel_embedding
from sphereface2.evaluation.results import (
    RAW_PIXELS,
    UNTRAINED,
    EvaluationResult,
    installed_versions,
    write_atomically,
)
from sphereface2.evaluation.verification import PairScores, measure_all, score_pairs
from sphereface2.heads import Head, build_head, head_options
from sphereface2.heads.sharding import class_shards
from sphereface2.reporting.pictures import ReportPictures, hardest_pairs, people_sheet
from sphereface2.reporting.report import write_report
from sphereface2.tables import build, look_up, resolve_options
from sphereface2.training.checkpoint import has_checkpoint, load_tensors
from sphereface2.training.devices import choose_device
from sphereface2.training.distributed import current_team
from sphereface2.training.events import Events
from sphereface2.training.result import TrainingResult
from sphereface2.training.trainer import Trainer

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
MODEL = "model"
EVALUATION = "evaluation.json"
REPORT = "report.html"
# All that a run writes: what --overwrite may remove, and nothing else.
PRODUCTS = (CONFIG, METRICS, "checkpoints", "tensorboard", MODEL, EVALUATION, REPORT)

Watch = Callable[[str], AbstractContextManager[Progress | None]]
"""Shows the progress of a named piece of work: `with watch("rendering") as progress: ...`."""


def unwatched(title: str) -> AbstractContextManager[Progress | None]:
    """Work that nobody watches."""
    return nullcontext()


@dataclass(frozen=True)
class Evaluated:
    """An evaluation and where it was written."""

    result: EvaluationResult
    report: Path


def train(
    config: RunConfig,
    folder: Path,
    *,
    overwrite: bool = False,
    events: Events | None = None,
    watch: Watch = unwatched,
) -> TrainingResult:
    """Train as `config` says and export the best model; nothing is written before all is built.

    Where a process group is up (`training.distributed.joined`), all ranks train together.
    """
    team = current_team()
    with team.together():
        config = resolve(config)
        if team.is_first and not overwrite:
            _refuse_used_folder(folder)
        trainer = _build_trainer(config, folder, events=events, watch=watch)
    team.require_same(_identity(trainer))
    with team.together():
        if team.is_first:
            for product in PRODUCTS if overwrite else ():
                _remove(folder / product)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / CONFIG, dump_config(config))
    return _finish(trainer, config, folder, trainer.run())


def resume(
    folder: Path, *, events: Events | None = None, watch: Watch = unwatched
) -> TrainingResult:
    """Go on with a run from its last checkpoint, or from its start if it has none yet."""
    team = current_team()
    with team.together():
        config = load_config(_require_run(folder))
        trainer = _build_trainer(config, folder, events=events, watch=watch)
    team.require_same(_identity(trainer))
    is_begun = team.from_first(lambda: has_checkpoint(trainer.last_path))
    return _finish(trainer, config, folder, trainer.run(resume=is_begun))


def evaluate(folder: Path, *, overrides: Sequence[str] = (), watch: Watch = unwatched) -> Evaluated:
    """Verify unseen people with a run's model and two baselines; write the result and a report.

    `overrides` may change the evaluation and the device, as `evaluation.sets.0.people=50`.
    """
    config = load_config(_require_run(folder), overrides)
    model = _load_run_model(folder)
    device = choose_device(config.device)
    sets = _build_sets(config, watch=watch)
    labelled = {
        config.head.name: _network_scores(model.backbone, model, sets, config, device, watch),
        RAW_PIXELS: _pixel_scores(model.preprocessing, sets, watch),
        UNTRAINED: _network_scores(_untrained(config), model, sets, config, device, watch),
    }
    rows = [row for label, scores in labelled.items() for row in measure_all(scores, model=label)]
    result = EvaluationResult(
        title=folder.resolve().name,
        rows=tuple(rows),
        versions=installed_versions(),
        config=config.model_dump(mode="json"),
    )
    result.save(folder / EVALUATION)
    pictures = ReportPictures(
        contact_sheet=people_sheet(_build_source(config)),
        hardest=hardest_pairs(result, {each.name: each.images for each in sets}),
    )
    write_report(
        folder / REPORT,
        evaluation=result,
        history=_read_history(folder),
        config_yaml=dump_config(config),
        pictures=pictures,
    )
    return Evaluated(result, folder / REPORT)


def resolve(config: RunConfig) -> RunConfig:
    """The same config with every option of every choice filled in, under our own names."""
    values = config.model_dump()
    values["data"] = _resolved(config.data, _options("data", SOURCES, config.data))
    values["backbone"] = _resolved(
        config.backbone, backbone_options(config.backbone.name, config.backbone.options)
    )
    values["head"] = _resolved(config.head, head_options(config.head.name, config.head.options))
    values["evaluation"]["sets"] = [
        _resolved(choice, _options("evaluation set", VERIFICATION_SETS, choice))
        for choice in config.evaluation.sets
    ]
    return config_from_mapping(values)


def _options(
    kind: str, table: Mapping[str, Callable[..., object]], choice: Choice
) -> dict[str, Any]:
    return resolve_options(kind, choice.name, look_up(kind, table, choice.name), choice.options)


def _resolved(choice: Choice, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": choice.name, **options}


# -- building the stages -------------------------------------------------------------------------


def _build_source(config: RunConfig) -> Source:
    return build("data", SOURCES, config.data.name, **config.data.options)


def _build_sets(config: RunConfig, *, watch: Watch) -> list[VerificationSet]:
    if not config.evaluation.sets:
        raise ValueError(
            "the config names no verification set; give one, such as "
            "'evaluation.sets=[{name: pairs, path: pairs.txt}]'"
        )
    sets = [
        each
        for choice in config.evaluation.sets
        for each in build("evaluation set", VERIFICATION_SETS, choice.name, **choice.options)
    ]
    for each in sets:
        with watch(f"preparing set {each.name}") as progress:
            each.images.prepare(workers=config.training.workers, progress=progress)
    return sets


def _build_head(config: RunConfig, *, dim: int, num_classes: int) -> Head:
    # The seed after the backbone's, so that the two do not start from the same numbers.
    team = current_team()
    with torch.random.fork_rng(devices=[]), class_shards(team.rank, team.world):
        torch.manual_seed(config.seed + 1)
        return build_head(config.head.name, dim, num_classes, **config.head.options)


def _build_trainer(
    config: RunConfig, folder: Path, *, events: Events | None, watch: Watch
) -> Trainer:
    """Everything a training needs; what is wrong with the config is found here, first."""
    source = _build_source(config)
    backbone = build_backbone(config.backbone.name, seed=config.seed, **config.backbone.options)
    head = _build_head(config, dim=backbone.embedding_dim, num_classes=source.num_classes)
    evaluation = None
    if config.evaluation.sets:
        evaluation = _Evaluation(config, Preprocessing(backbone.input_size), watch)
    trainer = Trainer(
        backbone, head, source, config, run_folder=folder, evaluate=evaluation, events=events
    )
    with watch("preparing the training images") as progress:
        source.prepare(workers=config.training.workers, progress=progress)
    if evaluation is not None and trainer.team.is_first:
        evaluation.prepare()
    return trainer


def _identity(trainer: Trainer) -> dict[str, Any]:
    """What must be the same on all ranks for them to train one model."""
    versions = {f"the version of {name}": value for name, value in installed_versions().items()}
    return {
        **trainer.settings,
        **versions,
        "training.accumulate": trainer.config.training.accumulate,
        "the run folder's name": trainer.last_path.parent.parent.name,
    }


class _Evaluation:
    """The accuracy on every set while training goes on; the images are prepared once."""

    def __init__(self, config: RunConfig, preprocessing: Preprocessing, watch: Watch) -> None:
        self.config = config
        self.preprocessing = preprocessing
        self.watch = watch
        self.sets: list[VerificationSet] = []

    def prepare(self) -> None:
        self.sets = _build_sets(self.config, watch=self.watch)

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        scores = _scores(backbone, self.preprocessing, self.sets, self.config, None, unwatched)
        return {row.set_name: row.accuracy for row in measure_all(scores, model="")}


# -- from images to scores -----------------------------------------------------------------------


def _scores(
    backbone: nn.Module,
    preprocessing: Preprocessing,
    sets: Sequence[VerificationSet],
    config: RunConfig,
    device: torch.device | None,
    watch: Watch,
) -> list[PairScores]:
    scored = []
    for each in sets:
        with watch(f"embedding set {each.name}") as progress:
            embeddings = embed(
                backbone,
                each.images,
                preprocessing=preprocessing,
                batch_size=config.evaluation.batch_size,
                flip=config.evaluation.flip,
                device=device,
                progress=progress,
            )
        scored.append(score_pairs(each.name, embeddings, each.pairs, each.same, each.folds))
    return scored


def _network_scores(
    backbone: Backbone,
    model: LoadedModel,
    sets: Sequence[VerificationSet],
    config: RunConfig,
    device: torch.device,
    watch: Watch,
) -> list[PairScores]:
    return _scores(backbone.to(device), model.preprocessing, sets, config, device, watch)


def _pixel_scores(
    preprocessing: Preprocessing, sets: Sequence[VerificationSet], watch: Watch
) -> list[PairScores]:
    scored = []
    for each in sets:
        with watch(f"comparing pixels of {each.name}"):
            pixels = raw_pixel_embedding(each.images, input_size=preprocessing.input_size)
        scored.append(score_pairs(each.name, pixels, each.pairs, each.same, each.folds))
    return scored


def _untrained(config: RunConfig) -> Backbone:
    """The network as it was before its first step."""
    return build_backbone(config.backbone.name, seed=config.seed, **config.backbone.options)


# -- the folder ----------------------------------------------------------------------------------


def _finish(
    trainer: Trainer, config: RunConfig, folder: Path, result: TrainingResult
) -> TrainingResult:
    """Export the best network of a training that came to its end."""
    if result.interrupted:
        return result
    with trainer.team.together():
        if trainer.team.is_first:
            _export(trainer, config, folder, result)
    return result


def _export(trainer: Trainer, config: RunConfig, folder: Path, result: TrainingResult) -> None:
    backbone = trainer.backbone
    tensors = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    load_tensors(result.best_checkpoint, tensors, part="backbone.")
    save_model(
        folder / MODEL,
        backbone,
        name=config.backbone.name,
        options=config.backbone.options,
        preprocessing=trainer.update.preprocessing,
        extra={
            "head": config.head.model_dump(mode="json"),
            "people": trainer.head.num_classes,
            "steps": result.steps,
            "best_step": result.best_step,
            "best_metric": result.best_metric,
        },
    )


def _refuse_used_folder(folder: Path) -> None:
    found = [product for product in PRODUCTS if (folder / product).exists()]
    if found:
        raise ValueError(
            f"{folder} already holds a run ({', '.join(found)}): go on with "
            f"'sphereface2 resume {folder}', choose another --output, or replace it "
            "with --overwrite"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder: choose another --output")


def _require_run(folder: Path) -> Path:
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} is no run folder: it has no {CONFIG}; 'sphereface2 train RECIPE' makes one"
        )
    return folder


def _load_run_model(folder: Path) -> LoadedModel:
    if not (folder / MODEL).is_dir():
        raise FileNotFoundError(
            f"{folder} holds no trained model yet: finish it with 'sphereface2 resume {folder}'"
        )
    return load_model(folder / MODEL)


def _read_history(folder: Path) -> list[dict[str, Any]]:
    path = folder / METRICS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
