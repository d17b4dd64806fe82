"""Muon: the matrices of a network turn in all their directions alike; the rest moves by SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sphereface2.training.distributed import ALONE, Team

# Five rounds of x -> ax + bx³ + cx⁵ bring singular values from 0.01 to 1 near 1: between 0.7 and
# 1.2, which is as good as 1 here and takes fewer rounds (Jordan et al. 2024, "Muon").
_ROUNDS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315
_SMALLEST = 1e-7
_SMALLEST_IN_HALF = 128  # smaller matrices are turned as fast in float32


class Muon(torch.optim.SGD):
    """SGD but for groups with `turns=True`, whose matrices each step turns by `lr` of a radian.

    The momentum m ← μm + g looks ahead by a step, u = g + μm, and is replaced by the nearest
    matrix whose singular values are all the same: plain gradients are nearly of rank one, so that
    most directions of a matrix hardly learn. A convolution counts as the matrix of its filters.
    The step is a share of the matrix's own length,

        T = W - lr · ‖W‖ · O / ‖O‖,    O = polar(u),
        W ← (1 - lr · decay) · (1 - lr · cos(g, W)) · ‖W‖ · T / ‖T‖,

    so that one `lr` suits matrices of any size, started from any weights. The matrix turns with O,
    but its length follows the gradient of the step alone: where the loss does not care for the
    length of W, as before a batch norm, only that gradient stands at a right angle to W. O does
    not, and neither does m: W has turned away from the earlier gradients since, by which it would
    grow by a share of lr² in every step and overflow in a long training.
    `precision` is that of the products for O; all else is as precise as the parameters. Of several
    ranks, which hold the same gradients, each computes the O of some matrices and gives it to all.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        momentum: float,
        fused: bool,
        precision: torch.dtype | None = None,
        team: Team = ALONE,
    ) -> None:
        super().__init__(
            [{"turns": False, **group} for group in groups], momentum=momentum, fused=fused
        )
        self.precision = precision
        self.team = team

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch types it as overloads
        every = self.param_groups
        self.param_groups = [group for group in every if not group["turns"]]
        try:
            loss: float | None = super().step(closure)
        finally:
            self.param_groups = every
        # A gradient scaler says by this that the loss was scaled too high; SGD has passed over it.
        overflow = getattr(self, "found_inf", None)
        if overflow is None or not overflow.item():
            for group in every:
                if group["turns"]:
                    self._turn(group)
        return loss

    def _turn(self, group: dict[str, Any]) -> None:
        rate, momentum = group["lr"], group["momentum"]
        matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
        for matrix in matrices:
            state = self.state[matrix]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(matrix)
            state["momentum_buffer"].mul_(momentum).add_(matrix.grad)

        def turn_of(matrix: Tensor) -> Tensor:
            assert matrix.grad is not None
            ahead = matrix.grad.add(self.state[matrix]["momentum_buffer"], alpha=momentum)
            return polar(ahead.flatten(1), self.precision)

        turns = self.team.divided(
            matrices,
            turn_of,
            outline=lambda matrix: _outline(matrix.flatten(1), self.precision),
            # About how many multiplications it takes, in some unit.
            cost=lambda matrix: min(matrix.flatten(1).shape) * matrix.numel(),
        )
        for matrix, half in zip(matrices, turns, strict=True):
            assert matrix.grad is not None
            turn, length = half.to(matrix.dtype).view_as(matrix), matrix.norm()
            along = (matrix.grad * matrix).sum() / matrix.grad.norm().clamp(min=_SMALLEST)
            along /= length.clamp(min=_SMALLEST)
            wanted = length * (1.0 - rate * along) * (1.0 - rate * group["weight_decay"])
            # A matrix of zeros has no length: it is given that of entries of 0.001.
            least = 1e-3 * matrix.numel() ** 0.5
            step = rate * length.clamp(min=least) / turn.norm().clamp(min=_SMALLEST)
            matrix.sub_(turn * step)
            matrix.mul_(wanted.clamp(min=rate * least) / matrix.norm().clamp(min=_SMALLEST))


def polar(matrix: Tensor, precision: torch.dtype | None = None) -> Tensor:
    """About UVᵀ of a matrix UΣVᵀ: its directions stay, its singular values come near 1.

    In float32 all rounds work on the small square A = XXᵀ alone: with P = a + bA + cA² the next X
    is PX and the next A is PAP, so that the long side of X is walked through twice and not ten
    times. A `precision` of half the bits would lose the small singular values in A: there each
    round is one of X itself, which is faster all the same where such products are.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    wide = (matrix.T if is_tall else matrix).float()
    wide = wide / wide.norm().clamp(min=_SMALLEST)
    turned: Tensor = wide.to(_precision(matrix, precision))
    if turned.dtype is torch.float32:
        turned = _factor(turned @ turned.T) @ turned
    else:
        for _ in range(_ROUNDS):
            square = turned @ turned.T
            factor = torch.addmm(square, square, square, beta=_B, alpha=_C)
            turned = torch.addmm(turned, factor, turned, beta=_A)
    # Of one layout, whoever computes it: the order of a sum is in its last bits.
    return turned.T.contiguous() if is_tall else turned


def _precision(matrix: Tensor, precision: torch.dtype | None) -> torch.dtype:
    is_small = min(matrix.shape) < _SMALLEST_IN_HALF
    return torch.float32 if precision is None or is_small else precision


def _outline(matrix: Tensor, precision: torch.dtype | None) -> Tensor:
    """An empty tensor for the polar factor of a matrix."""
    return torch.empty(matrix.shape, dtype=_precision(matrix, precision), device=matrix.device)


def _factor(square: Tensor) -> Tensor:
    """The product of the factors of all rounds, given XXᵀ."""
    product = None
    for number in range(_ROUNDS):
        factor = torch.addmm(square, square, square, beta=_B, alpha=_C)
        factor.diagonal().add_(_A)
        product = factor if product is None else factor @ product
        if number < _ROUNDS - 1:
            square = factor @ square @ factor
    assert product is not None
    return product


def turning(network: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """The parameters that are matrices: not those of single channels, which have one input each."""
    return [p for p in network if p.ndim > 1 and p.shape[1] > 1]


def turned_by(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The matrices that an optimiser turns; none, unless it is Muon."""
    groups = [group for group in optimizer.param_groups if group.get("turns")]
    return [parameter for group in groups for parameter in group["params"]]
