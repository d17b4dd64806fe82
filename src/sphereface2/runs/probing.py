"""How fast this machine trains, from a few seconds of it on random images."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from sphereface2.backbones import build_backbone
from sphereface2.backbones.backbone import Backbone
from sphereface2.config.schema import RunConfig
from sphereface2.data.transforms import Preprocessing
from sphereface2.heads import Head, build_head
from sphereface2.heads.proxy import ProxyHead
from sphereface2.training.devices import choose_device, choose_precision
from sphereface2.training.optimizer import build_fused_sgd, build_optimizer

_FEW, _MANY = 2048, 8192  # people for whom the head is timed; more are extrapolated
_LARGEST = {"cpu": 32}  # images at a time; elsewhere small batches do not fill the device
_LARGEST_ELSEWHERE = 256
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
    largest = min(
        training.batch_size // training.accumulate,
        _LARGEST.get(device.type, _LARGEST_ELSEWHERE),
    )
    count, each = _backbone_seconds(backbone, largest, device, precision, seconds)
    if training.accumulate > 1:
        each *= 4 / 3  # the forward pass runs twice
    optimizer = build_optimizer(backbone, nn.Identity(), config.optimizer)
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
    if isinstance(head, ProxyHead):
        head.sample_negatives(config.training.sample_rate)
    build_fused_sgd(head, config.optimizer)
    moved = head.weight if isinstance(head, ProxyHead) and head.fused is not None else None
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
    best, spent, runs = math.inf, 0.0, 0
    while runs < 2 or (spent < seconds and runs < 20):
        if runs == 1 and spent > seconds:
            break
        last = _seconds(work)
        best, spent, runs = min(best, last), spent + last, runs + 1
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
