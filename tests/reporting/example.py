"""A small evaluation and training history, made up, for the tests of the reporting."""

from functools import cache
from typing import Any

import numpy as np

from sphereface2.evaluation.pair_scores import PairScores
from sphereface2.evaluation.verification import (
    RAW_PIXELS,
    UNTRAINED,
    EvaluationResult,
    VerificationResult,
    measure_all,
)


def scored_set(name: str, *, seed: int, gap: float, count: int = 200) -> PairScores:
    generator = np.random.default_rng(seed)
    same = np.arange(count) % 2 == 0
    scores = np.tanh(0.25 * generator.normal(size=count) + gap * same)
    return PairScores(
        name=name,
        scores=scores,
        pairs=np.stack([np.arange(count) % 12, (np.arange(count) + 1) % 12], axis=1),
        same=same,
        folds=np.arange(count) * 10 // count,
        sources=np.full(count, name),
        positions=np.arange(count),
    )


def example_evaluation(
    *,
    model: str = "sphereface2-c",
    sets: tuple[str, ...] = ("plain", "cross-age"),
    title: str = "quickstart",
    versions: dict[str, str] | None = None,
) -> EvaluationResult:
    labels = ((model, 0.9), (RAW_PIXELS, 0.1), (UNTRAINED, 0.15))
    rows = tuple(row for label, gap in labels for row in _measured(label, gap, sets))
    return EvaluationResult(title=title, rows=rows, versions=versions or {"python": "3.11"})


@cache
def _measured(label: str, gap: float, sets: tuple[str, ...]) -> tuple[VerificationResult, ...]:
    scored = [scored_set(name, seed=i, gap=gap - 0.1 * i) for i, name in enumerate(sets)]
    return tuple(measure_all(scored, model=label, replicates=60))


def example_history() -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for step in range(10, 210, 10):
        lines.append(
            {
                "kind": "train",
                "step": step,
                "epoch": step / 100,
                "loss": 5.0 / step,
                "learning_rate": 0.1 - step / 2100,
                "images_per_second": 300.0,
                "data_wait": 0.01,
                "head": {
                    "bias": 2.0 + step / 100,
                    "positive_score": step / 210,
                    "negative_score": -0.7,
                    "active_negatives": 1 / step,
                },
            }
        )
        if step % 100 == 0:
            metrics = {"plain": 0.8 + step / 2000, "combined": 0.75 + step / 2000}
            lines.append({"kind": "evaluation", "step": step, "epoch": 1, "metrics": metrics})
    return lines
