"""A run or a model, evaluated or calibrated on sets, and what that leaves in its folder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sphereface2.backbones import Backbone, build_backbone
from sphereface2.config.loading import read_run
from sphereface2.config.schema import RunConfig, dump_config
from sphereface2.data.mixing import build_people
from sphereface2.data.pairs.verification_set import Missing, VerificationSet
from sphereface2.data.sources.source import Source
from sphereface2.data.transforms import preprocessing_of
from sphereface2.evaluation.calibration import FAR_TARGETS, Calibration, calibrate, check_request
from sphereface2.evaluation.pair_scores import SCORES, PairScores, combine, save_scores
from sphereface2.evaluation.protocols.protocol import ProtocolResult
from sphereface2.evaluation.scoring import (
    Subject,
    build_sets,
    find_sets,
    notes_on_saved,
    notes_on_sets,
    prepare_sets,
    score_extracted,
    score_saved,
    score_sets,
)
from sphereface2.evaluation.uncertainty import REPLICATES
from sphereface2.evaluation.verification import (
    RAW_PIXELS,
    UNTRAINED,
    EvaluationResult,
    installed_versions,
    measure_all,
    note_on_flip,
)
from sphereface2.files import require_writable
from sphereface2.models.embedder import Embedder, NetworkEmbedder, PixelEmbedder, offering_to_skip
from sphereface2.models.extraction import open_embedder
from sphereface2.models.folder import LoadedModel, TorchModel, load_model, store_calibration
from sphereface2.reporting.pages.protocols import protocol_page
from sphereface2.reporting.pages.verification import (
    SHEET_COLUMNS,
    SHEET_ROWS,
    ReportPictures,
    hardest_pairs,
    people_sheet,
    verification_page,
)
from sphereface2.reporting.style import ImageArray
from sphereface2.reporting.tables import PublishedTable, TableContent
from sphereface2.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    EVALUATION,
    EVALUATION_OF,
    REPORT,
    read_history,
    run_config,
)
from sphereface2.runs.train import embedder_of, load_network
from sphereface2.training.checkpoint import (
    config_settings,
    differing_settings,
    has_checkpoint,
    load_checkpoint,
)
from sphereface2.training.devices import choose_device
from sphereface2.training.distributed import current_team
from sphereface2.training.result import ModelStep, Which
from sphereface2.workers import Watch, unwatched


@dataclass(frozen=True)
class Evaluated:
    """An evaluation and where it was written."""

    result: EvaluationResult
    report: Path


def evaluate(
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    output: Path | None = None,
    missing: Missing | None = None,
    checkpoint: Which | None = None,
    published: PublishedTable | None = None,
    watch: Watch = unwatched,
) -> Evaluated:
    """Verify unseen people with a run's model and two baselines; write the result and a report.

    `overrides` may change the evaluation, the device and `training.workers`, as
    `evaluation.sets.0.people=50`; the model stays as it was trained.
    `checkpoint` is judged in place of the exported model. `output` is where the result goes, by
    default into the run's own folder, and that of a checkpoint into one of its own: `compare` and
    sweeps take what is in the run folder for the model's. `missing` says for all sets what becomes
    of images that cannot be read. `published` is what others printed for sets of the same names.
    """
    config = run_config(folder, overrides)
    _refuse_another_model(folder, run_config(folder), config)
    own = folder if checkpoint is None else folder / f"{EVALUATION_OF}{checkpoint}"
    place = own if output is None else output
    require_writable(place)
    judged = _judged(folder, config, checkpoint)
    with offering_to_skip():
        sets = build_sets(config, missing=missing, watch=watch)
        result = _measure(judged, config, sets, in_full=True, output=place, watch=watch)
    pictures = replace(
        _contact_sheet(config),
        hardest=hardest_pairs(result, {each.name: each.images for each in sets}),
    )
    page = verification_page(
        result,
        history=read_history(folder),
        config_yaml=dump_config(config),
        pictures=pictures,
        published=published,
    )
    page.write(place / REPORT)
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
        return ReportPictures(contact_sheet=people_sheet(first_people(build_people(config))))
    except (ValueError, OSError, ImportError) as error:
        return ReportPictures(
            no_contact_sheet=f"No contact sheet: the training data cannot be read ({error})."
        )


def first_people(source: Source) -> list[Iterator[ImageArray]]:
    """The images of a contact sheet, person by person, each read when it is asked for."""
    known = [int(label) for label in np.unique(source.labels) if label >= 0]
    return [
        (source[int(index)][0] for index in np.flatnonzero(source.labels == label)[:SHEET_COLUMNS])
        for label in known[:SHEET_ROWS]
    ]


def measure(folder: Path, *, watch: Watch = unwatched) -> EvaluationResult:
    """What a run's model reaches on its sets, written as `evaluate` does, but nothing else.

    Without the baselines, the intervals and the report, which the many runs of a sweep do not
    need.
    """
    config = run_config(folder)
    judged, sets = _judged(folder, config, None), build_sets(config, watch=watch)
    return _measure(judged, config, sets, in_full=False, output=folder, watch=watch)


_Judged = tuple[str, LoadedModel, ModelStep | None]  # its title, and its step of the training


def _judged(folder: Path, config: RunConfig, which: Which | None) -> _Judged:
    """What a run has exported, or one of its checkpoints."""
    title = folder.resolve().name
    if which is None:
        model = load_model(folder)
        step = ModelStep.of_model(model.config.get("extra", {}), read_history(folder))
        return title, model, step
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
        step = newer.best_of(newer.step, step=saved.step)
    backbone = _untrained(config)
    load_network(backbone, path, config)
    model = TorchModel(
        config.backbone.name,
        preprocessing_of(config, backbone.input_size),
        config={},
        flip=run_config(folder).evaluation.flip,
        network=backbone,
        options=config.backbone.options,
    )
    return f"{title}, its {which} checkpoint", model, step


def _planned_steps(folder: Path, config: RunConfig) -> int:
    """How long a run is to be, its epochs by what it logged; 0 where that is not known."""
    steps, epochs = config.training.steps, config.training.epochs
    lines = [line for line in read_history(folder) if line.get("kind") == "train"]
    if epochs is not None and lines:
        steps = round(epochs * lines[-1]["step"] / lines[-1]["epoch"])
    return steps or 0


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
    title, model, step = judged
    device, own = choose_device(config.device), config.head.name

    def network(backbone: Backbone) -> NetworkEmbedder:
        return embedder_of(config, backbone.to(device), model.preprocessing)

    embedders: dict[str, Embedder] = {own: network(model.backbone)}
    if in_full:
        embedders[RAW_PIXELS] = PixelEmbedder(model.preprocessing.input_size)
        embedders[UNTRAINED] = network(_untrained(config))
    scored = {
        label: score_sets(embedder, sets, watch=watch, digests=label == own)
        for label, embedder in embedders.items()
    }
    return _measured(
        scored,
        output,
        title=title,
        flip=config.evaluation.flip,
        config=config.model_dump(mode="json"),
        step=step,
        notes=[
            *note_on_flip(config.evaluation.flip, model.flip),
            *notes_on_sets(sets, data=config.data.options),
        ],
        replicates=REPLICATES if in_full else 0,
    )


def _untrained(config: RunConfig) -> Backbone:
    """The network as it was before its first step."""
    return build_backbone(config.backbone.name, seed=config.seed, **config.backbone.options)


def evaluate_on(
    subject: Subject,
    words: Sequence[str],
    *,
    root: Path | None = None,
    published: PublishedTable | None = None,
) -> Evaluated | None:
    """Verify with a model or saved embeddings on the sets that `words` name.

    To be called by all ranks; None on all but the first. `root` is where the images of lists lie,
    `published` what others printed for sets of the same names.
    """
    embedder, flip = subject.embedder, subject.flip_of(subject.embeddings)
    sets: list[VerificationSet] = []
    scored: list[PairScores] | None
    if subject.embeddings is not None:
        scored, notes = score_saved(subject, words), notes_on_saved(words)
    else:
        assert embedder is not None
        with current_team().together():
            sets = find_sets(words, root=root, missing=subject.missing)
        scored = score_extracted(embedder, sets, folder=subject.output / "embeddings")
        notes = notes_on_sets(sets, data=_trained_on(embedder.folder.parent))
    if scored is None:
        return None
    history = [] if embedder is None else read_history(embedder.folder.parent)
    if embedder is not None and flip is not None:
        notes = [*note_on_flip(flip, embedder.model.flip), *notes]
    described = {
        "sets": list(words),
        "flip": flip,
        "model": None if embedder is None else str(embedder.folder),
        "weights": None if embedder is None else embedder.digest,
        "embeddings": None if subject.embeddings is None else str(subject.embeddings),
    }
    config = {key: value for key, value in described.items() if value is not None}
    with subject.watch("measuring"):
        result = _measured(
            {subject.label: scored},
            subject.output,
            title=subject.output.name,
            flip=flip,
            config=config,
            step=None
            if embedder is None
            else ModelStep.of_model(embedder.model.config.get("extra", {}), history),
            notes=notes,
        )
        report = subject.output / REPORT
        page = verification_page(
            result,
            history=history,
            config_yaml=yaml.safe_dump(config, sort_keys=False),
            pictures=ReportPictures(
                hardest=hardest_pairs(result, {each.name: each.images for each in sets})
            ),
            published=published,
        )
        page.write(report)
    return Evaluated(result, report)


def _trained_on(run: Path) -> dict[str, Any] | None:
    """The `data` of the run that a model belongs to, if it has a config that can be read.

    As it stands there: a config of another version is not checked for the sake of a note.
    """
    try:
        data = read_run(run / CONFIG).get("data") if (run / CONFIG).is_file() else None
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _measured(
    scored: Mapping[str, Sequence[PairScores]],
    output: Path,
    *,
    title: str,
    flip: bool | None,
    config: Mapping[str, Any],
    step: ModelStep | None,
    notes: Sequence[str],
    replicates: int = REPLICATES,
) -> EvaluationResult:
    """Measure scored pairs by label, and keep the result and the first label's scores."""
    rows = [
        row
        for label, sets in scored.items()
        for row in measure_all(sets, model=label, replicates=replicates)
    ]
    result = EvaluationResult(
        title=title,
        rows=tuple(rows),
        versions=installed_versions(),
        config=config,
        model_step=step,
        notes=tuple(notes),
    )
    # Kept so that runs can be compared pair by pair without their models.
    own = [replace(each, flip=flip) for each in scored[result.model]]
    save_scores(output / SCORES, own, model=result.model)
    result.save(output / EVALUATION)  # last: where it is, all is
    return result


