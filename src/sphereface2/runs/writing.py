"""What an evaluation leaves in its folder: the result as JSON, pair scores, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from sphereface2.data.sources.source import Images
from sphereface2.evaluation.pair_scores import SCORES, PairScores, save_scores
from sphereface2.evaluation.protocols.subject import Subject
from sphereface2.evaluation.results import EvaluationResult, installed_versions, note_on_flip
from sphereface2.evaluation.verification import measure_all
from sphereface2.evaluation.views import ProtocolResult
from sphereface2.reporting.pages.protocols import write_protocol_report
from sphereface2.reporting.pages.verification import write_report
from sphereface2.reporting.pictures import ReportPictures, hardest_pairs
from sphereface2.reporting.tables import TableContent
from sphereface2.training.result import ModelStep

RESULT = "result.json"
EVALUATION = "evaluation.json"
REPORT = "report.html"


def write_protocol(
    subject: Subject, result: ProtocolResult, *, published: Sequence[TableContent] = ()
) -> Path:
    """Write a protocol's result and its report, with `published` numbers of others beside ours.

    Returns the path of the report.
    """
    result.save(subject.output / RESULT)
    report = subject.output / REPORT
    write_protocol_report(
        report,
        result,
        title=subject.output.name,
        label=subject.label,
        published=published,
    )
    return report


def write_verification(
    subject: Subject,
    scored: Sequence[PairScores],
    *,
    words: Sequence[str],
    images: Mapping[str, Images],
    history: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> tuple[EvaluationResult, Path]:
    """Measure scored pairs and write result, scores and report.

    words: what the sets were called; images: those of each set, where they are there to be shown
    history: the lines of metrics.jsonl of the model's run, if it has one
    notes: what is odd about the sets
    """
    embedder, flip = subject.embedder, subject.flip_of(subject.embeddings)
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
    result = EvaluationResult(
        title=subject.output.name,
        rows=tuple(measure_all(scored, model=subject.label)),
        versions=installed_versions(),
        config=config,
        model_step=None
        if embedder is None
        else ModelStep.of_model(embedder.model.config.get("extra", {}), history),
        notes=tuple(notes),
    )
    kept = [replace(each, flip=flip) for each in scored]
    save_scores(subject.output / SCORES, kept, model=subject.label)
    result.save(subject.output / EVALUATION)
    report = subject.output / REPORT
    write_report(
        report,
        evaluation=result,
        history=history,
        config_yaml=yaml.safe_dump(config, sort_keys=False),
        pictures=ReportPictures(hardest=hardest_pairs(result, images)),
    )
    return result, report
