"""The result of the parallelisation measurement: images a second of heads over ranks."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sphereface2.evaluation.json_result import JsonResult


@dataclass(frozen=True)
class ParallelRun:
    """One head on one number of ranks.

    seconds: of a whole training step of the head, one entry a repeat
    exchanges, bytes_sent: a step and rank; how often it waits for the others, and what it sends
    """

    method: str
    ranks: int
    seconds: tuple[float, ...]
    exchanges: float = 0.0
    bytes_sent: float = 0.0


@dataclass(frozen=True)
class ParallelResult(JsonResult):
    """All heads on all numbers of ranks; the batch is one batch, shared out over the ranks.

    device: what a rank computes on, cpu or cuda; threads: of a rank on the cpu
    machine: what it ran on, in words
    """

    IS: ClassVar[str] = "the result of a parallelisation measurement"
    WRITTEN_BY: ClassVar[str] = "sphereface2 reproduce"

    identities: int
    dim: int
    batch: int
    device: str
    threads: int
    runs: tuple[ParallelRun, ...]
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.method for run in self.runs))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({run.ranks for run in self.runs}))

    def of(self, method: str) -> tuple[ParallelRun, ...]:
        """The runs of one head by rising numbers of ranks."""
        runs = [run for run in self.runs if run.method == method]
        return tuple(sorted(runs, key=lambda run: run.ranks))

    def images_per_second(self, run: ParallelRun) -> float:
        """By the median step."""
        return self.batch / statistics.median(run.seconds)

    def every_rate(self, run: ParallelRun) -> list[float]:
        """Images a second by every step that was timed."""
        return [self.batch / seconds for seconds in run.seconds]

    def speed_up(self, run: ParallelRun) -> float:
        """How many times the images a second of the same head on the fewest ranks."""
        return self.images_per_second(run) / self.images_per_second(self.of(run.method)[0])
