"""The engine's own parts: how classes are cut into blocks, and products in half precision."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import sphereface2.heads.engine as engine
from sphereface2.heads import HEADS, CosFace, ProxyHead, SphereFace2, build_head
from sphereface2.heads.class_rows import sample_classes
from sphereface2.heads.contract import Rows

PROXY_HEADS = [name for name in HEADS if isinstance(build_head(name, 4, 4), ProxyHead)]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Watched(CosFace):
    """Remembers the cosines of the blocks that it is asked about."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__(dim, num_classes)
        self.seen: list[Tensor] = []

    def other_logit(self, cosine_cb: Tensor, rows: Rows) -> tuple[Tensor, Tensor | float]:
        self.seen.append(cosine_cb.clone())
        return super().other_logit(cosine_cb, rows)


@pytest.mark.parametrize(
    ("rows", "dim", "device", "classes"),
    [
        (512, 128, CPU, 1024),  # two megabytes of float32
        (128, 512, CPU, 1024),
        (8192, 512, CPU, 64),
        (9000, 512, CPU, 64),
        (512, 512, CUDA, 131_072),
    ],
)
def test_a_block_holds_what_fits_a_cache(
    rows: int, dim: int, device: torch.device, classes: int
) -> None:
    assert engine.block_classes(rows, dim, device) == classes


def test_the_memory_of_a_step_is_counted_by_its_parts() -> None:
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        # Five matrices of a block for each of two threads, and a gradient of 64 × 512 per part.
        blocks, gradient = 2 * 5 * 1024 * 64, 64 * 512
        for classes, parts in ((10_000, 10), (10_241, 11), (100_000, 32)):
            found = engine.working_bytes(64, 512, classes, CPU, is_softmax=False)
            assert found == 4 * (blocks + parts * gradient)
        one = 4 * (5 * 100 * 64 + gradient)  # fewer classes than a block holds: one part
        assert engine.working_bytes(64, 512, 100, CPU, is_softmax=False) == one
        # A softmax keeps the cosines besides, up to 32 MB.
        kept = engine.working_bytes(64, 512, 100, CPU, is_softmax=True) - one
        assert kept == 4 * 64 * 100
        many = [engine.working_bytes(64, 512, 200_000, CPU, is_softmax=s) for s in (False, True)]
        assert many[1] - many[0] == 1 << 25
        on_device = engine.working_bytes(64, 512, 500_000, CUDA, is_softmax=False)
        assert on_device == 4 * (5 * 131_072 * 64 + gradient)
        assert engine.working_bytes(64, 512, 0, CPU, is_softmax=True) == 0
    finally:
        torch.set_num_threads(torch_threads)


@pytest.mark.parametrize(
    ("classes", "sizes"), [(9, [3, 3, 3]), (10, [4, 4, 2]), (4, [4]), (5, [3, 2]), (2, [2])]
)
def test_blocks_are_of_one_size(
    classes: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "block_classes", lambda *_: 4)
    head = Watched(6, classes)
    with torch.no_grad():
        head(torch.randn(3, 6), torch.tensor([0, 1, 1]))
    assert [len(block) for block in head.seen] == sizes


@pytest.mark.parametrize("is_bounded", [False, True])
def test_the_sum_of_softplus_terms(is_bounded: bool) -> None:
    largest = 60.0 if is_bounded else 1000.0
    logits = torch.tensor([[-1000.0, -3.0, 0.0], [2.0, 59.0, 60.0], [61.0, 90.0, 1000.0]])
    logits = logits.clamp_max(largest)
    expected = torch.nn.functional.softplus(logits.double()).sum(dim=1)
    found = engine._softplus_sum(logits.clone(), is_bounded=is_bounded)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0.0)


def cosines(rows: Tensor, head: ProxyHead) -> Tensor:
    """Of every row to every class, in the type of the rows."""
    weight = head.weight.detach().to(rows.dtype)
    return functional.normalize(rows) @ functional.normalize(weight).T


@pytest.mark.parametrize("bias", ["shared", "per-class"])
def test_a_bias_may_lift_bounded_logits_beyond_what_exp_can_take(bias: Any) -> None:
    head = SphereFace2(8, 5, radius=40.0, margin=0.4, sharpness=1.0, bias=bias, bias_start=60.0)
    x = head.weight.detach()[1:2].clone().requires_grad_()
    loss = head(x, torch.tensor([0]))
    exact = x.detach().double().requires_grad_()
    logits = 40.0 * (cosines(exact, head)[0, 1:] + 0.4) + 60.0
    assert float(logits.detach().max()) > 100.0
    _, weight = head._balance_weights()
    expected = head.loss_weight / 40.0 * weight * functional.softplus(logits).sum()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    for each in (loss, expected):
        each.backward()
    assert x.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_a_class_that_is_drawn_twice_does_not_hide_the_others(seed: int) -> None:
    """The second place of a target has its logit without the margin, by which exp underflows."""
    torch.manual_seed(seed)
    head = CosFace(8, 3, scale=1000.0, margin=0.4)
    head.sample_negatives(0.9)
    x = head.weight.detach()[:2].clone().requires_grad_()
    loss = head(x, torch.tensor([0, 1]))
    exact = x.detach().double().requires_grad_()
    logits = 1000.0 * (cosines(exact, head) - 0.4 * torch.eye(2, 3, dtype=torch.float64))
    expected = (logits.logsumexp(dim=1) - logits.diagonal()).mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-4)
    for each in (loss, expected):
        each.backward()
    assert x.grad is not None
    assert exact.grad is not None
    # Logits of a thousand, rounded to 1e-4, are off by that share.
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-3, atol=0.05)


