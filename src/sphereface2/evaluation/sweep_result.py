"""The result of a sweep: for each setting what its seeds reached, beside what the paper printed.

Tables, pages and figures read this and nothing else.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sphereface2.evaluation.json_result import JsonResult
from sphereface2.model_step import ModelStep


@dataclass(frozen=True)
class SeedRun:
    """One training of one setting.

    values: column -> number, in percent where the column is a rate; empty if the run failed
    folder: the run folder, relative to the folder of all runs
    error: one sentence if the run failed
    model_step: which step of the training was measured; None where that is not known
    """

    seed: int
    folder: str
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    model_step: ModelStep | None = None


@dataclass(frozen=True)
class SweepRow:
    """One setting: what was asked for, the runs that answer it, and the paper's answer.

    method: the head's name, for the colour
    command: trains one seed of this setting by hand
    config: the YAML of the resolved config, of the first seed
    published: column of this sweep -> the paper's number; empty if the paper has no such row
    """

    label: str
    method: str
    overrides: tuple[str, ...]
    command: str
    config: str
    runs: tuple[SeedRun, ...]
    published: Mapping[str, float] = field(default_factory=dict)

    def numbers(self, column: str) -> list[float]:
        """The values of all seeds that have one."""
        return [run.values[column] for run in self.runs if column in run.values]

    def mean(self, column: str) -> float | None:
        numbers = self.numbers(column)
        return statistics.fmean(numbers) if numbers else None

    def deviation(self, column: str) -> float | None:
        """The sample standard deviation over seeds, which one seed does not have."""
        numbers = self.numbers(column)
        return statistics.stdev(numbers) if len(numbers) > 1 else None

    def standard_error(self, column: str) -> float | None:
        deviation = self.deviation(column)
        return None if deviation is None else deviation / math.sqrt(len(self.numbers(column)))


@dataclass(frozen=True)
class SweepResult(JsonResult):
    """All settings of one sweep.

    columns: what is measured, in the order of the table
    judged: the column to judge by; "", or one that no run has a number for: the last
    published_columns: column -> what the paper's table calls its counterpart
    where: the paper's place ("Table 2"), or "" beyond the paper
    versions: of the packages that measured the runs
    pairs: column -> how many pairs stand behind its numbers, where that is known
    """

    IS: ClassVar[str] = "the result of a sweep"
    WRITTEN_BY: ClassVar[str] = "sphereface2 sweep"

    name: str
    title: str
    recipe: str
    columns: tuple[str, ...]
    rows: tuple[SweepRow, ...]
    where: str = ""
    scale: str = "small"
    command: str = ""
    published_columns: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    judged: str = ""
    pairs: Mapping[str, int] = field(default_factory=dict)

    @property
    def judged_by(self) -> str:
        return self.judged if self.judged in self.columns else self.columns[-1]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for row in self.rows for run in row.runs}))
