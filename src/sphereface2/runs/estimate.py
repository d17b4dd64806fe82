"""The estimate of a training: what it reads, how long it runs, what it holds and what it leaves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from sphereface2.backbones import backbone_options, build_backbone, outline_backbone
from sphereface2.backbones.backbone import Backbone
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
from sphereface2.data.transforms import Preprocessing
from sphereface2.heads import Head, build_head
from sphereface2.runs.counting import Memory, backbone_cost, checkpoint_bytes, head_cost, memory_of
from sphereface2.runs.train import refuse_long_average, resolve
from sphereface2.training.devices import choose_device, choose_precision
from sphereface2.training.optimizer import (
    Schedule,
    build_fused_sgd,
    build_optimizer,
    moved_by_head,
)
from sphereface2.training.step import fit_head

ASSUMED_PEOPLE = 1000


@dataclass(frozen=True)
class DataNeed:
    """Images that a run reads: what for, from where, and whether they are there."""

    use: str
    source: str
    path: str | None
    """None where the images are made, not read, or where the path is not given yet."""
    problem: str = ""
    """Why they were not found, or nothing."""

    @property
    def found(self) -> bool:
        return not self.problem


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
        refuse_long_average(config, steps=steps, per_epoch=per_epoch)
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
        speed=probe(config, people=learned, threads=threads) if with_speed else None,
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
    if path == NOT_GIVEN:
        return DataNeed(use, choice.name, None, "path not given yet")
    is_there = path is None or Path(path).exists()
    return DataNeed(use, choice.name, path, "" if is_there else "there is no such path")


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


def plan_run(
    source: str | Path, overrides: Sequence[str] = ()
) -> tuple[RunConfig, KnownData | None]:
    """As `load_config`, but values that only the user can know may still be open.

    With the public set that the recipe is made for, if it is made for one.
    """
    known = known_data_of(str(source))
    config = config_from_mapping(_opened(read_run(source, overrides)))
    return config, KNOWN_DATA[known[0]] if known else None


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        # Without the weights to start from nothing is known of the network.
        return {k: v if k == "start_from" else _opened(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_opened(inner) for inner in value]
    return NOT_GIVEN if value == REQUIRED else value


# -- how fast this machine trains, from a few seconds of it on random images -----------------------

_FEW, _MANY = 2048, 8192  # people for whom the head is timed; more are extrapolated
_LARGEST, _LARGEST_ON_CPU = 256, 32  # images at a time; small batches do not fill a GPU
_IDLE_SHARE = 0.7  # of a core that a probe gets on a machine that has nothing else to do


@dataclass(frozen=True)
class Speed:
    """A step on this machine; reading the images and evaluating come on top."""

    backbone_seconds: float
    head_seconds: float
    update_seconds: float
    batch_size: int
    how: str

    @property
    def seconds_per_step(self) -> float:
        return self.backbone_seconds + self.head_seconds + self.update_seconds

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.seconds_per_step


def probe(
    config: RunConfig, *, people: int, seconds: float = 4.0, threads: int | None = None
) -> Speed:
    """Time the parts of a step for about `seconds`, and put them together for a whole batch.

    The time of the backbone grows with the images and that of the head with the people, so few of
    both are enough. `threads` are torch's own if not given. Random numbers and threads outside
    stay as they were.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        return _probe(config, people=people, seconds=seconds)
    finally:
        torch.set_num_threads(before)