def test_a_sample_of_nobody_known_with_low_logits_leaves_the_gradient_finite() -> None:
    head = build_head("softmax", 4, 3)
    assert isinstance(head, ProxyHead)
    head.warns_of_unknown = False
    with torch.no_grad():
        head.weight.fill_(100.0)
    x = torch.tensor([[-1.0] * 4, [1.0] * 4]).requires_grad_()
    head(x, torch.tensor([-1, 2])).backward()
    assert x.grad is not None
    assert head.weight.grad is not None
    assert head.bias is not None
    assert head.bias.grad is not None
    # Alike for all classes, so that the known one's row pulls at none; and of the weights, a third
    # of the way from the two others, two thirds to its own.
    torch.testing.assert_close(x.grad, torch.zeros_like(x), rtol=0.0, atol=1e-3)
    for gradient in (head.weight.grad, head.bias.grad):
        share = gradient / gradient[2].abs()
        assert share.reshape(3, -1)[:, 0].tolist() == pytest.approx([0.5, 0.5, -1.0])


def test_a_zero_vector_has_no_direction() -> None:
    lengths = torch.tensor([0.0, 1e-13, 1e-11, 0.5, 4.0], dtype=torch.float64)
    expected = torch.tensor([0.0, 0.0, 1e11, 2.0, 0.25], dtype=torch.float64)
    torch.testing.assert_close(engine.inverse(lengths), expected)


@pytest.mark.parametrize("name", PROXY_HEADS)
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_half_precision_gives_the_gradients_to_its_rounding(
    name: str, *, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several blocks; as lengths and directions, which a lost block would change."""
    monkeypatch.setattr(engine, "block_classes", lambda *_: 4)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)) * 5
    y = torch.arange(16) % 11
    found: list[list[Tensor]] = []
    for half in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            head: Any = build_head(name, 8, 11)
        before = head.weight.detach().clone()
        if fused:
            head.fused_sgd(lr=0.1, weight_decay=0.01)
        rows = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = head(rows, y)
        loss.backward()
        assert rows.grad is not None
        moved = head.weight.detach() - before if fused else head.weight.grad
        found.append([rows.grad, moved])
    for exact, rounded in zip(*found, strict=True):
        assert exact.dtype == rounded.dtype == torch.float32
        assert float((exact - rounded).norm() / exact.norm()) < 0.02


def test_gradients_fit_half_precision_however_much_a_positive_weighs() -> None:
    """One of the weight 0.99999 against 0.00001: their ratio is beyond float16."""
    head: Any = build_head("sphereface2-c", 8, 5, balance=0.99999)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with torch.autocast("cpu", torch.float16):
        loss = head(x, torch.tensor([0, 1, 2, 3, 4, 0]))
    (exact,) = torch.autograd.grad(head(x, torch.tensor([0, 1, 2, 3, 4, 0])), [x])
    (rounded,) = torch.autograd.grad(loss, [x])
    assert float((exact - rounded).norm() / exact.norm()) < 0.01


def test_cosines_of_half_precision_stay_within_their_range() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = Watched(64, 200)
    weight = head.weight.detach()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        head(torch.cat([3 * weight, -weight]), torch.arange(400) % 200)
    (cosine,) = head.seen
    assert float(cosine.max()) == 1.0
    assert float(cosine.min()) == -1.0


@pytest.mark.parametrize("name", ["sphereface2-c", "cosface"])
def test_the_statistics_of_a_sample_count_each_class_of_it_once(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        head: Any = build_head(name, 6, 60).double()
        head.sample_negatives(0.3)
        head.collect_statistics = True
        x = torch.randn(9, 6, dtype=torch.float64)
        y = torch.randint(0, 60, (9,))
        y[3] = y[2]
        torch.manual_seed(5)
        head(x, y)
        torch.manual_seed(5)
        index = torch.unique(sample_classes(y, 60, 0.3, dtype=torch.float64).index)
    weight = torch.nn.functional.normalize(head.weight.detach()[index])
    cosine = torch.nn.functional.normalize(x) @ weight.T
    is_target = index[None] == y[:, None]
    # Above the threshold 0 of a binary head, or above the right class.
    if name == "cosface":
        active = 64 * cosine > 64 * (cosine[is_target][:, None] - 0.35)
    else:
        active = 30 * (2 * ((cosine + 1) / 2) ** 3 - 1 + 0.4) + head.bias.detach() > 0
    found = head.statistics()
    assert found["positive_score"] == pytest.approx(float(cosine[is_target].mean()))
    assert found["negative_score"] == pytest.approx(float(cosine[~is_target].mean()))
    assert found["active_negatives"] == pytest.approx(float(active[~is_target].double().mean()))
