"""The estimate of a training: what it reads, how long it runs, what it holds and what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from sphereface2.backbones import backbone_options
from sphereface2.config.loading import read_run
from sphereface2.config.schema import REQUIRED, Choice, RunConfig, config_from_mapping
from sphereface2.data.mixing import (
    WithStrangers,
    build_training_source,
    learned_people,
    plan_batches,
)
from sphereface2.data.public_sets import KNOWN_DATA, KnownData, known_data_of
from sphereface2.data.sources.source import Source
from sphereface2.heads import build_head
from sphereface2.runs import probing
from sphereface2.runs.counting import Memory, backbone_cost, checkpoint_bytes, head_cost, memory_of
from sphereface2.runs.probing import Speed
from sphereface2.runs.train import resolve
from sphereface2.training.devices import choose_device, choose_precision
from sphereface2.training.optimizer import Schedule

ASSUMED_PEOPLE = 1000


@dataclass(frozen=True)
class DataNeed:
    """Images that a run reads: what for, from where, and whether they are there."""

    use: str
    source: str
    path: str | None
    """None where the images are made, not read, or where the path is not given yet."""
    found: bool
    problem: str = ""
    """Why they were not found, or nothing."""


@dataclass(frozen=True)
class Estimate:
    """What a run will need; None where that depends on data that are not there."""

    data: tuple[DataNeed, ...]
    images: int | None
    people: int
    counted: str
    """Where the numbers of images and people are from."""
    batch_size: int
    steps: int | None
    steps_per_epoch: int | None
    backbone_parameters: int
    head_parameters: int
    operations_per_image: int
    """Of the backbone's forward pass, multiplications and additions counted apart."""
    memory: Memory
    is_half: bool
    """Whether products, and so the activations, are in half precision."""
    checkpoint_bytes: int
    model_bytes: int
    speed: Speed | None

    @property
    def epochs(self) -> float | None:
        if self.steps is None or self.steps_per_epoch is None:
            return None
        return self.steps / self.steps_per_epoch

    @property
    def image_passes(self) -> int | None:
        """How often an image goes through the network, forth and back."""
        return None if self.steps is None else self.steps * self.batch_size

    @property
    def operations(self) -> int | None:
        """Of the backbone over the whole training: a backward pass costs two forward ones."""
        passes = self.image_passes
        return None if passes is None else 3 * self.operations_per_image * passes

    @property
    def seconds(self) -> float | None:
        """On this machine."""
        if self.speed is None or self.steps is None:
            return None
        return self.steps * self.speed.seconds_per_step


def estimate(
    config: RunConfig,
    *,
    known_data: KnownData | None = None,
    with_speed: bool = True,
    threads: int | None = None,
) -> Estimate:
    """What training as `config` says will need; nothing is trained and nothing is written.

    Images that are there are counted. For those that are not, `known_data` has the numbers.
    Without `with_speed` nothing is timed; `threads` are those that the run will have, as many as
    there are if not given.
    """
    config = resolve(config)
    training, needs = config.training, _needs(config)
    source = None
    if all(need.found for need in needs if need.use in (_TRAINING, _STRANGERS)):
        source = build_training_source(config)
    images, people, counted = _counts(source, known_data, aside=config.evaluation.set_aside)
    learned = learned_people(config, people)
    device = choose_device(config.device)
    dim = backbone_options(config.backbone.name, config.backbone.options)["embedding_dim"]
    network = backbone_cost(config.backbone.name, config.backbone.options)
    head = head_cost(
        config.head.name,
        config.head.options,
        dim=dim,
        people=learned,
        batch_size=training.batch_size,
        device=device,
        is_compiled=training.compile,
    )
    is_half = choose_precision(config.precision, device) is not None
    memory = memory_of(config, network, head, is_half=is_half)
    per_epoch = _steps_per_epoch(config, source, images)
    steps = training.steps
    if steps is None and per_epoch is not None:
        steps = cast(int, training.epochs) * per_epoch
    if steps is not None and per_epoch is not None:
        # Refuses a warm-up that is longer than the training.
        Schedule(config.schedule, config.optimizer.learning_rate, steps, per_epoch)
    return Estimate(
        data=needs,
        images=images,
        people=people,
        counted=counted,
        batch_size=training.batch_size,
        steps=steps,
        steps_per_epoch=per_epoch,
        backbone_parameters=network.parameters,
        head_parameters=head.parameters,
        operations_per_image=network.operations_per_image,
        memory=memory,
        is_half=is_half,
        checkpoint_bytes=checkpoint_bytes(memory),
        model_bytes=network.state_bytes,
        speed=probing.probe(config, people=learned, threads=threads) if with_speed else None,
    )