def write_protocol(
    subject: Subject, result: ProtocolResult, *, published: Sequence[TableContent] = ()
) -> Path:
    """Write a protocol's result and its report, with `published` numbers of others beside ours.

    Returns the path of the report.
    """
    result.save(subject.output / "result.json")
    report = subject.output / REPORT
    title, label = subject.output.name, subject.label
    protocol_page(result, title=title, label=label, published=published).write(report)
    return report


# -- calibration -----------------------------------------------------------------------------------


def calibrate_model(
    folder: Path,
    sets: Sequence[VerificationSet],
    *,
    far_targets: Sequence[float] = FAR_TARGETS,
    prior: float = 0.5,
    flip: bool | None = None,
    workers: int = 1,
    device: str = "cpu",
    history: Sequence[Mapping[str, Any]] = (),
    watch: Watch = unwatched,
) -> Calibration:
    """Calibrate the model in `folder` on the sets, pooled if there are several, and store it there.

    `flip` is by default what the folder says. `workers` threads read the images, or processes
    render them. `history` are the lines of the run's metrics.jsonl, where the bias of a model is
    looked up whose folder does not have it.
    """
    check_request(far_targets, prior)
    embedder = open_embedder(folder, flip=flip, workers=workers, device=device)
    with offering_to_skip():
        prepare_sets(sets, workers=workers, watch=watch)
        scored = score_sets(embedder, sets, watch=watch)
    with watch("calibrating"):
        calibration = calibrate(
            scored[0] if len(scored) == 1 else combine(scored),
            model=embedder.digest,
            flip=embedder.flip,
            far_targets=far_targets,
            prior=prior,
            bias=learned_bias(embedder.model.config.get("extra", {}), history),
        )
    store_calibration(folder, calibration.to_mapping())
    return calibration


def learned_bias(
    extra: Mapping[str, Any], history: Sequence[Mapping[str, Any]] = ()
) -> tuple[float, float, float] | None:
    """(b, r, t) of the SphereFace2 head that a model was trained with, or None.

    b is `head_bias` of the model folder, or else the last one logged up to the step of the model.
    A model whose axes were weighed (`training.discriminant`) has other cosines than the head saw.
    """
    head = None if extra.get("discriminant") else extra.get("head")
    if not isinstance(head, Mapping) or not str(head.get("name", "")).startswith("sphereface2"):
        return None
    bias = extra.get("head_bias")
    if bias is None:
        step = ModelStep.of_model(extra, history)
        for line in history:
            is_later = step is not None and line.get("step", 0) > step.step
            if line.get("kind") == "train" and not is_later:
                bias = (line.get("head") or {}).get("bias", bias)
    radius, sharpness = head.get("radius"), head.get("sharpness")
    if bias is None or radius is None or sharpness is None:
        return None
    return float(bias), float(radius), float(sharpness)
