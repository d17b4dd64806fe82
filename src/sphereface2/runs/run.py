"""A run from its config to its report: the one place where all stages meet.

A run folder holds config.yaml (resolved: it can start the same run again), metrics.jsonl,
changes.jsonl (where a resumed run was changed), checkpoints/, model/ (what training exports),
evaluation.json, scores.npz and report.html; where labels were made wrong label_noise.csv, and
where images were passed over bad_images.txt.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sphereface2.backbones import Backbone, backbone_options, build_backbone
from sphereface2.backbones.preprocessing import Preprocessing
from sphereface2.config.schema import Choice, RunConfig, config_from_mapping, dump_config
from sphereface2.data.mixing import (
    STRANGERS,
    NoisyLabels,
    build_people,
    build_training_source,
    noise_of,
)
from sphereface2.data.pairs import VERIFICATION_SETS
from sphereface2.data.pairs.by_word import set_choice
from sphereface2.data.pairs.checks import notes_on_pairs, notes_on_people, notes_on_trained
from sphereface2.data.pairs.set_aside import NAME as SET_ASIDE
from sphereface2.data.pairs.verification_set import Missing, VerificationSet
from sphereface2.data.sources import SOURCES
from sphereface2.data.sources.source import bad_images, images_digest, notes_on
from sphereface2.evaluation.bootstrap import REPLICATES
from sphereface2.evaluation.pair_scores import SCORES, save_scores
from sphereface2.evaluation.results import (
    RAW_PIXELS,
    UNTRAINED,
    EvaluationResult,
    installed_versions,
    note_on_flip,
)
from sphereface2.evaluation.verification import measure_all
from sphereface2.files import Lock, require_writable, write_atomically
from sphereface2.heads import Head, build_head, head_options
from sphereface2.heads.sharding import class_shards
from sphereface2.models.embedding import SKIP, MissingImageError
from sphereface2.models.folder import LoadedModel, load_model, save_model
from sphereface2.registry import look_up, resolve_options
from sphereface2.reporting.pages.verification import CHANGED, write_report
from sphereface2.reporting.pictures import ReportPictures, hardest_pairs, people_sheet
from sphereface2.runs.folder import (
    BAD_IMAGES,
    CHECKPOINTS,
    CONFIG,
    EVALUATION,
    EVALUATION_OF,
    LABEL_NOISE,
    MODEL,
    REPORT,
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
from sphereface2.runs.scoring import (
    Watch,
    build_choice_sets,
    build_sets,
    network_scores,
    pixel_scores,
    refuse_shared_people,
    score_sets,
    unwatched,
)
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
from sphereface2.training.devices import choose_device
from sphereface2.training.distributed import current_team
from sphereface2.training.events import Events, Notice
from sphereface2.training.result import ModelStep, TrainingResult, Which
from sphereface2.training.trainer import Trainer


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
    """Train as `config` says and export a model; nothing is written before all is built.

    The model is the last step, or the best one on the sets of `evaluation.choose_on` and the
    people of `evaluation.set_aside`.

    The folder is locked until the end: a LockedError if another process trains there. Where a
    process group is up (`training.distributed.joined`), all ranks train together.
    """
    team = current_team()
    with team.together():
        config = resolve(config)
        if team.is_first:
            refuse_data_folder(folder, config)
            require_writable(folder)
    with _owned(folder):
        with team.together():
            if team.is_first:
                (refuse_foreign_folder if overwrite else refuse_used_folder)(folder)
            trainer = _build_trainer(config, folder, events=events, watch=watch)
        team.require_same(_identity(trainer))
        with team.together():
            if team.is_first:
                if overwrite:
                    remove_products(folder)
                # First, so that whatever has our config is known as a run of ours.
                (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
                write_atomically(folder / CONFIG, dump_config(config))
        return _run(trainer, config, folder, resume=False)


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
        is_over = checkpoint is not None and _is_over(folder, checkpoint, changes)
        if checkpoint is not None and is_over:
            _refuse_idle_changes(folder, config, checkpoint, changes)
            # No checkpoint follows that has what was changed since: the run's own list has.
            known = {entry["key"]: entry["new"] for entry in read_changes(folder)}
            before = {**checkpoint.settings, **known}
            changes = differing_settings(before, config_settings(config))
            if not any(change.names_images for change in changes):
                return _left_as_it_is(folder, config, checkpoint, changes, events)
        with team.together():
            trainer = _build_trainer(
                config, folder, events=events, watch=watch, checkpoint=checkpoint
            )
        team.require_same(_identity(trainer))
        if checkpoint is not None and is_over:
            return _left_as_it_is(folder, config, checkpoint, changes, events)
        step = 0 if checkpoint is None else checkpoint.step
        with team.together():
            if team.is_first:
                change_config(folder, config, changes, step=step)
        notices = _told(changes)
        if checkpoint is None and read_history(folder):
            text = f"there is no checkpoint in {folder / CHECKPOINTS}: the run starts again"
            notices.append(Notice("restart", text))
        return _run(trainer, config, folder, resume=checkpoint is not None, notices=notices)


def _is_over(folder: Path, checkpoint: Checkpoint, changes: Sequence[Change]) -> bool:
    """Whether nothing is left to do: trained, evaluated, exported, and not to be longer."""
    is_longer = any(change.changes_length for change in changes)
    is_done = checkpoint.finished and not is_longer
    return current_team().from_first(lambda: is_done and is_exported(folder, steps=checkpoint.step))


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


def _left_as_it_is(
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
            for notice in _told(changes):
                (events or Events()).noticed(notice)
    best, last = (folder / CHECKPOINTS / name for name in ("best", "last"))
    step = ModelStep("last", checkpoint.step, checkpoint.step)
    if checkpoint.own_sets and checkpoint.best_step is not None:
        step = _best_step(checkpoint, step=checkpoint.best_step, steps=checkpoint.step)
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


def _told(changes: Sequence[Change]) -> list[Notice]:
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


def evaluate(
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    output: Path | None = None,
    missing: Missing | None = None,
    checkpoint: Which | None = None,
    watch: Watch = unwatched,
) -> Evaluated:
    """Verify unseen people with a run's model and two baselines; write the result and a report.

    `overrides` may change the evaluation, the device and `training.workers`, as
    `evaluation.sets.0.people=50`; the model stays as it was trained.
    `checkpoint` is judged in place of the exported model. `output` is where the result goes, by
    default into the run's own folder, and that of a checkpoint into one of its own: `compare` and
    sweeps take what is in the run folder for the model's. `missing` says for all sets what becomes
    of images that cannot be read.
    """
    config = run_config(folder, overrides)
    _refuse_another_model(folder, run_config(folder), config)
    own = folder if checkpoint is None else folder / f"{EVALUATION_OF}{checkpoint}"
    place = own if output is None else output
    require_writable(place)
    judged = _judged(folder, config, checkpoint)
    try:
        sets = build_sets(config, missing=missing, watch=watch)
        result = _measure(judged, config, sets, in_full=True, output=place, watch=watch)
    except MissingImageError as error:
        raise MissingImageError(f"{error}; {SKIP}") from None
    pictures = replace(
        _contact_sheet(config),
        hardest=hardest_pairs(result, {each.name: each.images for each in sets}),
    )
    write_report(
        place / REPORT,
        evaluation=result,
        history=read_history(folder),
        config_yaml=dump_config(config),
        pictures=pictures,
    )
    return Evaluated(result, place / REPORT)


def _refuse_another_model(folder: Path, trained: RunConfig, judged: RunConfig) -> None:
    """A ValueError for a change that only a training could follow."""
    for change in differing_settings(config_settings(trained), config_settings(judged)):
        is_of_model = change.key.startswith(("evaluation.choose_on", "evaluation.set_aside"))
        if is_of_model or not change.key.startswith(("evaluation.", "device", "training.workers")):
            raise ValueError(
                f"{change} is not for evaluate: the model of {folder} stays as it was trained; "
                "evaluation.sets, evaluation.flip, evaluation.batch_size, device and "
                "training.workers may be changed"
            )


def _contact_sheet(config: RunConfig) -> ReportPictures:
    """People of the training data, which may have moved: they are not needed to judge a model."""
    try:
        return ReportPictures(contact_sheet=people_sheet(build_people(config)))
    except (ValueError, OSError, ImportError) as error:
        return ReportPictures(
            no_contact_sheet=f"No contact sheet: the training data cannot be read ({error})."
        )


def measure(folder: Path, *, watch: Watch = unwatched) -> EvaluationResult:
    """What a run's model reaches on its sets, written as `evaluate` does, but nothing else.

    Without the baselines, the intervals and the report, which the many runs of a sweep do not
    need.
    """
    config = run_config(folder)
    judged, sets = _judged(folder, config, None), build_sets(config, watch=watch)
    return _measure(judged, config, sets, in_full=False, output=folder, watch=watch)


@dataclass(frozen=True)
class _Judged:
    """A network of a run, and which step of the training it is."""

    title: str
    model: LoadedModel
    step: ModelStep | None


def _judged(folder: Path, config: RunConfig, which: Which | None) -> _Judged:
    """What a run has exported, or one of its checkpoints."""
    title = folder.resolve().name
    if which is None:
        model = load_model(folder)
        step = ModelStep.of_model(model.config.get("extra", {}), read_history(folder))
        return _Judged(title, model, step)
    path, last = (folder / CHECKPOINTS / name for name in (which, "last"))
    if not has_checkpoint(path):
        why = "it was not evaluated during its training" if which == "best" else "train it first"
        raise FileNotFoundError(f"{folder} has no checkpoint '{which}': {why}")
    saved = load_checkpoint(path)
    steps = saved.step if saved.finished else _planned_steps(folder, config)
    step = ModelStep("last", saved.step, steps)
    if which == "best":
        final = load_checkpoint(last) if has_checkpoint(last) else saved
        # Killed in between, a run has a best checkpoint that is ahead of its last one.
        newer = saved if saved.step > final.step else final
        step = _best_step(newer, step=saved.step, steps=newer.step)
    backbone = _untrained(config)
    load_tensors(path, _backbone_tensors(backbone), part="backbone.")
    model = LoadedModel(
        backbone,
        config.backbone.name,
        config.backbone.options,
        Preprocessing(backbone.input_size),
        config={},
        flip=run_config(folder).evaluation.flip,
    )
    return _Judged(f"{title}, its {which} checkpoint", model, step)


def _planned_steps(folder: Path, config: RunConfig) -> int:
    """How long a run is to be, its epochs by what it logged; 0 where that is not known."""
    steps, epochs = config.training.steps, config.training.epochs
    lines = [line for line in read_history(folder) if line.get("kind") == "train"]
    if epochs is not None and lines:
        steps = round(epochs * lines[-1]["step"] / lines[-1]["epoch"])
    return steps or 0


def _best_step(checkpoint: Checkpoint, *, step: int, steps: int) -> ModelStep:
    return ModelStep(
        "best",
        step,
        steps,
        checkpoint.evaluations,
        tuple(checkpoint.judged_on),
        own_sets=checkpoint.own_sets,
        accuracy=checkpoint.best_metric,
    )


def _backbone_tensors(backbone: Backbone) -> dict[str, torch.Tensor]:
    return {f"backbone.{name}": value for name, value in backbone.state_dict().items()}


def notes_on_sets(config: RunConfig | None, sets: Sequence[VerificationSet]) -> list[str]:
    """What is odd about sets, also in view of what a config trained on."""
    notes = [note for each in sets for note in notes_on_pairs(each)]
    path = None if config is None else config.data.options.get("path")
    return notes if path is None else [*notes_on_trained(Path(str(path)), sets), *notes]


def _measure(
    judged: _Judged,
    config: RunConfig,
    sets: Sequence[VerificationSet],
    *,
    in_full: bool,
    output: Path,
    watch: Watch,
) -> EvaluationResult:
    """Score the sets, and keep the result and the scores of the run's own network in `output`."""
    model = judged.model
    device = choose_device(config.device)
    labelled = {
        config.head.name: network_scores(model.backbone, model, sets, config, device, watch)
    }
    if in_full:
        labelled[RAW_PIXELS] = pixel_scores(model.preprocessing, sets, watch)
        labelled[UNTRAINED] = network_scores(_untrained(config), model, sets, config, device, watch)
    replicates = REPLICATES if in_full else 0
    rows = [
        row
        for label, scores in labelled.items()
        for row in measure_all(scores, model=label, replicates=replicates)
    ]
    result = EvaluationResult(
        title=judged.title,
        rows=tuple(rows),
        versions=installed_versions(),
        config=config.model_dump(mode="json"),
        model_step=judged.step,
        notes=(
            *note_on_flip(config.evaluation.flip, model.flip),
            *notes_on_sets(config, sets),
        ),
    )
    # Kept so that runs can be compared pair by pair without their models.
    subject = [
        replace(scored, images=images_digest(each.images), flip=config.evaluation.flip)
        for scored, each in zip(labelled[config.head.name], sets, strict=True)
    ]
    save_scores(output / SCORES, subject, model=config.head.name)
    result.save(output / EVALUATION)  # last: where it is, all is
    return result


