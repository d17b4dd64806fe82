"""Blocks shared out over threads: the same bits on any number of them, and torch left as it was."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import sphereface2.heads.engine as engine
from sphereface2.heads import build_head
from sphereface2.heads.threads import on_torch_threads


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def moved(name: str, threads: int) -> list[torch.Tensor]:
    """Loss, gradients and weights after three steps of the fused SGD."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        head: Any = build_head(name, 16, 1000)
        optimiser = head.fused_sgd(lr=0.1, weight_decay=1e-3)
        found = []
        for rate in (1.0, 1.0, 0.3):
            head.sample_negatives(rate)
            x = torch.randn(32, 16, generator=generator).requires_grad_()
            loss = head(x, torch.randint(0, 1000, (32,), generator=generator))
            loss.backward()
            assert x.grad is not None
            found += [loss.detach(), x.grad]
    rest = [p.grad for p in head.parameters() if p.grad is not None]
    return [*found, head.weight.detach(), optimiser.momentum_buffer, *rest]


@pytest.mark.parametrize("name", ["sphereface2-c", "cosface", "softmax", "unitsface"])
@pytest.mark.parametrize("kept", [0, 400 * 32 * 4, 1 << 27], ids=["none", "some", "all"])
def test_any_number_of_threads_gives_the_same_bits(
    name: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever cosines of the first pass are kept for the second one."""
    monkeypatch.setattr(engine, "block_classes", lambda *_: 64)
    reference = moved(name, 1)
    monkeypatch.setattr(engine, "KEPT_BYTES", kept)
    for threads in (1, 2, 3):
        for ours, theirs in zip(moved(name, threads), reference, strict=True):
            assert torch.equal(ours, theirs)


def test_each_thread_computes_alone_and_without_gradients() -> None:
    torch.set_num_threads(3)
    both = threading.Barrier(2)

    def work(part: int) -> tuple[int, bool, int, int]:
        both.wait(timeout=60)
        return part, torch.is_grad_enabled(), torch.get_num_threads(), threading.get_ident()

    parts, gradients, threads, workers = zip(*on_torch_threads(work, range(4)), strict=True)
    assert parts == (0, 1, 2, 3)
    assert not any(gradients)
    assert set(threads) == {1}
    assert len(set(workers)) >= 2
    assert torch.get_num_threads() == 3
    in_new_thread: list[int] = []
    other = threading.Thread(target=lambda: in_new_thread.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert in_new_thread == [3]


def test_what_fails_in_a_thread_fails_here() -> None:
    torch.set_num_threads(2)

    def work(part: int) -> None:
        raise ValueError(f"part {part} cannot be done")

    with pytest.raises(ValueError, match="part 0 cannot"):
        on_torch_threads(work, range(3))


def test_what_one_thread_can_do_is_done_by_the_caller() -> None:
    def name(_: int) -> str:
        return threading.current_thread().name

    own = threading.current_thread().name
    torch.set_num_threads(1)
    assert on_torch_threads(name, range(3)) == [own] * 3
    torch.set_num_threads(2)
    assert on_torch_threads(name, range(1)) == [own]
    assert on_torch_threads(name, range(0)) == []
    assert all(each.startswith("head") for each in on_torch_threads(name, range(2)))
