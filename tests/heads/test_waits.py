"""A head's step never waits for the device: nothing that it does depends on a tensor's values."""

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import sphereface2.heads.engine as engine
from sphereface2.heads import HEADS, build_head
from sphereface2.heads.proxy import ProxyHead
from sphereface2.heads.sharding import Alone, ShardExchange, class_shards

PROXY_HEADS = [name for name in HEADS if isinstance(build_head(name, 4, 4), ProxyHead)]

WAITS = ("nonzero", "_local_scalar_dense", "masked_select", "unique", "is_nonzero", "equal")
"""Operations whose result is a number on the host, or has a shape that depends on values."""


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the operations that torch runs inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        # A mask as an index takes as many values as are true in it.
        indices = args[1] if name.startswith(("index", "_index_put")) and len(args) > 1 else ()
        if isinstance(indices, list | tuple) and any(
            isinstance(each, Tensor) and each.dtype == torch.bool for each in indices
        ):
            name = "nonzero"
        self.calls[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def waits(self) -> dict[str, int]:
        return {
            name: n for name, n in self.calls.items() if name.lstrip("_").startswith(_bare(WAITS))
        }


def _bare(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lstrip("_") for name in names)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Other threads have a dispatch mode of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class OtherRank(ShardExchange):
    """What a rank of two does, without the other: nobody answers, and sums are its own."""

    def gather(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return embeddings, labels

    def gather_with_gradient(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return embeddings, labels

    scatter_sum = Alone.scatter_sum
    shared = Alone.shared
    sum = Alone.sum
    softmax_sum = Alone.softmax_sum


def step(head: Any, *, classes: int, collect: bool = False) -> Counted:
    """A training step with repeated labels and one row of no known class."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 6, generator=generator).requires_grad_()
    labels = torch.randint(0, classes, (8,), generator=generator)
    labels[3], labels[5] = labels[2], -1
    head.warns_of_unknown = False
    head.collect_statistics = collect
    counted = Counted()
    with counted:
        head(x, labels).backward()
    assert counted.calls["mm"] > 0
    return counted


@pytest.mark.parametrize("name", PROXY_HEADS)
def test_a_step_waits_for_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "block_classes", lambda *_: 25)  # several, and the last is cut
    classes = 60
    for sharded, rate, fused in product((False, True), (1.0, 0.3), (False, True)):
        if sharded:
            with class_shards(1, 2):
                head: Any = build_head(name, 6, classes)
            head.exchange = OtherRank(30, 60, rank=1, world=2)
            if getattr(head, "pairs", None) is not None:
                head.pairs.exchange = head.exchange
        else:
            head = build_head(name, 6, classes)
        if fused:
            head.fused_sgd(lr=0.1, weight_decay=1e-3)
        head.sample_negatives(rate)
        for collect in (False, True):  # the second meets what the first has left
            waits = step(head, classes=classes, collect=collect).waits
            assert waits == {}, f"{sharded=}, {rate=}, {fused=}, {collect=}"


@pytest.mark.parametrize("name", ["sphereface2-c", "cosface"])
def test_operations_per_block_are_few(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views and allocations included; what a block costs is the difference of two sizes."""
    monkeypatch.setattr(engine, "block_classes", lambda *_: 10)
    calls = []
    for classes in (50, 100):
        head: Any = build_head(name, 6, classes)
        head.fused_sgd(lr=0.1, weight_decay=1e-3)
        calls.append(step(head, classes=classes).calls.total())
    assert (calls[1] - calls[0]) / 5 <= 75


def test_the_count_sees_what_waits() -> None:
    x = torch.arange(3.0)
    with Counted() as counted:
        x[x > 1]
        x.sum().item()
        (x > 1).nonzero()
        torch.unique(x)
        bool((x > 1).any())
        x[x > 1] = 0.0
    assert sum(counted.waits.values()) >= 6


def test_labels_of_a_device_are_checked_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a head does on CUDA, shown where there is none: values are looked at in statistics."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    head: Any = build_head("cosface", 6, 5)
    with FakeTensorMode():
        head.check_batch(
            torch.empty(4, 6, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
        )
        assert head._extremes.device.type == "cuda"
    for labels, sentence in (([0, 5, 1], "label 5 is outside"), ([0, -2, 1], "label -2 is out")):
        given = torch.tensor(labels)
        head._extremes = torch.stack([-given.amin(), given.amax()])
        with pytest.raises(ValueError, match=sentence):
            head.statistics()
        assert head.statistics() == {}
    head._extremes = torch.tensor([1, 4])
    with pytest.warns(UserWarning, match="leaves out samples"):
        head.statistics()
