"""Runs that take a moment: grey noise of a few people, a small network, a list of pairs."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sphereface2.config.schema import RunConfig
from sphereface2.experiments.sweep.plan import Setting, Sweep, plan_sweep
from sphereface2.experiments.sweep.store import write_config
from sphereface2.runs.folder import EVALUATION
from tests.reporting.example import example_evaluation

RECIPE = """
data: {{name: folder, path: {folder}}}
backbone: {{name: sfnet4, width: 4, input_size: 16, embedding_dim: 8, batch_norm: true}}
head: {{name: sphereface2-c}}
training:
  {{steps: 2, batch_size: 8, workers: 0, evaluate_every: 100, checkpoint_every: 100,
   checkpoint_every_steps: 4}}
optimizer: {{learning_rate: 0.01}}
schedule: {{name: constant}}
evaluation: {{sets: [{{name: pairs, path: {pairs}}}]}}
device: cpu
"""


def write_recipe(folder: Path) -> Path:
    """A recipe with all that it needs, in a folder."""
    generator = np.random.default_rng(0)
    images = [f"person{person}/{number}.png" for person in range(4) for number in range(4)]
    for name in images:
        path = folder / "people" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        cv2.imwrite(str(path), pixels)
    lines = [
        f"people/{a} people/{b} {int(a[:7] == b[:7])}"
        for index, a in enumerate(images)
        for b in (images[index - index % 4 + (index + 1) % 4], images[index - 4])
    ]
    (folder / "pairs.txt").write_text("\n".join(lines) + "\n")
    recipe = folder / "tiny.yaml"
    recipe.write_text(RECIPE.format(folder=folder / "people", pairs=folder / "pairs.txt"))
    return recipe


def tiny_sweep(recipe: Path, *overrides: str, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """A sweep with a setting for each override."""
    settings = tuple(Setting(override, (override,)) for override in overrides)
    return Sweep("tiny", "Tiny", str(recipe), settings, seeds)


def pretend_done(sweep: Sweep, runs: Path) -> None:
    """Run folders as the workers leave them, with made-up numbers."""
    for run in plan_sweep(sweep):
        write_config(runs / run.name, run)
        pretend_evaluated(runs / run.name, run.config)


def pretend_evaluated(folder: Path, config: RunConfig) -> None:
    result = {**_made_up(config.head.name), "config": config.model_dump(mode="json")}
    (folder / EVALUATION).write_text(json.dumps(result))


@cache
def _made_up(model: str) -> dict[str, Any]:
    return asdict(example_evaluation(model=model))
