"""The fused SGD and the sampled negatives: the same numbers as the ordinary way, or on average."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import sphereface2.heads.engine as engine
from sphereface2.heads import HEADS, build_head
from sphereface2.heads.class_rows import sample_classes
from sphereface2.heads.proxy import ProxyHead

PROXY_HEADS = [name for name in HEADS if isinstance(build_head(name, 4, 4), ProxyHead)]


def make(name: str, *, classes: int = 23, dim: int = 6) -> Any:
    """The head called `name`; "sphereface2-c/2" has two centres per class."""
    name, _, centres = name.partition("/")
    options = {"sub_centres": int(centres)} if centres else {}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return build_head(name, dim, classes, **options).double()


def batch(
    rows: int = 9, *, dim: int = 6, classes: int = 23, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, dim, dtype=torch.float64, generator=generator) * 5
    return x, torch.randint(0, classes, (rows,), generator=generator)


@pytest.mark.parametrize("name", [*PROXY_HEADS, "sphereface2-c/2"])
@pytest.mark.parametrize("block", [5, 1000])
def test_fused_sgd_is_torchs_sgd(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "block_classes", lambda *_: block)
    settings: dict[str, float] = {"lr": 0.3, "momentum": 0.9, "weight_decay": 5e-3}
    plain, fused = make(name), make(name)
    ordinary = torch.optim.SGD([plain.weight], **settings)  # type: ignore[arg-type]  # floats only
    moved = fused.fused_sgd(**settings)
    for step in range(4):
        x, y = batch(seed=step)
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        for optimiser in (ordinary, moved):
            optimiser.param_groups[0]["lr"] = 0.3 / (step + 1)
            optimiser.zero_grad()
        loss, fused_loss = plain(one, y), fused(other, y)
        loss.backward()
        fused_loss.backward()
        ordinary.step()
        moved.step()
        torch.testing.assert_close(fused_loss, loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(fused.weight, plain.weight, rtol=1e-10, atol=1e-12)
        assert fused.weight.grad is None


def test_fused_sgd_goes_through_schedules_and_checkpoints() -> None:
    head = make("sphereface2-c")
    optimiser = head.fused_sgd(lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.5)
    head(*batch()).backward()
    optimiser.step()
    schedule.step()
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.05)
    other = copy.deepcopy(head)
    again = other.fused_sgd(lr=1.0)
    again.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    assert again.param_groups[0]["lr"] == pytest.approx(0.05)
    x, y = batch(seed=7)
    head(x, y)
    other(x, y)
    assert torch.equal(head.weight, other.weight)


def test_fused_sgd_moves_nothing_outside_training() -> None:
    head = make("cosface")
    head.fused_sgd(lr=0.1)
    before = head.weight.detach().clone()
    head.eval()(*batch())
    with torch.no_grad():
        head.train()(*batch())
    assert torch.equal(head.weight, before)


def test_fused_sgd_refuses_a_loss_with_another_weight() -> None:
    head = make("sphereface2-c")
    optimiser = head.fused_sgd(lr=0.1)
    x, y = batch()
    with pytest.raises(RuntimeError, match=r"weight 0\.5, but fused_sgd has moved"):
        (0.5 * head(x.requires_grad_(), y)).backward()
    optimiser.loss_scale = 8.0
    (8.0 * head(x, y)).backward()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": 0.1, "momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
        ({"lr": 0.1, "weight_decay": -1.0}, "weight_decay must be at least 0"),
    ],
)
def test_fused_sgd_refuses_what_makes_no_sense(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make("cosface").fused_sgd(**settings)


def test_no_gradient_of_the_weights_size_exists() -> None:
    """The largest tensor of a step is a block, however many classes there are."""
    classes, dim, rows = 40_000, 8, 64
    head: Any = build_head("sphereface2-c", dim, classes)
    head.fused_sgd(lr=0.1)
    x = torch.randn(rows, dim, requires_grad=True)
    labels = torch.zeros(rows, dtype=torch.int64)
    head(x, labels).backward()
    with torch.profiler.profile(profile_memory=True) as profile:
        head(x, labels).backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest <= 1.1 * engine.CACHE_ELEMENTS * 4 < classes * rows * 4


class TestSampling:
    def test_batch_classes_are_always_there_and_labels_point_at_them(self) -> None:
        labels = torch.tensor([5, 5, 900, -1, -2, 17])
        sample = sample_classes(labels, 1000, 0.05, dtype=torch.float64)
        assert sample.index is not None
        assert sample.repeats is not None
        assert torch.equal(sample.index[~sample.repeats], torch.unique(sample.index))
        known = labels >= 0
        assert torch.equal(sample.index[sample.labels[known]], labels[known])
        assert torch.equal(sample.labels[~known], labels[~known])
        assert sample.class_weight is not None
        assert torch.equal(
            sample.class_weight[sample.labels[known]], torch.ones(4, dtype=torch.float64)
        )
        assert torch.equal(sample.class_weight == 0, sample.repeats)
        assert 50 <= int((~sample.repeats).sum()) <= 53
        # Every class stands for as many as its span has, so that they are 1,000 in all.
        drawn = ~torch.isin(sample.index, labels)
        assert set(sample.class_weight[drawn & ~sample.repeats].tolist()) == {20.0}

    # Of all of them the same classes are drawn, with the same weights.
    @pytest.mark.parametrize(
        ("name", "rounds"),
        [("sphereface2-c", 1500), ("sphereface2-a", 400), ("sphereface2-m", 400)],
    )
    def test_loss_and_gradients_are_right_on_average(self, name: str, rounds: int) -> None:
        classes = 40
        head = make(name, classes=classes)
        x, y = batch(classes=classes)
        x.requires_grad_()
        loss = head(x, y)
        exact = torch.autograd.grad(loss, [x, head.weight, head.bias])
        head.sample_negatives(0.3)
        sums = [torch.zeros_like(grad) for grad in exact]
        squares = [torch.zeros_like(grad) for grad in exact]
        total = 0.0
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for _ in range(rounds):
                sampled = head(x, y)
                total += float(sampled.detach())
                for i, grad in enumerate(torch.autograd.grad(sampled, [x, head.weight, head.bias])):
                    sums[i] += grad
                    squares[i] += grad.square()
        assert total / rounds == pytest.approx(float(loss.detach()), rel=0.02)
        for grad, first, second in zip(exact, sums, squares, strict=True):
            mean = first / rounds
            error = ((second / rounds - mean.square()).clamp_min(0) / rounds).sqrt()
            # Five standard errors: with 400 numbers a false alarm is one in several thousand.
            assert ((mean - grad).abs() <= 5 * error + 1e-9).all()

    def test_only_sampled_rows_move(self) -> None:
        head = make("sphereface2-c", classes=500)
        head.fused_sgd(lr=0.1, weight_decay=0.1)
        head.sample_negatives(0.1)
        before = head.weight.detach().clone()
        x, y = batch(classes=500)
        head(x.requires_grad_(), y).backward()
        moved = (head.weight.detach() != before).any(dim=1)
        assert moved[y].all()
        assert 20 <= int(moved.sum()) <= 100

    def test_softmax_over_the_sampled_classes(self) -> None:
        """InsightFace's way: the loss of a head that knows the sampled classes only."""
        head = make("cosface", classes=60)
        head.sample_negatives(0.4)
        x, y = batch(classes=60)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            loss = head(x, y)
            torch.manual_seed(5)
            sample = sample_classes(y, 60, 0.4, dtype=torch.float64)
        assert sample.index is not None
        index = torch.unique(sample.index)
        small = make("cosface", classes=len(index))
        with torch.no_grad():
            small.weight.copy_(head.weight[index])
        torch.testing.assert_close(loss, small(x, torch.searchsorted(index, y)))

    def test_evaluation_sees_all_classes(self) -> None:
        head = make("sphereface2-c")
        x, y = batch()
        full = head(x, y)
        head.sample_negatives(0.2)
        torch.testing.assert_close(head.eval()(x, y), full)

    @pytest.mark.parametrize("rate", [0.0, -0.5, 1.5])
    def test_rate_must_be_a_share(self, rate: float) -> None:
        with pytest.raises(ValueError, match=r"sample_rate must lie in \(0, 1\]"):
            make("cosface").sample_negatives(rate)


def test_a_class_starts_alike_however_the_classes_are_shared_out() -> None:
    from sphereface2.heads.sharding import class_shards

    def weights(rank: int, world: int) -> Tensor:
        with torch.random.fork_rng(), class_shards(rank, world):
            torch.manual_seed(11)
            weight = dict(build_head("cosface", 3, 10_001).named_parameters())["weight"]
            return weight.detach()

    whole = weights(0, 1)
    for world in (2, 3, 7):
        parts = [weights(rank, world) for rank in range(world)]
        assert torch.equal(torch.cat(parts), whole)


def test_a_fused_step_goes_down_the_plain_gradient_once() -> None:
    plain, fused = make("arcface"), make("arcface")
    optimiser = fused.fused_sgd(lr=0.1)
    for head in (plain, fused):
        head(*batch()).backward()
    optimiser.step()
    torch.testing.assert_close(fused.weight, plain.weight - 0.1 * plain.weight.grad)
