"""Micro-batches give the gradient of the large batch, for every head."""

import copy

import pytest
import torch
from torch import Tensor, nn

from sphereface2.heads import HEADS, Head, build_head
from sphereface2.training.step import add_gradients
from tests.training.conftest import SIZE, TinyNet

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 4, 4, 4, 4])


def make_images(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(len(LABELS), 3, SIZE, SIZE, generator=generator, dtype=dtype)


def gradients(net: nn.Module, head: Head, micro_batches: int) -> tuple[Tensor, list[Tensor]]:
    net, head = copy.deepcopy(net), copy.deepcopy(head)
    loss = add_gradients(net, head, make_images(), LABELS, micro_batches=micro_batches)
    found = [p.grad for p in (*net.parameters(), *head.parameters()) if p.grad is not None]
    return loss, found


@pytest.mark.parametrize("name", sorted(HEADS))
def test_micro_batches_give_the_gradient_of_the_large_batch(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = TinyNet(batch_norm=False, dropout=0.0).double()
        head = build_head(name, 8, 5).double()
    loss, expected = gradients(net, head, 1)
    for micro_batches in (2, 4):
        other_loss, found = gradients(net, head, micro_batches)
        torch.testing.assert_close(other_loss, loss, rtol=1e-12, atol=0)
        assert len(found) == len(expected) >= 4
        assert max(float(g.abs().max()) for g in expected) > 0
        for gradient, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other, gradient, rtol=1e-10, atol=1e-12)


def test_the_update_of_four_micro_batches_is_that_of_the_large_batch() -> None:
    net = TinyNet(batch_norm=False, dropout=0.0).double()
    head = build_head("sphereface2-c", 8, 5).double()
    results = []
    for micro_batches in (1, 4):
        trained, weights = copy.deepcopy(net), copy.deepcopy(head)
        parameters = [*trained.parameters(), *weights.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            add_gradients(trained, weights, make_images(), LABELS, micro_batches=micro_batches)
            optimizer.step()
        results.append(torch.cat([p.detach().ravel() for p in parameters]))
    start = torch.cat([p.detach().ravel() for p in (*net.parameters(), *head.parameters())])
    assert (results[0] - start).abs().max() > 1e-3
    assert (results[0] - results[1]).abs().max() < 1e-10


class CountingHead(Head):
    """The mean of the embeddings, and how often and with how many rows it was asked."""

    def __init__(self) -> None:
        super().__init__(8, 5)
        self.calls: list[int] = []

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.calls.append(len(embeddings))
        return embeddings.mean()


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_the_head_is_called_once_with_the_whole_batch(micro_batches: int) -> None:
    head = CountingHead()
    add_gradients(TinyNet(), head, make_images(torch.float32), LABELS, micro_batches=micro_batches)
    assert head.calls == [16]


def test_running_statistics_are_updated_once_for_each_micro_batch() -> None:
    images = make_images(torch.float32)
    net = TinyNet(dropout=0.0)
    expected = copy.deepcopy(net)
    with torch.no_grad():
        for part in images.chunk(4):
            expected(part)
    add_gradients(net, CountingHead(), images, LABELS, micro_batches=4)
    norm, expected_norm = net.layers[1], expected.layers[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert isinstance(expected_norm, nn.BatchNorm2d)
    assert norm.track_running_stats
    assert norm.num_batches_tracked is not None
    start = int(norm.num_batches_tracked)
    assert start == int(expected_norm.num_batches_tracked or 0)
    assert norm.running_mean is not None
    assert expected_norm.running_mean is not None
    assert torch.equal(norm.running_mean, expected_norm.running_mean)


def test_statistics_are_tracked_again_after_an_error() -> None:
    net = TinyNet()
    with pytest.raises(ValueError, match="takes images of shape"):
        add_gradients(net, CountingHead(), torch.zeros(4, 3, 5, 5), LABELS[:4], micro_batches=2)
    assert isinstance(net.layers[1], nn.BatchNorm2d)
    assert net.layers[1].track_running_stats


class Noting(nn.Module):
    """Keeps what passes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, values: Tensor) -> Tensor:
        self.seen.append(values.detach().clone())
        return values


def test_dropout_is_the_same_in_both_passes_and_differs_between_parts_and_steps() -> None:
    noting = Noting()
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), noting, nn.Linear(3 * SIZE * SIZE, 8))
    images = torch.ones(4, 3, SIZE, SIZE)
    for step in (0, 1):
        add_gradients(net, CountingHead(), images, LABELS[:4], micro_batches=2, seed=(0, step))
    first, second, first_again, second_again, next_first = noting.seen[:5]
    assert torch.equal(first, first_again)
    assert torch.equal(second, second_again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, next_first)


def test_the_random_numbers_of_the_caller_are_left_alone() -> None:
    before = torch.get_rng_state()
    add_gradients(TinyNet(), CountingHead(), make_images(torch.float32), LABELS)
    after_building = torch.get_rng_state()
    with torch.random.fork_rng():
        torch.set_rng_state(before)
        TinyNet()
        assert torch.equal(torch.get_rng_state(), after_building)


def test_bf16_is_for_products_and_the_head_gets_float32() -> None:
    class Precise(CountingHead):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            assert embeddings.dtype is torch.float32
            assert torch.get_autocast_dtype("cpu") is torch.bfloat16
            assert torch.is_autocast_enabled("cpu")
            return super().forward(embeddings, labels)

    seen: list[torch.dtype] = []
    net = TinyNet(dropout=0.0)
    net.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    for micro_batches in (1, 2):
        images = make_images(torch.float32)
        add_gradients(
            net, Precise(), images, LABELS, micro_batches=micro_batches, precision=torch.bfloat16
        )
    assert set(seen) == {torch.bfloat16}
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in net.parameters())
