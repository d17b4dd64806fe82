"""Train a run from its config to its exported model, and resume it.

A run folder holds config.yaml (resolved: it can start the same run again), metrics.jsonl,
changes.jsonl (where a resumed run was changed), checkpoints/, model/ (what training exports),
evaluation.json, scores.npz and report.html; where labels were made wrong label_noise.csv, and
where images were passed over bad_images.txt.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sphereface2.backbones import Backbone, build_backbone
from sphereface2.config.schema import (
    OPTIONS_OF,
    Choice,
    RunConfig,
    config_from_mapping,
    dump_config,
    options_of,
)
from sphereface2.data.mixing import STRANGERS, NoisyLabels, build_training_source, learned_people
from sphereface2.data.pairs import VERIFICATION_SETS, set_choice
from sphereface2.data.pairs.drawn import SET_ASIDE
from sphereface2.data.pairs.verification_set import VerificationSet, notes_on_pairs, notes_on_people
from sphereface2.data.sources import SOURCES
from sphereface2.data.sources.source import Faces, bad_images, layer_of, notes_on
from sphereface2.data.transforms import Preprocessing, preprocessing_of
from sphereface2.evaluation.scoring import (
    build_choice_sets,
    build_sets,
    refuse_shared_people,
    score_sets,
)
from sphereface2.evaluation.verification import installed_versions, measure_all
from sphereface2.files import Lock, require_writable, write_atomically
from sphereface2.heads import Head, build_head
from sphereface2.heads.sharding import class_shards
from sphereface2.models.discriminant import require_pairs, weigh_axes
from sphereface2.models.embedder import NetworkEmbedder
from sphereface2.models.folder import save_model
from sphereface2.registry import look_up, resolve_options
from sphereface2.reporting.pages.verification import CHANGED
from sphereface2.runs.folder import (
    BAD_IMAGES,
    CHECKPOINTS,
    CONFIG,
    LABEL_NOISE,
    MODEL,
    change_config,
    is_exported,
    keep_manifest,
    list_bad_images,
    read_changes,
    read_history,
    refuse_data_folder,
    refuse_foreign_folder,
    refuse_used_folder,
    remove_judgements,
    remove_products,
    require_run,
    run_config,
    run_lock,
)
from sphereface2.runs.start import start_weights, with_start
from sphereface2.training.averaging import AVERAGED
from sphereface2.training.checkpoint import (
    Change,
    Checkpoint,
    changed_settings,
    config_settings,
    differing_settings,
    has_checkpoint,
    load_checkpoint,
    load_tensors,
)
from sphereface2.training.distributed import current_team, is_restarted
from sphereface2.training.events import Events, Notice
from sphereface2.training.result import ModelStep, TrainingResult
from sphereface2.training.trainer import Trainer
from sphereface2.workers import Progress, Watch, unwatched

_AXES_IMAGES = 50_000  # tell the worth of a few hundred axes well, in a minute or so


def train(
    config: RunConfig,
    folder: Path,
    *,
    overwrite: bool = False,
    events: Events | None = None,
    watch: Watch = unwatched,
) -> TrainingResult:
    """Train as `config` says and export a model; nothing is written before all is built.

    The model is the last step, or the best one on the sets of `evaluation.choose_on` and the
    people of `evaluation.set_aside`.

    The folder is locked until the end: a LockedError if another process trains there. Where a
    process group is up (`training.distributed.joined`), all ranks train together. Under a torchrun
    that restarts, a run that began with the same config is resumed.
    """
    team = current_team()
    with team.together():
        config = resolve(config)
        if team.is_first:
            refuse_data_folder(folder, config)
            require_writable(folder)
        if overwrite and is_restarted():
            raise ValueError(
                f"--overwrite would remove {folder} whenever torchrun restarts the training; "
                "remove it before, or leave out --max-restarts"
            )
    if is_restarted() and team.from_first(lambda: _began_with(config, folder)):
        return resume(folder, events=events, watch=watch)
    with _owned(folder):
        with team.together():
            if team.is_first:
                (refuse_foreign_folder if overwrite else refuse_used_folder)(folder)
            trainer = _build_trainer(config, folder, events=events, watch=watch)
        team.require_same(_identity(trainer))
        notices = _start(trainer, config, watch)
        with team.together():
            if team.is_first:
                if overwrite:
                    remove_products(folder)
                # First, so that whatever has our config is known as a run of ours.
                (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
                write_atomically(folder / CONFIG, dump_config(config))
        return _run(trainer, config, folder, resume=False, watch=watch, notices=notices)


def _began_with(config: RunConfig, folder: Path) -> bool:
    """Whether the folder holds a run of this very config."""
    path = folder / CONFIG
    return path.is_file() and path.read_text(encoding="utf-8") == dump_config(config)


def resume(
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    events: Events | None = None,
    watch: Watch = unwatched,
    lock: Lock | None = None,
) -> TrainingResult:
    """Continue a run from its last checkpoint, or from its start if it has none yet.

    `overrides`, or an edited config.yaml, may change where and how it computes, its length and
    its optimiser; changes.jsonl keeps what was changed. A finished run that is not made longer is
    left as it is.

    lock: the folder's, where the caller holds it already
    """
    team = current_team()
    with team.together():
        require_run(folder)
    with _owned(folder, lock):
        with team.together():
            config = resolve(run_config(folder, overrides))
            last = folder / CHECKPOINTS / "last"
            checkpoint = load_checkpoint(last) if has_checkpoint(last) else None
            before = (
                config_settings(resolve(run_config(folder)))
                if checkpoint is None
                else checkpoint.settings
            )
            changes = changed_settings(
                before, config_settings(config), run=folder, overrides=overrides
            )
        is_over = checkpoint is not None and _is_over(folder, config, checkpoint, changes)
        if checkpoint is not None and is_over:
            _refuse_idle_changes(folder, config, checkpoint, changes)
        if checkpoint is not None and checkpoint.finished:
            # No checkpoint follows that has what was changed since: the run's own list has.
            known = {entry["key"]: entry["new"] for entry in read_changes(folder)}
            before = {**checkpoint.settings, **known}
            changes = differing_settings(before, config_settings(config))
            if is_over and not any(change.names_images for change in changes):
                return _already_finished(folder, config, checkpoint, changes, events)
        with team.together():
            trainer = _build_trainer(
                config, folder, events=events, watch=watch, checkpoint=checkpoint
            )
        team.require_same(_identity(trainer))
        if checkpoint is not None and is_over:
            return _already_finished(folder, config, checkpoint, changes, events)
        notices = _notices_of(changes)
        if checkpoint is None:
            notices += _start(trainer, config, watch)
        step = 0 if checkpoint is None else checkpoint.step
        with team.together():
            if team.is_first:
                change_config(folder, config, changes, step=step)
        if checkpoint is None and read_history(folder):
            text = f"there is no checkpoint in {folder / CHECKPOINTS}: the run starts again"
            notices.append(Notice("restart", text))
        is_begun = checkpoint is not None
        return _run(trainer, config, folder, resume=is_begun, watch=watch, notices=notices)


def _is_over(
    folder: Path, config: RunConfig, checkpoint: Checkpoint, changes: Sequence[Change]
) -> bool:
    """Whether nothing is left to do: trained, evaluated, exported, and not to be longer."""
    is_longer = any(change.changes_length for change in changes)
    is_done = checkpoint.finished and not is_longer
    wanted, steps = config.training.discriminant, checkpoint.step
    return current_team().from_first(
        lambda: is_done and is_exported(folder, steps=steps, discriminant=wanted)
    )


def _refuse_idle_changes(
    folder: Path, config: RunConfig, checkpoint: Checkpoint, changes: Sequence[Change]
) -> None:
    """A ValueError where only the steps of a longer run could follow a change."""
    with current_team().together():
        for change in changes:
            if change.changes_steps:
                raise ValueError(
                    f"{folder} has done all its {checkpoint.step} steps, so that {change.key}="
                    f"{change.new} would change nothing; make it longer as well, with "
                    f"{longer(config)}"
                )


def _already_finished(
    folder: Path,
    config: RunConfig,
    checkpoint: Checkpoint,
    changes: Sequence[Change],
    events: Events | None,
) -> TrainingResult:
    team = current_team()
    with team.together():
        if team.is_first:
            change_config(folder, config, changes, step=checkpoint.step)
            for notice in _notices_of(changes):
                (events or Events()).noticed(notice)
    best, last = (folder / CHECKPOINTS / name for name in ("best", "last"))
    step = ModelStep("last", checkpoint.step, checkpoint.step)
    if checkpoint.own_sets and checkpoint.best_step is not None:
        step = checkpoint.best_of(checkpoint.step)
    return TrainingResult(
        steps=checkpoint.step,
        total_steps=checkpoint.step,
        interrupted=False,
        model_step=step,
        checkpoint=best if step.which == "best" else last,
        last_checkpoint=last,
        seconds=checkpoint.seconds,
        was_finished=True,
    )


def _notices_of(changes: Sequence[Change]) -> list[Notice]:
    return [Notice(CHANGED, f"changed: {change}") for change in changes]


def longer(config: RunConfig) -> str:
    """The override that doubles the length of a run."""
    training = config.training
    if training.steps is not None:
        return f"training.steps={2 * training.steps}"
    assert training.epochs is not None
    return f"training.epochs={2 * training.epochs}"


@contextmanager
def _owned(folder: Path, lock: Lock | None = None) -> Iterator[None]:
    """Hold the run folder, on rank 0 for all ranks, or refuse on all of them."""
    team = current_team()
    with ExitStack() as stack:
        with team.together():
            if team.is_first and lock is None:
                stack.enter_context(run_lock(folder))
        yield


def load_network(backbone: Backbone, checkpoint: Path, config: RunConfig) -> None:
    """Fill the backbone with what a checkpoint has of the network to use: trained or averaged."""
    part = "backbone." if config.training.average is None else AVERAGED
    tensors = {f"{part}{name}": value for name, value in backbone.state_dict().items()}
    load_tensors(checkpoint, tensors, part=part)


def resolve(config: RunConfig) -> RunConfig:
    """The same config with every option of every choice filled in, under our own names."""
    given = with_start(config)
    if given:
        config = config_from_mapping({**config.model_dump(), **given})
    values = config.model_dump()
    values["data"] = _resolved(config.data, _options("data", SOURCES, config.data))
    if config.open_set is not None:
        strangers = config.open_set.data
        options = _options("open_set.data", STRANGERS, strangers)
        values["open_set"]["data"] = _resolved(strangers, options)
    for key in OPTIONS_OF:
        choice: Choice = getattr(config, key)
        values[key] = _resolved(choice, options_of(key, choice))
    for key in ("sets", "choose_on"):
        values["evaluation"][key] = [
            _resolved(choice, _options("evaluation set", VERIFICATION_SETS, choice))
            for choice in map(_set_by_kind, getattr(config.evaluation, key))
        ]
    resolved = config_from_mapping(values)
    refuse_shared_people(resolved)
    return resolved


def _set_by_kind(choice: Choice) -> Choice:
    """A set that is named by a word, such as lfw.bin, as the kind and the path that it means."""
    kind, options = set_choice(choice.name, choice.options)
    return Choice(name=kind, **options)


def _options(
    kind: str, table: Mapping[str, Callable[..., object]], choice: Choice
) -> dict[str, Any]:
    return resolve_options(kind, choice.name, look_up(kind, table, choice.name), choice.options)


def _resolved(choice: Choice, options: Mapping[str, Any]) -> dict[str, Any]:
    # YAML knows no tuples: a config that is written and read again must be the same.
    plain = {
        key: list(value) if isinstance(value, tuple) else value for key, value in options.items()
    }
    return {"name": choice.name, **plain}


# -- building the stages -------------------------------------------------------------------------


def _build_head(config: RunConfig, *, dim: int, num_classes: int) -> Head:
    # The seed after the backbone's, so that the two do not start from the same numbers.
    team = current_team()
    with torch.random.fork_rng(devices=[]), class_shards(team.rank, team.world):
        torch.manual_seed(config.seed + 1)
        return build_head(config.head.name, dim, num_classes, **config.head.options)


def _build_trainer(
    config: RunConfig,
    folder: Path,
    *,
    events: Events | None,
    watch: Watch,
    checkpoint: Checkpoint | None = None,
) -> Trainer:
    """Everything a training needs; what is wrong with the config is found here, first.

    checkpoint: the last one, where the training is to continue from it
    """
    source = build_training_source(config)
    if config.training.discriminant:
        require_pairs(source.labels)  # now, and not when all the training is done
    backbone = build_backbone(config.backbone.name, seed=config.seed, **config.backbone.options)
    classes = learned_people(config, source.num_classes)
    head = _build_head(config, dim=backbone.embedding_dim, num_classes=classes)
    evaluation, preprocessing = config.evaluation, preprocessing_of(config, backbone.input_size)
    evaluate = _Evaluation(config, preprocessing) if evaluation.sets else None
    is_chosen = evaluation.choose_on or evaluation.set_aside
    choose = _Evaluation(config, preprocessing) if is_chosen else None
    trainer = Trainer(
        backbone,
        head,
        source,
        config,
        run_folder=folder,
        evaluate=evaluate,
        choose=choose,
        events=events,
    )
    if checkpoint is None:
        refuse_long_average(config, steps=trainer.total_steps, per_epoch=trainer.steps_per_epoch)
    else:
        trainer.require_own(checkpoint)
    with watch("preparing the training images") as progress:
        source.prepare(workers=config.training.workers, progress=progress)
    if trainer.team.is_first:
        if evaluate is not None:
            evaluate.sets = build_sets(config, watch=watch)
        if choose is not None:
            choose.sets = build_choice_sets(config, source, watch=watch)
    return trainer


def refuse_long_average(config: RunConfig, *, steps: int, per_epoch: int) -> None:
    """A ValueError for an average over more epochs than a training of so many steps has.

    A config whose length is in epochs is refused where it is read.
    """
    average = config.training.average
    epochs = math.ceil(steps / per_epoch)
    if average is not None and (average.last_epochs or 0) > epochs:
        raise ValueError(
            f"training.average.last_epochs={average.last_epochs} is more than the {epochs} epochs "
            f"of the training ({steps:,} steps of {per_epoch:,} an epoch); give at most that"
        )


def _start(trainer: Trainer, config: RunConfig, watch: Watch) -> list[Notice]:
    """Give a new run the weights that it starts from, if there are any."""
    start = start_weights(
        config,
        trainer.backbone,
        trainer.head,
        trainer.source,
        settings=trainer.state.settings,
        embedder=embedder_of(config, trainer.backbone, trainer.update.preprocessing),
        team=trainer.team,
        watch=watch,
    )
    if start is None:
        return []
    assert config.training.start_from is not None
    # The name alone: config.yaml has the path, which is nothing to who gets the model.
    name = Path(config.training.start_from).name
    trainer.state.start = {"name": name, "sha256": start.digest, "source": start.source}
    return [Notice("start", start.left_behind)] if start.left_behind else []


def _identity(trainer: Trainer) -> dict[str, Any]:
    """What must be the same on all ranks for them to train one model."""
    versions = {f"the version of {name}": value for name, value in installed_versions().items()}
    return {
        **trainer.state.settings,
        **versions,
        "the run folder's name": trainer.last_path.parent.parent.name,
    }


def embedder_of(
    config: RunConfig, backbone: nn.Module, preprocessing: Preprocessing
) -> NetworkEmbedder:
    """A network of a run at its evaluation."""
    return NetworkEmbedder(
        backbone,
        preprocessing,
        flip=config.evaluation.flip,
        workers=max(1, config.training.workers),
        batch_size=config.evaluation.batch_size,
    )


class _Evaluation:
    """The accuracy on every set during the training; rank 0 has the sets, prepared once."""

    def __init__(self, config: RunConfig, preprocessing: Preprocessing) -> None:
        self.config = config
        self.preprocessing = preprocessing
        self.sets: list[VerificationSet] = []

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        embedder = embedder_of(self.config, backbone, self.preprocessing)
        scores = score_sets(embedder, self.sets, digests=False)
        return {row.set_name: row.accuracy for row in measure_all(scores, model="", replicates=0)}


# -- training and what remains of it ---------------------------------------------------------------


def _run(
    trainer: Trainer,
    config: RunConfig,
    folder: Path,
    *,
    resume: bool,
    watch: Watch,
    notices: Sequence[Notice] = (),
) -> TrainingResult:
    """Train, and keep beside the run what was done to its images."""
    source, team = trainer.source, trainer.team
    noisy = layer_of(source, NoisyLabels)
    with team.together():
        if team.is_first:
            if noisy is not None:
                keep_manifest(folder, noisy)
            list_bad_images(folder, bad_images(source))
    try:
        known = [*notices, *_notices(trainer, noisy, folder)]
        result = trainer.run(resume=resume, notices=known)
    finally:
        # Images may turn out to be unreadable only when they are decoded.
        if team.is_first:
            list_bad_images(folder, bad_images(source))
    if not result.interrupted:
        with team.together():
            if team.is_first:
                _export(trainer, config, folder, result, watch)
    return result


def _notices(trainer: Trainer, noisy: NoisyLabels | None, folder: Path) -> list[Notice]:
    """What is to be known of the images before the training starts."""
    source, head = trainer.source, trainer.head
    notes = list(notes_on(source))
    single = int(np.count_nonzero(np.bincount(source.labels[source.labels >= 0]) == 1))
    if single and head.images_per_person > 1:
        have = "has" if single == 1 else "have"
        notes.append(
            f"{single:,} of the {source.num_classes:,} people {have} one image only, which the "
            f"head {trainer.config.head.name} compares with itself: it learns from pairs of a "
            "person's images"
        )
    for judge in (trainer.evaluate, trainer.choose):
        if isinstance(judge, _Evaluation):
            # People who are set aside are of the training data, but not trained on.
            sets = [each for each in judge.sets if each.name != SET_ASIDE]
            notes += notes_on_people(source, sets)
            notes += [note for each in sets for note in notes_on_pairs(each)]
    found = [Notice("data", note) for note in notes]
    if trainer.config.open_set is not None and head.note_on_unknown is not None:
        head.warns_of_unknown = False
        found.append(Notice("open_set", head.note_on_unknown))
    if noisy is not None:
        wrong = noisy.realised_rate
        text = f"label noise: {wrong:.2%} of the labels are wrong, listed in {folder / LABEL_NOISE}"
        found.append(Notice("label_noise", text, {"wrong_labels": wrong}))
    bad = len(bad_images(source))
    if bad:
        what = "1 unreadable image is" if bad == 1 else f"{bad} unreadable images are"
        text = f"{what} passed over, listed in {folder / BAD_IMAGES}"
        found.append(Notice("bad_images", text, {"bad_images": float(bad)}))
    return found


def _export(
    trainer: Trainer, config: RunConfig, folder: Path, result: TrainingResult, watch: Watch
) -> None:
    remove_judgements(folder)
    backbone, training = trainer.backbone, config.training
    load_network(backbone, result.checkpoint, config)
    if training.discriminant:
        with watch("embedding training images to weigh the axes") as progress:
            weigh_axes(backbone, *_axes_images(trainer, config, progress))
    average = training.average
    save_model(
        folder / MODEL,
        backbone,
        name=config.backbone.name,
        options=config.backbone.options,
        preprocessing=trainer.update.preprocessing,
        flip=config.evaluation.flip,
        extra={
            "head": config.head.model_dump(mode="json"),
            # It belongs to cosines before their axes were weighed.
            "head_bias": None if training.discriminant else _head_bias(trainer, result),
            "people": trainer.source.num_classes,
            "steps": result.steps,
            "model_step": asdict(result.model_step),
            **({} if average is None else {"average": average.model_dump(exclude_none=True)}),
            **({"discriminant": True} if training.discriminant else {}),
            **({} if trainer.state.start is None else {"start_from": trainer.state.start}),
        },
    )


def _axes_images(
    trainer: Trainer, config: RunConfig, progress: Progress
) -> tuple[NDArray[np.float32], NDArray[np.integer]]:
    """Embeddings and labels of training images that say what the axes are worth: whole people."""
    labels = trainer.source.labels
    chosen = np.flatnonzero(labels >= 0)
    if len(chosen) > _AXES_IMAGES:
        people = np.random.default_rng(config.seed).permutation(trainer.source.num_classes)
        counts = np.bincount(labels[chosen], minlength=len(people))[people].cumsum()
        some = people[: max(2, int(np.searchsorted(counts, _AXES_IMAGES)))]
        chosen = np.flatnonzero(np.isin(labels, some))
    embedder = embedder_of(config, trainer.backbone, trainer.update.preprocessing)
    faces = Faces(trainer.source, chosen)
    embeddings = embedder.embed(faces, missing="skip", progress=progress)
    is_read = np.isfinite(embeddings).all(axis=1)
    return embeddings[is_read], labels[chosen][is_read]


def _head_bias(trainer: Trainer, result: TrainingResult) -> float | None:
    """The shared bias that belongs to the exported network, where the head has one."""
    bias = getattr(trainer.head, "bias", None)
    if not isinstance(bias, torch.Tensor) or bias.ndim:
        return None
    saved = bias.detach().clone()
    load_tensors(result.checkpoint, {"head.bias": saved}, part="head.bias")
    return float(saved)
