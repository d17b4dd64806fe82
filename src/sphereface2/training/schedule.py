"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from sphereface2.config import ScheduleConfig


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up to the peak, then one of four shapes over the remaining steps."""

    config: ScheduleConfig
    peak: float
    total_steps: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        # The config cannot check this where the training's length is given in the other unit.
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"schedule.warmup ({self.config.warmup:g} {self.config.unit}) must be shorter than "
                f"the training ({self.total_steps} steps of {self.steps_per_epoch} an epoch)"
            )

    @property
    def warmup_steps(self) -> int:
        return round(self.config.warmup * self._unit)

    def learning_rate(self, step: int) -> float:
        """The rate of the update that follows `step` completed ones."""
        warmup = self.warmup_steps
        if step < warmup:
            # The first update is not lost on a rate of zero, the last warm-up step is the peak.
            return self.peak * (step + 1) / warmup
        return self.peak * self._share(step, (step - warmup) / (self.total_steps - warmup))

    def _share(self, step: int, progress: float) -> float:
        config = self.config
        if config.name == "step":
            drops = bisect_right([m * self._unit for m in config.milestones], step)
            return math.pow(config.decay, drops)
        if config.name == "cosine":
            return config.final + (1 - config.final) * (1 + math.cos(math.pi * progress)) / 2
        if config.name == "polynomial":
            return config.final + (1 - config.final) * math.pow(1 - progress, config.power)
        assert config.name == "constant"
        return 1.0

    @property
    def _unit(self) -> int:
        return self.steps_per_epoch if self.config.unit == "epochs" else 1