def resolve(config: RunConfig) -> RunConfig:
    """The same config with every option of every choice filled in, under our own names."""
    values = config.model_dump()
    values["data"] = _resolved(config.data, _options("data", SOURCES, config.data))
    if config.open_set is not None:
        strangers = config.open_set.data
        options = _options("open_set.data", STRANGERS, strangers)
        values["open_set"]["data"] = _resolved(strangers, options)
    values["backbone"] = _resolved(
        config.backbone, backbone_options(config.backbone.name, config.backbone.options)
    )
    values["head"] = _resolved(config.head, head_options(config.head.name, config.head.options))
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
    return {"name": choice.name, **options}


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
    backbone = build_backbone(config.backbone.name, seed=config.seed, **config.backbone.options)
    head = _build_head(config, dim=backbone.embedding_dim, num_classes=source.num_classes)
    evaluation, preprocessing = config.evaluation, Preprocessing(backbone.input_size)
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
    if checkpoint is not None:
        trainer.require_own(checkpoint)
    with watch("preparing the training images") as progress:
        source.prepare(workers=config.training.workers, progress=progress)
    if trainer.team.is_first:
        if evaluate is not None:
            evaluate.sets = build_sets(config, watch=watch)
        if choose is not None:
            choose.sets = build_choice_sets(config, source, watch=watch)
    return trainer


