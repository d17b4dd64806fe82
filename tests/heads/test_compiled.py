"""Compiled maps give what the plain form gives, to rounding."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

import sphereface2.heads.engine as engine
from sphereface2.heads import HEADS, build_head
from sphereface2.heads.proxy import ProxyHead

PROXY_HEADS = [name for name in HEADS if isinstance(build_head(name, 4, 4), ProxyHead)]

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("c++") is None,
    reason="compiled maps need a C++ compiler, and this machine has none",
)


def step(name: str, *, compiled: bool, rate: float = 1.0, fused: bool = False) -> dict[str, Tensor]:
    """Loss, gradients, statistics and weights after a step with a row of no known class."""
    torch.manual_seed(3)
    head: Any = build_head(name, 16, 40).double()
    head.warns_of_unknown = False
    head.collect_statistics = True
    head.sample_negatives(rate)
    if compiled:
        head.compile_maps()
    if fused:
        head.fused_sgd(lr=0.1, weight_decay=1e-3)
    x = torch.randn(8, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 1, 39, 20, -1, 7, 7])
    loss = head(x, labels)
    loss.backward()
    assert x.grad is not None
    found = {"loss": loss.detach(), "embeddings": x.grad}
    found |= {f"d {n}": p.grad for n, p in head.named_parameters() if p.grad is not None}
    found |= {n: p.detach() for n, p in head.named_parameters()}
    return found | {n: torch.tensor(v) for n, v in head.statistics().items()}


@pytest.mark.parametrize("name", PROXY_HEADS)
def test_compiled_maps_agree_with_the_plain_ones(name: str) -> None:
    torch.testing.assert_close(step(name, compiled=True), step(name, compiled=False))


@pytest.mark.parametrize("name", ["sphereface2-c", "cosface"])
def test_they_agree_with_sampled_classes_and_in_the_fused_update(name: str) -> None:
    options: dict[str, Any] = {"rate": 0.5, "fused": True}
    torch.testing.assert_close(
        step(name, compiled=True, **options), step(name, compiled=False, **options)
    )


def test_a_margin_that_moves_needs_no_new_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "block_classes", lambda *_: 8)
    losses: dict[bool, list[float]] = {}
    for compiled in (False, True):
        torch.manual_seed(0)
        head: Any = build_head("sphereface2-c", 4, 20, margin_schedule=[(0.0, 0.0), (4.0, 0.4)])
        x, labels = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 5, 9])
        if compiled:
            head.compile_maps()
        losses[compiled] = []
        made = set()
        for epoch in (0.0, 1.0, 4.0):
            head.advance(epoch)
            losses[compiled].append(float(head(x, labels).detach()))
            made.add(0 if head.kernels is None else len(head.kernels))
        assert len(made) == 1
    assert losses[True] == pytest.approx(losses[False], rel=1e-6)
    assert len(set(losses[True])) == 3


def test_kernels_give_the_same_bits_again() -> None:
    first, second = (step("sphereface2-c", compiled=True) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
