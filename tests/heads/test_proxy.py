"""How a head with class weights starts, what it draws, and the optimiser that it makes."""

from typing import Any

import pytest
import torch

from sphereface2.heads import ProxyHead, build_head
from sphereface2.heads.proxy import sample_classes


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