def _identity(trainer: Trainer) -> dict[str, Any]:
    """What must be the same on all ranks for them to train one model."""
    versions = {f"the version of {name}": value for name, value in installed_versions().items()}
    return {
        **trainer.state.settings,
        **versions,
        "the run folder's name": trainer.last_path.parent.parent.name,
    }


class _Evaluation:
    """The accuracy on every set during the training; rank 0 has the sets, prepared once."""

    def __init__(self, config: RunConfig, preprocessing: Preprocessing) -> None:
        self.config = config
        self.preprocessing = preprocessing
        self.sets: list[VerificationSet] = []

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        scores = score_sets(backbone, self.preprocessing, self.sets, self.config, None, unwatched)
        return {row.set_name: row.accuracy for row in measure_all(scores, model="", replicates=0)}


def _untrained(config: RunConfig) -> Backbone:
    """The network as it was before its first step."""
    return build_backbone(config.backbone.name, seed=config.seed, **config.backbone.options)


# -- training and what remains of it ---------------------------------------------------------------


def _run(
    trainer: Trainer,
    config: RunConfig,
    folder: Path,
    *,
    resume: bool,
    notices: Sequence[Notice] = (),
) -> TrainingResult:
    """Train, and keep beside the run what was done to its images."""
    source, team = trainer.source, trainer.team
    noisy = noise_of(source)
    with team.together():
        if team.is_first:
            if noisy is not None:
                keep_manifest(folder, noisy)
            list_bad_images(folder, bad_images(source))
    try:
        told = [*notices, *_notices(trainer, noisy, folder)]
        result = trainer.run(resume=resume, notices=told)
    finally:
        # Images may turn out to be unreadable only when they are decoded.
        if team.is_first:
            list_bad_images(folder, bad_images(source))
    return _finish(trainer, config, folder, result)


