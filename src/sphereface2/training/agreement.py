"""What the ranks tell each other after each backward pass, all in one exchange."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sphereface2.training.distributed import Team
from sphereface2.training.optimizer import clip_gradients, squared_norm
from sphereface2.training.state import class_parameters


@dataclass(frozen=True)
class Agreed:
    """A step as all ranks see it."""

    loss: float
    gradient_norm: float
    stops: bool
    """Whether any rank was asked to stop."""


class StepAgreement:
    """Agrees on a step: its loss, its gradient's norm, and whether the training stops after it.

    The backbone's gradients are the same on all ranks by then. Of the head's, those of the class
    weights are parts of one gradient, and the others are averaged here.
    """

    def __init__(self, team: Team, backbone: nn.Module, head: nn.Module) -> None:
        self.team = team
        per_class = class_parameters(head)
        # One rank has no parts: all its parameters count alike.
        self.shards = [] if team.is_alone else list(per_class.values())
        self.averaged = [p for name, p in head.named_parameters() if name not in per_class]
        shards = {id(parameter) for parameter in self.shards}
        self.whole = [
            p for p in (*backbone.parameters(), *head.parameters()) if id(p) not in shards
        ]

    def __call__(self, loss: Tensor, *, clip_norm: float | None, stops: bool) -> Agreed:
        """Clip the gradients, too, where `clip_norm` is given."""
        if self.team.is_alone:
            norm = clip_gradients(self.whole, clip_norm)
            return Agreed(loss.item(), norm.item(), stops)
        gradients = [p.grad for p in self.averaged if p.grad is not None]
        # In float64 the mean of equal float32 numbers is exactly that number.
        numbers = [loss.new_tensor([float(stops)]), squared_norm(self.shards).reshape(1)]
        numbers += [loss.reshape(1), *(gradient.reshape(-1) for gradient in gradients)]
        total = self.team.sum(torch.cat([n.to(loss.device, torch.float64) for n in numbers]))
        mean = total / self.team.world
        place = 3
        for gradient in gradients:
            values = mean[place : place + gradient.numel()]
            gradient.copy_(values.view_as(gradient))
            place += gradient.numel()
        norm = clip_gradients(self.whole, clip_norm, shards=self.shards, shards_square=total[1])
        return Agreed(mean[2].item(), norm.item(), bool(total[0] > 0))