_TRAINING, _STRANGERS = "training", "strangers"


def _needs(config: RunConfig) -> tuple[DataNeed, ...]:
    found = [_need(_TRAINING, config.data)]
    if config.open_set is not None:
        found.append(_need(_STRANGERS, config.open_set.data))
    found += [_need("verification", choice) for choice in config.evaluation.sets]
    found += [_need("choosing", choice) for choice in config.evaluation.choose_on]
    return tuple(found)


def _need(use: str, choice: Choice) -> DataNeed:
    path = choice.options.get("path")
    if path is None:
        return DataNeed(use, choice.name, None, found=True)
    if path == NOT_GIVEN:
        return DataNeed(use, choice.name, None, found=False, problem="path not given yet")
    if not Path(path).exists():
        return DataNeed(use, choice.name, path, found=False, problem="there is no such path")
    return DataNeed(use, choice.name, path, found=True)


def _counts(
    source: Source | None, known: KnownData | None, *, aside: float
) -> tuple[int | None, int, str]:
    """Images, people, and where these numbers are from; `aside` is the share set aside."""
    without = f", {aside:.0%} of the people set aside" if aside else ""
    if source is not None:
        images = len(source.source if isinstance(source, WithStrangers) else source)
        return images, source.num_classes, f"counted in the data{without}"
    if known is not None:
        people = known.people - round(aside * known.people)
        published = f"{known.title} as published by {known.counted_by}{without}"
        return round((1 - aside) * known.images), people, published
    return None, ASSUMED_PEOPLE, f"not known yet; the head is sized for {ASSUMED_PEOPLE:,} people"


def _steps_per_epoch(config: RunConfig, source: Source | None, images: int | None) -> int | None:
    training = config.training
    if source is not None:
        with torch.random.fork_rng(devices=[]):
            head = build_head(config.head.name, 2, 2, **config.head.options)
        plan = plan_batches(
            source,
            batch_size=training.batch_size,
            images_per_person=head.images_per_person,
            seed=config.seed,
        )
        return plan.steps_per_epoch
    if images is None:
        return None
    share = 0.0 if config.open_set is None else config.open_set.share
    known = training.batch_size - round(share * training.batch_size)
    return max(1, images // max(1, known))


# A config whose data may still be missing: what the user has yet to give is left open.

NOT_GIVEN = "/(not given yet)"
"""Stands in a draft where the recipe has ???; absolute, so that it stays as it is."""


@dataclass(frozen=True)
class DraftConfig:
    """A checked config, and the public set that its recipe is made for."""

    config: RunConfig
    known_data: KnownData | None


def plan_run(source: str | Path, overrides: Sequence[str] = ()) -> DraftConfig:
    """As `load_config`, but values that only the user can know may still be open."""
    values = _opened(read_run(source, overrides))
    known = known_data_of(str(source))
    return DraftConfig(config_from_mapping(values), KNOWN_DATA[known[0]] if known else None)


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        # Without the weights to start from nothing is known of the network.
        return {k: v if k == "start_from" else _opened(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_opened(inner) for inner in value]
    return NOT_GIVEN if value == REQUIRED else value
