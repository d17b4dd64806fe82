"""SGD and AdamW: what is decayed, how they step, and clipping over backbone and head together."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from sphereface2.config.schema import OptimizerConfig
from sphereface2.heads import build_head
from sphereface2.training.distributed import Team
from sphereface2.training.muon import turned_by
from sphereface2.training.optimizer import (
    build_fused_sgd,
    build_optimizer,
    clip_gradients,
    remembered,
    set_learning_rate,
    squared_norm,
)
from sphereface2.training.step import StepAgreement
from tests.training.conftest import TinyNet


def group_of(optimizer: torch.optim.Optimizer, parameter: object) -> dict[str, Any]:
    for group in optimizer.param_groups:
        if any(member is parameter for member in group["params"]):
            return group
    raise AssertionError("the parameter is not optimised")


def decay_of(optimizer: torch.optim.Optimizer, parameter: object) -> float:
    return float(group_of(optimizer, parameter)["weight_decay"])


def test_everything_is_decayed_but_the_bias_of_the_head() -> None:
    net, head = TinyNet(), build_head("sphereface2-c", 8, 5)
    optimizer = build_optimizer(net, head, OptimizerConfig(weight_decay=0.3))
    assert all(decay_of(optimizer, parameter) == 0.3 for parameter in net.parameters())
    assert isinstance(head.weight, nn.Parameter)
    assert isinstance(head.bias, nn.Parameter)
    assert decay_of(optimizer, head.weight) == 0.3
    assert decay_of(optimizer, head.bias) == 0.0


def test_the_head_may_have_a_decay_of_its_own_even_zero() -> None:
    net, head = TinyNet(), build_head("cosface", 8, 5)
    config = OptimizerConfig(weight_decay=0.3, head_weight_decay=0.0)
    optimizer = build_optimizer(net, head, config)
    assert isinstance(head.weight, nn.Parameter)
    assert decay_of(optimizer, head.weight) == 0.0


def test_frozen_parameters_are_left_alone() -> None:
    net, head = TinyNet(), build_head("cosface", 8, 5)
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    optimizer = build_optimizer(net, head, OptimizerConfig())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 1


def test_two_steps_of_sgd_by_hand() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    config = OptimizerConfig(learning_rate=9.0, momentum=0.5, weight_decay=0.1)
    optimizer = build_optimizer(layer, nn.Identity(), config)
    weight, velocity = 1.0, 0.0
    for rate, gradient in [(0.5, 2.0), (0.25, -1.0)]:
        set_learning_rate(optimizer, rate)
        layer.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
        velocity = 0.5 * velocity + gradient + 0.1 * weight
        weight -= rate * velocity
        assert layer.weight.item() == pytest.approx(weight)


@pytest.mark.parametrize(
    ("settings", "decays"),
    [
        ({}, True),
        ({"decay_norms_and_biases": False}, False),
        ({"name": "adamw"}, False),
        ({"name": "adamw", "decay_norms_and_biases": True}, True),
        ({"name": "muon", "matrix_step": 0.1}, False),
    ],
)
def test_norms_and_biases_are_decayed_if_asked_for(settings: dict[str, Any], decays: bool) -> None:
    net, head = TinyNet(), build_head("sphereface2-c", 8, 5)
    config = OptimizerConfig(**{"weight_decay": 0.3, **settings})
    optimizer = build_optimizer(net, head, config)
    for name, parameter in net.named_parameters():
        is_decayed = decays or name in ("layers.0.weight", "layers.5.weight")
        assert decay_of(optimizer, parameter) == (0.3 if is_decayed else 0.0), name
    assert decay_of(optimizer, head.weight) == 0.3
    assert decay_of(optimizer, head.bias) == 0.0
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 8


def test_with_adamw_a_bias_moves_in_units_of_its_logits() -> None:
    for name, options, unit in (
        ("sphereface2-c", {"radius": 40.0}, 40.0),
        ("sphereface2-c", {"radius": 40.0, "bias": "per-class"}, 40.0),
        ("uniface", {"scale": 64.0}, 64.0),
        ("softmax", {}, 1.0),
    ):
        head = build_head(name, 8, 5, **options)
        adamw = OptimizerConfig(name="adamw", learning_rate=0.01)
        for config, rate in ((adamw, 0.1 * unit), (OptimizerConfig(learning_rate=0.01), 0.01)):
            built = build_optimizer(nn.Identity(), head, config)
            assert group_of(built, head.bias)["lr"] == pytest.approx(rate), (name, config.name)
            assert decay_of(built, head.bias) == 0.0
    # The term on pairs has a bias of its own, in the units of its own logits.
    for name, options, unit in (
        ("sphereface2-c", {"radius": 20.0, "pair_weight": 1.0}, 20.0),
        ("unitsface", {"scale": 30.0, "pair_scale": 50.0}, 50.0),
    ):
        head = build_head(name, 8, 5, **options)
        built = build_optimizer(nn.Identity(), head, adamw)
        assert group_of(built, head.get_submodule("pairs").bias)["lr"] == pytest.approx(0.1 * unit)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"name": "adamw"},
        {"fused_head": True},
        {"name": "muon", "matrix_step": 0.5, "fused_head": True},
    ],
)
def test_class_weights_may_have_a_rate_of_their_own(settings: dict[str, Any]) -> None:
    net, head = TinyNet(), build_head("sphereface2-c", 8, 5)
    config = OptimizerConfig(**{"head_learning_rate": 4.0, "learning_rate": 0.5, **settings})
    fused = build_fused_sgd(head, config)
    optimizer = build_optimizer(net, head, config)
    mover = optimizer if fused is None else fused
    assert group_of(mover, head.weight)["lr"] == 2.0
    for each in (optimizer, mover):
        set_learning_rate(each, 0.25)
    assert group_of(mover, head.weight)["lr"] == 1.0
    assert group_of(optimizer, head.bias)["lr"] == (
        75.0 if settings.get("name") == "adamw" else 0.25
    )
    assert all(group_of(optimizer, p)["lr"] == 0.25 for p in net.parameters())


def test_three_steps_of_adamw_by_hand() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    config = OptimizerConfig(name="adamw", weight_decay=0.1, betas=(0.8, 0.9), eps=0.01)
    optimizer = build_optimizer(layer, nn.Identity(), config)
    assert optimizer.param_groups[0]["lr"] == 1e-3
    weight, mean, square = 1.0, 0.0, 0.0
    for step, (rate, gradient) in enumerate([(0.5, 2.0), (0.25, -1.0), (0.1, 0.5)], 1):
        set_learning_rate(optimizer, rate)
        layer.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.9 * square + 0.1 * gradient**2
        unbiased = mean / (1 - 0.8**step), square / (1 - 0.9**step)
        weight -= rate * 0.1 * weight  # the decay is not part of the gradient
        weight -= rate * unbiased[0] / (math.sqrt(unbiased[1]) + 0.01)
        assert layer.weight.item() == pytest.approx(weight)


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({}, {"momentum"}),
        ({"momentum": 0.0}, set()),
        ({"name": "adamw"}, {"momentum", "mean_square", "updates"}),
        ({"name": "muon"}, {"momentum"}),
    ],
)
def test_asking_what_is_remembered_changes_no_step(
    settings: dict[str, Any], kinds: set[str]
) -> None:
    weights = []
    for asks in (True, False):
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        optimizer = build_optimizer(net, nn.Identity(), OptimizerConfig(**settings))
        for _ in range(3):
            if asks:
                assert {k for p in net.parameters() for k in remembered(optimizer, p)} == kinds
            optimizer.zero_grad()
            net(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
        weights.append(net.weight)
    assert torch.equal(*weights)


def test_clipping_sees_all_gradients_together() -> None:
    first, second, unused = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    first.grad, second.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert clip_gradients([first, second, unused], None).item() == 5.0
    assert first.grad.tolist() == [3.0, 0.0]
    assert clip_gradients([first, second, unused], 10.0).item() == 5.0
    assert first.grad.tolist() == [3.0, 0.0]
    assert clip_gradients([first, second, unused], 1.0).item() == 5.0
    assert first.grad.tolist() == pytest.approx([0.6, 0.0])
    assert second.grad.tolist() == pytest.approx([0.0, 0.8])


def test_clipping_leaves_out_what_muon_turns() -> None:
    network, head = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.Linear(3, 2)
    optimizer = build_optimizer(network, head, OptimizerConfig(name="muon"))
    matrices = turned_by(optimizer)
    assert [id(p) for p in matrices] == [id(network[0].weight)]
    agreement = StepAgreement(Team(), network, head, turned=matrices)
    for parameter in (*network.parameters(), *head.parameters()):
        parameter.grad = torch.ones_like(parameter)
    others = [p for p in (*network.parameters(), *head.parameters()) if p is not matrices[0]]
    norm = sum(p.numel() for p in others) ** 0.5
    agreed = agreement(torch.tensor(1.0), clip_norm=norm / 2, stops=False)
    assert agreed.gradient_norm == pytest.approx(norm)
    gradient = matrices[0].grad
    assert gradient is not None
    assert torch.equal(gradient, torch.ones(3, 3))
    for parameter in others:
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.5))
    gradient[1, 1] = torch.inf  # an error is seen all the same
    assert math.isnan(agreement(torch.tensor(1.0), clip_norm=1.0, stops=False).gradient_norm)


def test_clipping_counts_what_other_ranks_hold() -> None:
    whole, shard = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    whole.grad, shard.grad = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 2.0])
    everywhere = squared_norm([shard]) + 7.0  # what another rank holds
    norm = clip_gradients([whole], 1.0, shards=[shard], shards_square=everywhere)
    assert norm.item() == 4.0
    assert whole.grad.tolist() == pytest.approx([0.5, 0.0])
    assert shard.grad.tolist() == pytest.approx([0.25, 0.5])


def test_class_weights_that_the_head_moves_are_left_to_it() -> None:
    net, head = TinyNet(), build_head("sphereface2-c", 8, 5)
    config = OptimizerConfig(weight_decay=0.3, head_weight_decay=0.1, fused_head=True)
    fused = build_fused_sgd(head, config)
    assert fused is not None
    assert fused.param_groups[0]["weight_decay"] == 0.1
    optimizer = build_optimizer(net, head, config)
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(head.weight) not in owned
    assert id(head.bias) in owned
    assert build_fused_sgd(head, OptimizerConfig()) is None


def test_the_settings_reach_both_optimisers() -> None:
    head = build_head("cosface", 8, 5)
    fused = build_fused_sgd(head, OptimizerConfig(learning_rate=0.7, momentum=0.6, fused_head=True))
    assert fused is not None
    assert (fused.param_groups[0]["lr"], fused.param_groups[0]["momentum"]) == (0.7, 0.6)
    for nesterov in (True, False):
        config = OptimizerConfig(learning_rate=0.7, momentum=0.6, nesterov=nesterov)
        for group in build_optimizer(TinyNet(), head, config).param_groups:
            assert (group["lr"], group["momentum"]) == (0.7, 0.6)
            assert group["nesterov"] is nesterov
