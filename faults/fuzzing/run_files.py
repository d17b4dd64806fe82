"""Runs under test: configs, grids of sweeps, histories, notes, scores and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from faults.fuzzing.parser import Parser, part, write_parts
from sphereface2.config.schema import dump_config, load_config
from sphereface2.evaluation.pair_scores import PairScores, load_scores, save_scores
from sphereface2.evaluation.verification import EvaluationResult, measure_all
from sphereface2.experiments.sweep.plan import seeds_of_text, settings_of_grid
from sphereface2.models.extraction import read_names
from sphereface2.runs.folder import read_changes, read_history

# -- configs ---------------------------------------------------------------------------------------


def _configs(folder: Path) -> list[list[bytes]]:
    whole = dump_config(load_config("quickstart")).encode()
    short = b"base: quickstart\nseed: 3\nhead: {name: sphereface2, margin: 0.3}\n"
    aliases = b"base: small\ndata: &d {name: folder, path: x}\nopen_set: {share: 0.1, data: *d}\n"
    return [
        [whole, b"head.margin=0.2"],
        [short, b"training.epochs=2\noptimizer.learning_rate=0.1"],
        [aliases, b"evaluation.sets.0.name=lfw"],
    ]


def _read_config(folder: Path, parts: Sequence[bytes]) -> None:
    (folder / "a.yaml").write_bytes(part(parts, 0))
    words = part(parts, 1).decode("utf-8", "surrogateescape").split("\n")
    overrides = [word for word in words if word]
    config = load_config(str(folder / "a.yaml"), overrides)
    dump_config(config)


def _grids(folder: Path) -> list[list[bytes]]:
    return [[b"head.margin=0.2,0.3\nhead.sharpness=1,3", b"0,2,5"], [b"head=[a,b],c", b"3"]]


def _read_grid(folder: Path, parts: Sequence[bytes]) -> None:
    words = part(parts, 0).decode("utf-8", "surrogateescape").split("\n")
    settings_of_grid([word for word in words if word])
    seeds_of_text(part(parts, 1).decode("utf-8", "surrogateescape"))


# -- histories, scores and results --


def scored() -> PairScores:
    """Scores to calibrate a model by."""
    count, genuine = 400, 100
    noise = np.random.default_rng(0).normal(size=count)
    same = np.arange(count) < genuine
    return PairScores(
        name="known",
        scores=np.clip(np.where(same, 0.6, 0.0) + 0.1 * noise, -1, 1),
        pairs=np.arange(2 * count).reshape(count, 2),
        same=same,
        folds=np.arange(count) % 10,
        sources=np.full(count, "known"),
        positions=np.arange(count),
    )


def _runs(folder: Path) -> list[list[bytes]]:
    metrics = b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": NaN}\n'
    changes = b'{"key": "seed", "old": 1, "new": 2, "step": 3, "time": "x"}\n'
    note = b'{"format": "sphereface2 embeddings 1", "dim": 4}'
    return [[metrics, changes, note, b"a\tAda\nb\tBen\n"]]


def _read_run(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["metrics.jsonl", "changes.jsonl", "e.json", "e.txt"], parts)
    read_names(folder / "e.npy")
    read_changes(folder)
    read_history(folder)


def _scores(folder: Path) -> list[list[bytes]]:
    save_scores(folder / "scores.npz", [scored()], model="m")
    return [[(folder / "scores.npz").read_bytes()]]


def _read_scores(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["scores.npz"], parts, optional=False)
    load_scores(folder / "scores.npz")


def _results(folder: Path) -> list[list[bytes]]:
    rows = measure_all([scored()], model="m", replicates=10)
    small = replace(rows[0], roc=rows[0].roc.__class__((0.0, 1.0), (0.0, 1.0), (1.0, 0.0)))
    found = EvaluationResult(title="t", rows=(small,), versions={"python": "3"})
    return [[found.to_json().encode()]]


def _read_result(folder: Path, parts: Sequence[bytes]) -> None:
    write_parts(folder, ["result.json"], parts, optional=False)
    EvaluationResult.load(folder / "result.json")


PARSERS = {
    "config": Parser(_configs, _read_config),
    "grid": Parser(_grids, _read_grid),
    "run-folder": Parser(_runs, _read_run),
    "scores": Parser(_scores, _read_scores),
    "result": Parser(_results, _read_result),
}
