"""What a training will need, told before it starts: data, steps, memory, disk and time."""

from sphereface2.estimating.estimate import DataNeed, Estimate, estimate
from sphereface2.estimating.planning import plan_run

__all__ = ["DataNeed", "Estimate", "estimate", "plan_run"]