def _probe(config: RunConfig, *, people: int, seconds: float) -> Speed:
    began, worked = time.perf_counter(), time.process_time()
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device)
    training = config.training
    backbone = build_backbone(config.backbone.name, seed=config.seed, **config.backbone.options)
    backbone.to(device).train()
    largest = _LARGEST_ON_CPU if device.type == "cpu" else _LARGEST
    largest = min(training.batch_size // training.accumulate, largest)
    count, each = _backbone_seconds(backbone, largest, device, precision, seconds)
    if training.accumulate > 1:
        each *= 4 / 3  # the forward pass runs twice
    optimizer = build_optimizer(backbone, nn.Identity(), config.optimizer, precision=precision)
    update = _fastest(lambda: _finish(device, optimizer.step), seconds / 8)
    head = _head_seconds(config, backbone.embedding_dim, people, device, precision, seconds / 8)
    threads = torch.get_num_threads()
    where = (
        f"{device} with {threads} thread{'s' * (threads > 1)}"
        if device.type == "cpu"
        else (torch.cuda.get_device_name(device) if device.type == "cuda" else str(device))
    )
    share = (time.process_time() - worked) / (time.perf_counter() - began)
    busy = "; other programs kept the machine busy meanwhile" if share < _IDLE_SHARE else ""
    return Speed(
        backbone_seconds=each * training.batch_size,
        head_seconds=head,
        update_seconds=update,
        batch_size=training.batch_size,
        how=f"timed on {where}: the network forth and back on {count} random images, the head on "
        f"a batch of {training.batch_size} with up to {min(people, _MANY):,} people, then "
        "extrapolated; reading images and evaluating not included"
        + (busy if device.type == "cpu" else ""),
    )


def _backbone_seconds(
    backbone: Backbone,
    largest: int,
    device: torch.device,
    precision: torch.dtype | None,
    seconds: float,
) -> tuple[int, float]:
    """How many images were used, and the seconds for one of them, forth and back."""
    preprocessing = Preprocessing(backbone.input_size)
    size = backbone.input_size
    generator = torch.Generator().manual_seed(0)

    def run(images: torch.Tensor) -> None:
        with torch.autocast(device.type, dtype=precision, enabled=precision is not None):
            embeddings = backbone(preprocessing.to_tensor(images))
        torch.autograd.backward(embeddings.float().sum())
        _wait(device)

    def images_of(count: int) -> torch.Tensor:
        shape = (count, size, size, 3)
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(device)

    least = min(2, largest) if largest > 1 else 2  # batch norm needs two
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        first = images_of(least)
        warm = _seconds(lambda: run(first))
        affordable = int(least * seconds / (2 * max(warm, 1e-6)))
        count = max(least, min(largest, affordable))
        images = images_of(count)
        return count, _fastest(lambda: run(images), seconds) / count


def _head_seconds(
    config: RunConfig,
    dim: int,
    people: int,
    device: torch.device,
    precision: torch.dtype | None,
    seconds: float,
) -> float:
    """The seconds of the head in a step: its loss, its gradients and the update of its weights."""

    def timed(classes: int) -> float:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(config.seed)
            head = build_head(config.head.name, dim, classes, **config.head.options).to(device)
            return _fastest(_head_step(config, head.train(), device, precision), seconds)

    if people <= _MANY:
        return timed(people)
    few, many = timed(_FEW), timed(_MANY)
    # A head without class weights takes as long for any number of people.
    return many + max(0.0, many - few) / (_MANY - _FEW) * (people - _MANY)


def _head_step(
    config: RunConfig, head: Head, device: torch.device, precision: torch.dtype | None
) -> Callable[[], None]:
    network = outline_backbone(config.backbone.name, **config.backbone.options)
    fit_head(head, network, sample_rate=config.training.sample_rate)
    build_fused_sgd(head, config.optimizer)
    moved = moved_by_head(head)
    rest = [p for p in head.parameters() if p.requires_grad and p is not moved]
    optimizer = build_optimizer(nn.Identity(), head, config.optimizer) if rest else None
    batch = config.training.batch_size
    embeddings = torch.randn(batch, head.dim, device=device, requires_grad=True)
    labels = torch.arange(batch, device=device) // head.images_per_person % head.num_classes

    def step() -> None:
        with torch.autocast(device.type, dtype=precision, enabled=precision is not None):
            loss = head(embeddings, labels)
        torch.autograd.backward(loss)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        embeddings.grad = None
        _wait(device)

    return step


def _fastest(work: Callable[[], object], seconds: float) -> float:
    """The least time of several runs; the first, which sets things up, counts if it is alone."""
    best, spent = math.inf, 0.0
    for _ in range(20):
        last = _seconds(work)
        best, spent = min(best, last), spent + last
        if spent >= seconds:
            break
    return best


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _finish(device: torch.device, work: Callable[[], object]) -> None:
    work()
    _wait(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
