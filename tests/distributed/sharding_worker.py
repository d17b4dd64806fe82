"""One rank of the sharding test: losses and gradients of every head on its share of classes."""

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sphereface2.heads import HEADS, ProxyHead, build_head
from sphereface2.heads.sharding import class_range, class_shards
from sphereface2.training.distributed import leave_group

WORLDS = (3, 2)
DIM = 6
BATCHES = {
    "plain": (7, [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]),
    "uneven": (11, [10, 0, 5, 5, -1, 3, 9, 10, 2, 2, 7, 8]),
    "a shard without positives": (9, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
    "nobody known": (8, [-1] * 12),
    "an empty shard": (4, [0, 1, 2, 3, 3, 2, 1, 0, -1, 0, 1, 2]),
}
# All of them on three ranks. With fewer ranks, and in single precision, sums are in another order;
# which classes and rows meet on a rank is the same matter.
CASES: dict[tuple[int, str], tuple[str, ...]] = {
    (3, "float64"): tuple(BATCHES),
    (3, "float32"): ("an empty shard",),
    (2, "float64"): ("plain", "uneven"),
    (2, "float32"): ("uneven",),
}


def batch(case: str) -> tuple[torch.Tensor, torch.Tensor]:
    _, labels = BATCHES[case]
    generator = torch.Generator().manual_seed(len(case))
    x = torch.randn(len(labels), DIM, dtype=torch.float64, generator=generator) * 20
    return x, torch.tensor(labels)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in HEADS},
    "three centres": ("sphereface2-c", {"sub_centres": 3}),
    "a bias each": ("sphereface2-c", {"bias": "per-class"}),
    "with pairs": ("sphereface2-c", {"pair_weight": 1.0}),
    "in two parts": ("sphereface2-c", {}),
}


def head_of(variant: str, classes: int, *, rank: int, world: int, dtype: torch.dtype) -> Any:
    torch.manual_seed(17)
    name, options = VARIANTS[variant]
    with class_shards(rank, world):
        head = build_head(name, DIM, classes, **options).to(dtype)
        if variant == "in two parts":
            assert isinstance(head, ProxyHead)
            head.split(2)
        bias = getattr(head, "bias", None)
        if bias is not None and bias.ndim:  # it starts at zero, which no statistic would notice
            with torch.no_grad():
                bias += torch.linspace(-1, 1, classes)[slice(*class_range(classes))].to(dtype)
        return head


def results(
    rank: int, world: int, dtype: torch.dtype, cases: Iterable[str]
) -> dict[str, dict[str, torch.Tensor]]:
    """Loss and gradients by head and case; those of the rows and weights of this rank."""
    found = {}
    for name in VARIANTS:
        for case in cases:
            classes, _ = BATCHES[case]
            head = head_of(name, classes, rank=rank, world=world, dtype=dtype)
            head.collect_statistics = True
            x, y = batch(case)
            share = len(y) // world
            mine = slice(rank * share, (rank + 1) * share)
            local = x[mine].to(dtype).requires_grad_()
            if getattr(head, "pairs", None) is not None:  # which compares with what it remembers
                head(local.detach().roll(1, dims=1), y[mine])
            loss = head(local, y[mine])
            loss.backward()
            assert local.grad is not None
            # What data-parallel training does to the network's gradients: an average over ranks.
            row = {"loss": loss.detach(), "x": local.grad / world}
            row |= {key: _gradient(value) for key, value in head.named_parameters()}
            row |= {f"{key} kept": value.double() for key, value in head.named_buffers()}
            row |= {f"{key} seen": torch.tensor(seen) for key, seen in head.statistics().items()}
            found[f"{name}, {case}"] = row
    return found


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def main(folder: str, *ports: str) -> None:
    warnings.simplefilter("ignore")  # softmax heads say that they skip unknown samples
    rank = int(os.environ["RANK"])
    for world, port in zip(WORLDS, ports, strict=True):
        if rank >= world:
            continue
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
        )
        for dtype in ("float64", "float32"):
            found = results(rank, world, getattr(torch, dtype), CASES[world, dtype])
            torch.save(found, Path(folder) / f"{world}-{rank}-{dtype}.pt")
        leave_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
