"""How a head with class weights starts, what it draws, and the optimiser that it makes."""

from typing import Any

import pytest
import torch

from sphereface2.heads import HEADS, ProxyHead, build_head
from sphereface2.heads.class_rows import sample_classes


def made() -> ProxyHead:
    head = build_head("cosface", 6, 23)
    assert isinstance(head, ProxyHead)
    return head


def test_the_usual_settings_of_the_fused_optimiser() -> None:
    group = made().fused_sgd(lr=0.1).param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 0.0)
    group = made().fused_sgd(lr=0.1, momentum=0.0).param_groups[0]
    assert group["momentum"] == 0.0


def test_a_wrong_weight_of_the_loss_is_reported_with_the_statistics() -> None:
    """As on a device, where it is not waited for; and reported once."""
    head = made()
    optimiser = head.fused_sgd(lr=0.1)
    optimiser._noted = torch.tensor(0.5), 1.0
    with pytest.raises(RuntimeError, match=r"weight 0\.5"):
        head.statistics()
    assert head.statistics() == {}


def test_class_weights_start_on_the_sphere_or_with_xaviers_deviation() -> None:
    for centres in (1, 3):
        head: Any = build_head("sphereface2-c", 16, 50, sub_centres=centres)
        assert head.weight.shape == ((50, 16) if centres == 1 else (50, 3, 16))
        torch.testing.assert_close(head.weight.norm(dim=-1), torch.ones(head.weight.shape[:-1]))
    plain: Any = build_head("softmax", 64, 1000)
    assert plain.weight.std().item() == pytest.approx((2 / 1064) ** 0.5, rel=0.02)
    assert plain.bias.tolist() == [0.0] * 1000


def test_class_weights_start_elsewhere_with_every_seed_and_for_every_class() -> None:
    starts = set()
    with torch.random.fork_rng():
        for seed in range(60):
            torch.manual_seed(seed)
            starts.add(tuple(build_head("cosface", 2, 2).get_parameter("weight")[0].tolist()))
        many = build_head("cosface", 3, 10_000).get_parameter("weight").detach()
    assert len(starts) == 60
    assert len(torch.unique(many, dim=0)) == 10_000


def test_at_least_one_class_is_drawn() -> None:
    sample = sample_classes(torch.tensor([-1]), 10, 1e-6, dtype=torch.float64)
    assert sample.index is not None
    assert sample.class_weight is not None
    assert len(torch.unique(sample.index)) == 1
    assert sorted(sample.class_weight.tolist()) == [0.0, 10.0]


def _is_split(name: str) -> bool:
    """Whether the whole loss of a head is that of its classes; some compare samples as well."""
    head = build_head(name, 4, 3)
    return isinstance(head, ProxyHead) and name not in ("deepid2", "ring", "unitsface", "magface")


@pytest.mark.parametrize("way", ["plain", "fused", "compiled", "sampled"])
@pytest.mark.parametrize("name", [name for name in HEADS if _is_split(name)])
def test_each_part_of_an_embedding_learns_as_it_would_alone(name: str, way: str) -> None:
    """The loss is the sum over heads of the parts, to the last digit, and so are all gradients."""
    torch.manual_seed(0)
    parts, dim, classes = 3, 4, 11
    whole: Any = build_head(name, parts * dim, classes).double()
    whole.split(parts)
    columns = [slice(at * dim, (at + 1) * dim) for at in range(parts)]
    apart: list[Any] = [build_head(name, dim, classes).double() for _ in columns]
    for head, part in zip(apart, columns, strict=True):
        with torch.no_grad():
            head.weight.copy_(whole.weight[:, part])
            if whole.unit_weights:
                torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(classes).double())
    heads = [whole, *apart]
    for head in heads:
        if way == "fused":
            head.fused_sgd(lr=0.01)
        if way == "compiled":
            head.compile_maps()
        if way == "sampled":
            head.sample_negatives(0.5)
    x = torch.randn(6, parts * dim).double()
    labels = torch.tensor([0, 3, 3, 7, 10, 1])

    def loss(head: Any, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)  # of the classes that are drawn
        rows = rows.clone().requires_grad_()
        found = head(rows, labels)
        found.backward()
        assert rows.grad is not None
        return found.detach(), rows.grad

    found, gradient = loss(whole, x)
    wanted, gradients = zip(
        *(loss(head, x[:, part]) for head, part in zip(apart, columns, strict=True)), strict=True
    )
    if name in ("curricularface", "adaface"):  # whose running mean has seen the parts before
        torch.testing.assert_close(found, sum(wanted), rtol=0.05, atol=0)
        return
    torch.testing.assert_close(found, sum(wanted))
    torch.testing.assert_close(gradient, torch.cat(gradients, dim=1))
    torch.testing.assert_close(whole.weight, torch.cat([head.weight for head in apart], dim=1))
    if way != "fused":
        torch.testing.assert_close(
            whole.weight.grad, torch.cat([head.weight.grad for head in apart], dim=1)
        )
    for key, value in whole.named_parameters():
        if key != "weight" and value.grad is not None:
            alone = torch.stack([head.get_parameter(key).grad for head in apart])
            torch.testing.assert_close(value.grad, alone.sum(dim=0))


def test_what_is_remembered_is_split_too() -> None:
    """The loss against remembered embeddings is the sum over parts as well."""
    torch.manual_seed(0)
    whole: Any = build_head("sphereface2-c", 8, 5, pair_weight=0.7).double()
    whole.split(2)
    apart: list[Any] = [build_head("sphereface2-c", 4, 5, pair_weight=0.7).double() for _ in "ab"]
    columns = [slice(0, 4), slice(4, 8)]
    for head, part in zip(apart, columns, strict=True):
        with torch.no_grad():
            head.weight.copy_(whole.weight[:, part])
    labels = torch.tensor([0, 3, 3, 1])
    for _ in range(2):  # the second batch meets what the first has left
        x = torch.randn(4, 8).double()
        found = whole(x, labels)
        wanted = sum(head(x[:, part], labels) for head, part in zip(apart, columns, strict=True))
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        whole.pairs.weight, torch.cat([head.pairs.weight for head in apart], dim=1)
    )


def test_parts_must_be_equal() -> None:
    with pytest.raises(ValueError, match="an embedding of 6 numbers has no 4 equal parts"):
        made().split(4)
