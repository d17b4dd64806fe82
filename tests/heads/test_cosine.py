"""The maths on cosines against angles, and at the ends, where rounding leaves [-1, 1]."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sphereface2.heads.cosine import (
    add_angle,
    add_angle_saturating,
    adjust,
    adjust_for_gradient,
    adjust_slope,
    multiply_angle,
    sine,
)

Map = Callable[[Tensor], Tensor]
ANGLES = torch.linspace(0.05, math.pi - 0.05, 40, dtype=torch.float64)
BEYOND = torch.tensor([1.0 + 1e-6, 1.0, -1.0, -1.0 - 1e-6], dtype=torch.float64)


def slope(of: Map, cosine: Tensor) -> Tensor:
    cosine = cosine.clone().requires_grad_()
    return torch.autograd.grad(of(cosine).sum(), [cosine])[0]


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.5, 3.0])
def test_the_adjustment_runs_from_minus_one_to_one_and_no_further(sharpness: float) -> None:
    ends = adjust(BEYOND, sharpness)
    if sharpness == 1.0:
        assert torch.equal(ends, BEYOND)
        return
    assert ends.tolist() == [1.0, 1.0, -1.0, -1.0]
    values = adjust_for_gradient(BEYOND, sharpness, "exact")
    assert values[:2].tolist() == [1.0, 1.0]
    assert values[2:].tolist() == pytest.approx([-1.0, -1.0], abs=0.01)
    exact = slope(lambda c: adjust_for_gradient(c, sharpness, "exact"), BEYOND)
    assert torch.isfinite(exact).all()
    assert torch.isfinite(adjust_slope(BEYOND.clone(), sharpness)).all()


@pytest.mark.parametrize("sharpness", [0.5, 2.5, 3.0])
def test_the_slope_of_the_adjustment_is_its_derivative(sharpness: float) -> None:
    expected = slope(lambda c: adjust(c, sharpness), ANGLES.cos())
    torch.testing.assert_close(adjust_slope(ANGLES.cos(), sharpness), expected)
    exact = slope(lambda c: adjust_for_gradient(c, sharpness, "exact"), ANGLES.cos())
    torch.testing.assert_close(exact, expected)
    through: Map = lambda c: adjust_for_gradient(c, sharpness, "straight-through")  # noqa: E731
    torch.testing.assert_close(through(ANGLES.cos()), adjust(ANGLES.cos(), sharpness))
    torch.testing.assert_close(slope(through, ANGLES.cos()), torch.ones_like(ANGLES))


def test_the_sine_is_that_of_the_angle_with_a_finite_slope_at_the_ends() -> None:
    torch.testing.assert_close(sine(ANGLES.cos()), ANGLES.sin())
    assert (sine(BEYOND) < 0.001).all()
    assert torch.isfinite(slope(sine, BEYOND)).all()


@pytest.mark.parametrize("margin", [0.0, 0.3, 1.2])
def test_an_added_angle_is_added_up_to_pi(margin: float) -> None:
    inside = ANGLES + margin < math.pi
    expected = (ANGLES + margin).cos()[inside]
    torch.testing.assert_close(add_angle(ANGLES.cos(), margin)[inside], expected)
    torch.testing.assert_close(add_angle_saturating(ANGLES.cos(), margin)[inside], expected)
    assert (add_angle_saturating(ANGLES.cos(), margin)[~inside] == -1.0).all()
    # Beyond π it keeps falling, from no more than the -1 that it has reached there.
    beyond = add_angle(ANGLES.cos(), margin)[~inside]
    torch.testing.assert_close(beyond, ANGLES.cos()[~inside] - margin * math.sin(margin))
    assert (beyond.diff() < 0).all()


@pytest.mark.parametrize("margin", [1.0, 1.5, 2.0])
def test_a_multiplied_angle_is_multiplied_up_to_pi(margin: float) -> None:
    expected = (ANGLES * margin).clamp(max=math.pi).cos()
    torch.testing.assert_close(multiply_angle(ANGLES.cos(), margin), expected)
    assert multiply_angle(BEYOND, margin)[:2].tolist() == [1.0, 1.0]
    assert add_angle_saturating(BEYOND, 0.0).tolist() == [1.0, 1.0, -1.0, -1.0]


def test_the_floors_that_keep_slopes_finite() -> None:
    """At c = -1 a power below one is taken of 1e-6, and a sine is that of 1e-7."""
    end = torch.tensor([-1.0], dtype=torch.float64)
    assert adjust_slope(end.clone(), 0.5).item() == pytest.approx(0.5 * 1e3)
    assert adjust_slope(end.clone(), 2.0).item() == 0.0
    assert adjust_for_gradient(end, 0.5, "exact").item() == pytest.approx(2e-3 - 1.0)
    assert adjust_for_gradient(end, 2.0, "exact").item() == -1.0
    assert sine(end).item() == pytest.approx(1e-7**0.5)