def _notices(trainer: Trainer, noisy: NoisyLabels | None, folder: Path) -> list[Notice]:
    """What is to be known of the images before the training starts."""
    source, head = trainer.source, trainer.head
    notes = list(notes_on(source))
    single = int(np.count_nonzero(np.bincount(source.labels[source.labels >= 0]) == 1))
    if single and head.images_per_person > 1:
        of = (
            f"1 of the {source.num_classes:,} people has"
            if single == 1
            else (f"{single:,} of the {source.num_classes:,} people have")
        )
        notes.append(
            f"{of} one image only, which the head {trainer.config.head.name} compares with itself: "
            "it learns from pairs of a person's images"
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


def _finish(
    trainer: Trainer, config: RunConfig, folder: Path, result: TrainingResult
) -> TrainingResult:
    """Export the network of a training that came to its end."""
    if result.interrupted:
        return result
    with trainer.team.together():
        if trainer.team.is_first:
            _export(trainer, config, folder, result)
    return result


def _export(trainer: Trainer, config: RunConfig, folder: Path, result: TrainingResult) -> None:
    remove_judgements(folder)
    backbone = trainer.backbone
    load_tensors(result.checkpoint, _backbone_tensors(backbone), part="backbone.")
    save_model(
        folder / MODEL,
        backbone,
        name=config.backbone.name,
        options=config.backbone.options,
        preprocessing=trainer.update.preprocessing,
        flip=config.evaluation.flip,
        extra={
            "head": config.head.model_dump(mode="json"),
            "head_bias": _head_bias(trainer, result),
            "people": trainer.head.num_classes,
            "steps": result.steps,
            "model_step": asdict(result.model_step),
        },
    )


def _head_bias(trainer: Trainer, result: TrainingResult) -> float | None:
    """The shared bias that belongs to the exported network, where the head has one."""
    bias = getattr(trainer.head, "bias", None)
    if not isinstance(bias, torch.Tensor) or bias.ndim:
        return None
    saved = bias.detach().clone()
    load_tensors(result.checkpoint, {"head.bias": saved}, part="head.bias")
    return float(saved)
