"""Compiled maps give what the plain form gives, to rounding."""

import copy
import pickle
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

import sphereface2.heads.engine as engine
import sphereface2.heads.native as native
from sphereface2.heads import HEADS, CosFace, build_head
from sphereface2.heads.contract import Rows
from sphereface2.heads.proxy import ProxyHead

PROXY_HEADS = [name for name in HEADS if isinstance(build_head(name, 4, 4), ProxyHead)]

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("c++") is None,
    reason="compiled maps need a C++ compiler, and this machine has none",
)


def step(
    name: str,
    *,
    compiled: bool,
    rate: float = 1.0,
    fused: bool = False,
    dim: int = 16,
    classes: int = 40,
    rows: int = 8,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> dict[str, Tensor]:
    """Loss, gradients, statistics and weights after two steps with a row of no known class."""
    torch.manual_seed(3)
    head: Any = build_head(name, dim, classes, **options).to(dtype)
    head.warns_of_unknown = False
    head.collect_statistics = True
    head.sample_negatives(rate)
    if compiled:
        head.compile_maps()
    if fused:
        head.fused_sgd(lr=0.1, weight_decay=1e-3)
    x = torch.randn(rows, dim).to(dtype).requires_grad_()
    labels = torch.tensor([0, 1, 1, classes - 1, 20, -1, 7, 7, *range(8, rows)])
    losses = []
    for _ in range(2):
        losses.append(head(x, labels))
        losses[-1].backward()
    assert x.grad is not None
    found = {"loss": torch.stack(losses).detach(), "embeddings": x.grad}
    found |= {f"d {n}": p.grad for n, p in head.named_parameters() if p.grad is not None}
    found |= {n: p.detach() for n, p in head.named_parameters()}
    return found | {n: torch.tensor(v) for n, v in head.statistics().items()}


def assert_close_to_double(name: str, **options: Any) -> None:
    """The C++ in float32 is as near to float64 as float32 is; several blocks, and ragged ones."""
    shape: dict[str, Any] = {"dim": 32, "classes": 300, "rows": 37, **options}
    found = step(name, compiled=True, dtype=torch.float32, **shape)
    for key, expected in step(name, compiled=False, **shape).items():
        error = (found[key].double() - expected).norm() / expected.norm().clamp_min(1e-30)
        # A count may differ by a logit that is at the boundary.
        assert error < (3e-4 if key == "active_negatives" else 2e-5), key


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "CORE_ELEMENTS", 1)  # 32 classes each


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("name", PROXY_HEADS)
def test_every_head_has_a_form_in_cpp_that_agrees_with_the_plain_one(name: str) -> None:
    assert_close_to_double(name)
    assert_close_to_double(name, fused=True)


@pytest.mark.usefixtures("_small_blocks")
def test_it_has_the_options_of_the_maps() -> None:
    assert_close_to_double("sphereface2-c", sharpness=2.5, bias="per-class", fused=True)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("name", ["sphereface2-c", "cosface"])
@pytest.mark.parametrize("kept", [0, 100 * 64 * 4], ids=["none", "some"])
def test_any_number_of_threads_gives_the_same_bits(
    name: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever products of the first pass are kept for the second one."""
    options: dict[str, Any] = {"dim": 32, "classes": 300, "rows": 37, "dtype": torch.float32}
    reference = step(name, compiled=True, **options)
    monkeypatch.setattr(engine, "KEPT_BYTES", kept)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = step(name, compiled=True, **options)
            assert all(torch.equal(found[key], reference[key]) for key in found)
    finally:
        torch.set_num_threads(before)


class Curved(CosFace):
    """A head whose map has no form in C++."""

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        return self.scale * cosine_cb.sin(), self.scale * cosine_cb.cos()


def test_batches_that_are_parts_of_others_and_two_before_a_backward_pass() -> None:
    plain = build_head("sphereface2-c", 32, 40)
    compiled = copy.deepcopy(plain)
    assert isinstance(compiled, ProxyHead)
    compiled.compile_maps()
    everything, labels = torch.randn(12, 32), torch.arange(12) * 3
    found = []
    for head in (plain, compiled):
        whole = everything.clone().requires_grad_()
        (head(whole[::2], labels[::2]) + head(whole[1::2], labels[1::2])).backward()
        assert whole.grad is not None
        assert head.weight.grad is not None
        found.append((whole.grad, head.weight.grad))
    for wanted, mine in zip(*found, strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


def test_a_compiled_head_can_be_copied_and_pickled() -> None:
    head = build_head("sphereface2-c", 32, 40)
    assert isinstance(head, ProxyHead)
    head.compile_maps()
    batch = torch.randn(4, 32, requires_grad=True), torch.arange(4)
    loss = head(*batch)
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(other(*batch), loss)
        assert other.kernels is not None
        assert other.kernels._head is other


def test_what_has_no_form_in_cpp_has_kernels_of_torch() -> None:
    head, plain = Curved(32, 20), Curved(32, 20)
    plain.load_state_dict(head.state_dict())
    head.compile_maps()
    x, labels = torch.randn(3, 32, requires_grad=True), torch.tensor([0, 5, 19])
    torch.testing.assert_close(head(x, labels), plain(x, labels))
    assert head.kernels is not None
    assert len(head.kernels) == 2  # of the two passes


@pytest.mark.parametrize(
    ("name", "rate"), [("sphereface2-c", 1.0), ("sphereface2-c", 0.5), ("cosface", 0.5)]
)
def test_torchs_kernels_agree_with_the_plain_ones(name: str, rate: float) -> None:
    """In float64, and with sampled classes in the fused update."""
    options: dict[str, Any] = {"rate": rate, "fused": rate < 1.0}
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


def test_the_memory_of_a_step_is_what_it_holds() -> None:
    head: Any = build_head("cosface", 32, 5000)
    head.fused_sgd(lr=0.1)
    head.compile_maps()
    x, labels = torch.randn(64, 32, requires_grad=True), torch.arange(64)
    head(x, labels)
    held = sum(tensor.nbytes for tensor in head.kernels.native._memory.values())
    planned = native.working_bytes(64, 32, 5000, is_softmax=True)
    blocks = 4 * torch.get_num_threads() * 2048 * (64 + 2)  # of each thread, within the library
    assert held <= planned <= held + blocks
    assert native.working_bytes(64, 32, 0, is_softmax=True) == 0
