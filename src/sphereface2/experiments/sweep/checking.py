"""What only shows when a run is built, found before the first run of a sweep starts."""

from collections.abc import Sequence
from pathlib import Path

import torch

from sphereface2.backbones import Backbone, build_backbone
from sphereface2.config.schema import Choice, RunConfig
from sphereface2.data.mixing import build_training_source
from sphereface2.data.pairs.by_word import sets_of_choice
from sphereface2.data.sources.source import Source
from sphereface2.experiments.sweep.plan import PlannedRun
from sphereface2.heads import build_head
from sphereface2.training.devices import choose_device, choose_precision
from sphereface2.training.trainer import Trainer


def check_buildable(runs: Sequence[PlannedRun]) -> None:
    """A ValueError, with the setting, for the first run that could not even start.

    Nothing is rendered, trained or written. What settings have in common is built once.
    """
    parts = _Parts()
    seen: set[str] = set()
    for run in runs:
        if run.setting.label in seen:
            continue  # its other seeds differ in nothing that could be wrong
        seen.add(run.setting.label)
        try:
            _build(run.config, parts)
        except ValueError as error:
            raise ValueError(f"setting '{run.setting.label}': {error}") from None


class _Parts:
    """What was built for the settings before, by what the config says of it."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self.backbones: dict[str, Backbone] = {}
        self.sets: set[str] = set()

    def source(self, config: RunConfig) -> Source:
        key = repr((config.data, config.label_noise, config.open_set, config.evaluation.set_aside))
        if key not in self.sources:
            self.sources[key] = build_training_source(config)
        return self.sources[key]

    def backbone(self, choice: Choice) -> Backbone:
        if repr(choice) not in self.backbones:
            self.backbones[repr(choice)] = build_backbone(choice.name, seed=0, **choice.options)
        return self.backbones[repr(choice)]

    def check_set(self, choice: Choice, key: str) -> None:
        if repr(choice) not in self.sets:
            sets_of_choice(choice.name, choice.options, key=key)
            self.sets.add(repr(choice))


def _build(config: RunConfig, parts: _Parts) -> None:
    choose_precision(config.precision, choose_device(config.device))
    source, backbone = parts.source(config), parts.backbone(config.backbone)
    for part in ("sets", "choose_on"):
        for number, choice in enumerate(getattr(config.evaluation, part)):
            parts.check_set(choice, f"evaluation.{part}.{number}")
    with torch.random.fork_rng(devices=[]):
        head = build_head(
            config.head.name, backbone.embedding_dim, source.num_classes, **config.head.options
        )
    # On the CPU: GPUs are the workers'.
    here = config.model_copy(update={"device": "cpu", "precision": "float32"})
    Trainer(backbone, head, source, here, run_folder=Path())
