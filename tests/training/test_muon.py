"""Muon against the formula by numpy, and which parameters it leaves to SGD."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sphereface2.config.schema import OptimizerConfig
from sphereface2.training.muon import Muon, polar, turning
from sphereface2.training.optimizer import build_optimizer, set_learning_rate

Matrix = NDArray[np.float64]


def naive_polar(matrix: Matrix) -> Matrix:
    """Five rounds on the whole matrix, straight from the paper."""
    turned = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = turned @ turned.T
        turned = 3.4445 * turned + (-4.7750 * square + 2.0315 * square @ square) @ turned
    return turned


def matrix_with(values: NDArray[np.floating], *, rows: int, columns: int) -> Tensor:
    """A random matrix with these singular values."""
    random = np.random.default_rng(0)
    left = np.linalg.qr(random.normal(size=(rows, rows)))[0]
    right = np.linalg.qr(random.normal(size=(columns, columns)))[0]
    few = len(values)
    return torch.tensor(left[:, :few] * values @ right[:few], dtype=torch.float32)


@pytest.mark.parametrize(("rows", "columns"), [(8, 27), (27, 8), (16, 16), (1, 5)])
def test_polar_keeps_directions_and_makes_lengths_alike(rows: int, columns: int) -> None:
    few = min(rows, columns)
    matrix = matrix_with(np.geomspace(50.0, 1.0, few), rows=rows, columns=columns)
    found = polar(matrix).double().numpy()
    given = matrix.double().numpy()
    tall = rows > columns
    expected = naive_polar(given.T).T if tall else naive_polar(given)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    left, _, right = np.linalg.svd(given, full_matrices=False)
    lengths = np.diag(left.T @ found @ right.T)
    np.testing.assert_allclose(left @ np.diag(lengths) @ right, found, atol=1e-4)
    assert lengths.min() > 0.65
    assert lengths.max() < 1.25


def test_polar_of_nothing_is_nothing() -> None:
    assert torch.equal(polar(torch.zeros(3, 4)), torch.zeros(3, 4))


@pytest.mark.parametrize(("rows", "columns"), [(160, 300), (300, 160)])
def test_polar_in_half_precision_is_the_same_but_for_rounding(rows: int, columns: int) -> None:
    matrix = matrix_with(np.geomspace(50.0, 0.5, 160), rows=rows, columns=columns)
    given = matrix.double().numpy()
    expected = naive_polar(given.T).T if rows > columns else naive_polar(given)
    found = polar(matrix, torch.bfloat16)
    assert found.dtype == torch.bfloat16
    difference = np.linalg.norm(found.double().numpy() - expected) / np.linalg.norm(expected)
    assert 1e-4 < difference < 0.05  # bf16 keeps eight bits


def test_small_matrices_turn_in_float32_whatever_the_precision() -> None:
    matrix = matrix_with(np.geomspace(50.0, 1.0, 30), rows=30, columns=300)
    assert torch.equal(polar(matrix, torch.bfloat16), polar(matrix))


def test_a_training_in_half_precision_turns_in_half_precision() -> None:
    moved = []
    for precision in (None, torch.bfloat16):
        layer = nn.Linear(200, 150, bias=False)
        nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(5))
        layer.weight.grad = torch.randn(150, 200, generator=torch.Generator().manual_seed(6))
        config = OptimizerConfig(name="muon")
        build_optimizer(layer, nn.Identity(), config, precision=precision).step()
        moved.append(layer.weight.detach())
    assert not torch.equal(*moved)
    torch.testing.assert_close(*moved, rtol=0.0, atol=0.005)  # a step moves them by up to 0.1


def test_three_steps_by_hand() -> None:
    layer = nn.Linear(6, 4, bias=False)
    config = OptimizerConfig(
        name="muon", learning_rate=0.5, matrix_step=0.2, momentum=0.7, weight_decay=0.1
    )
    optimizer = build_optimizer(layer, nn.Identity(), config)
    weight = layer.weight.detach().double().numpy()
    momentum = np.zeros_like(weight)
    random = np.random.default_rng(1)
    for rate in (0.5, 0.25, 0.05):
        gradient = random.normal(size=weight.shape)
        set_learning_rate(optimizer, rate)
        layer.weight.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
        momentum = 0.7 * momentum + gradient
        ahead = gradient + 0.7 * momentum
        turn = naive_polar(ahead)
        length = np.linalg.norm(weight)
        # the step at the peak rate of 0.5 is 0.2 of the length, and falls with the rate
        share = 0.2 * (rate / 0.5)
        turned = weight - share * length * turn / np.linalg.norm(turn)
        along = np.sum(gradient * weight) / np.linalg.norm(gradient) / length
        wanted = length * (1 - 0.1 * rate) * (1 - share * along)
        weight = wanted * turned / np.linalg.norm(turned)
        np.testing.assert_allclose(layer.weight.detach().numpy(), weight, rtol=1e-4, atol=1e-5)


def test_a_convolution_turns_as_the_matrix_of_its_filters() -> None:
    convolution, linear = nn.Conv2d(3, 4, 2, bias=False), nn.Linear(12, 4, bias=False)
    with torch.no_grad():
        linear.weight.copy_(convolution.weight.flatten(1))
    gradient = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    convolution.weight.grad, linear.weight.grad = gradient.view(4, 3, 2, 2).clone(), gradient
    for layer in (convolution, linear):
        build_optimizer(layer, nn.Identity(), OptimizerConfig(name="muon")).step()
    assert torch.equal(convolution.weight.flatten(1), linear.weight)


def test_what_is_not_a_matrix_moves_by_sgd() -> None:
    """Norms, biases, single channels and class weights."""
    network = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 1, bias=False)
    )
    dense = network[2].weight
    assert [id(p) for p in turning(network.parameters())] == [id(dense)]
    head = nn.Linear(6, 5)
    moved: dict[str, list[nn.Parameter]] = {}
    for name in ("muon", "sgd"):
        copies = copy.deepcopy(network), copy.deepcopy(head)
        settings: dict[str, Any] = {"name": name, "decay_norms_and_biases": True}
        optimizer = build_optimizer(*copies, OptimizerConfig(**settings))
        parameters = [p for part in copies for p in part.parameters()]
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        moved[name] = parameters
    everything = [*network.parameters(), *head.parameters()]
    for before, muon, sgd in zip(everything, moved["muon"], moved["sgd"], strict=True):
        assert not torch.equal(before, muon)
        assert torch.equal(muon, sgd) == (before is not dense)


def test_a_matrix_whose_length_means_nothing_to_the_loss_keeps_it() -> None:
    """Gradients at a right angle to W: their polar factors are not, nor is their momentum."""
    layer = nn.Linear(8, 6, bias=False)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(4))
    config = OptimizerConfig(name="muon", weight_decay=0.0)
    optimizer = build_optimizer(layer, nn.Identity(), config)
    first = layer.weight.detach().clone()
    plain = torch.randn(6, 8, generator=torch.Generator().manual_seed(3)).pow(3)
    for _ in range(40):
        weight = layer.weight.detach().clone()
        gradient = plain - (plain * weight).sum() / weight.square().sum() * weight
        turn = polar(gradient)
        assert abs((turn * weight).sum() / turn.norm() / weight.norm()) > 0.04
        layer.weight.grad = gradient
        optimizer.step()
    assert not torch.allclose(layer.weight, first, rtol=0.1)
    # With the momentum in place of the gradient it would be an eighth longer.
    assert layer.weight.norm().item() == pytest.approx(first.norm().item(), rel=1e-4)


def test_a_matrix_of_zeros_can_learn() -> None:
    layer = nn.Linear(3, 3, bias=False)
    nn.init.zeros_(layer.weight)
    layer.weight.grad = torch.eye(3)
    optimizer = build_optimizer(layer, nn.Identity(), OptimizerConfig(name="muon"))
    optimizer.step()
    assert layer.weight.norm().item() == pytest.approx(0.03 * 3e-3)


def test_a_gradient_that_overflowed_moves_nothing() -> None:
    layer = nn.Linear(3, 3)
    before = [p.detach().clone() for p in layer.parameters()]
    optimizer = build_optimizer(layer, nn.Identity(), OptimizerConfig(name="muon"))
    assert isinstance(optimizer, Muon)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    scaler.scale(torch.zeros(()))  # a scaler steps only after it has scaled a loss
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert all(torch.equal(*pair) for pair in zip(before, layer.parameters(), strict=True))
    scaler.update()
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert not any(torch.equal(*pair) for pair in zip(before, layer.parameters(), strict=True))
