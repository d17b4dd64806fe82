"""What a training will need, told before it starts: data, steps, memory, disk and time."""

from sphereface2.estimating.estimate import DataNeed, Estimate, estimate
from sphereface2.estimating.known_data import KNOWN_DATA, KnownData, known_data_of
from sphereface2.estimating.planning import PlannedRun, plan_run

__all__ = [
    "KNOWN_DATA",
    "DataNeed",
    "Estimate",
    "KnownData",
    "PlannedRun",
    "estimate",
    "known_data_of",
    "plan_run",
]
