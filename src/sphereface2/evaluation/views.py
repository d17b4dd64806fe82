"""What a protocol's result shows: numbers, tables and curves that any page or terminal can draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sphereface2.evaluation.intervals import Rate
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.results import ScoreHistogram
from sphereface2.evaluation.thresholds import Measure
from sphereface2.files import JsonResult

Value = str | int | float | Rate | Measure | None
"""A cell: rates are printed in percent with their interval, None is a dash."""


@dataclass(frozen=True)
class Table:
    """Rows under headings; the first column holds names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Roc:
    """An accept curve, drawn as ROC and as DET; `measures` at their targets are marked on it."""

    points: RocPoints
    measures: Sequence[Measure]
    genuine: int
    impostors: int


@dataclass(frozen=True)
class RateCurve:
    """A rate over a count on a logarithmic axis, such as a CMC: over the rank.

    marks: numbers of the table, with their intervals, by the count that they belong to
    """

    title: str
    x_label: str
    y_label: str
    x: Sequence[int]
    y: Sequence[float]
    marks: Sequence[tuple[int, Measure]] = ()


@dataclass(frozen=True)
class Histogram:
    """How the scores lie; the thresholds of `measures` that are resolved are marked."""

    counts: ScoreHistogram
    measures: Sequence[Measure] = ()


@dataclass(frozen=True)
class Compared:
    """The same rate of several groups side by side, with their intervals; `line` is that of all."""

    title: str
    rates: Sequence[tuple[str, Rate]]
    line: float | None = None


@dataclass(frozen=True)
class Part:
    """What belongs together under one title.

    measures: the main table; headline: the numbers that are quoted first
    conventions: those of this part alone
    """

    title: str
    measures: Sequence[Measure] = ()
    headline: Sequence[Measure] = ()
    tables: Sequence[Table] = ()
    rocs: Sequence[Roc] = ()
    curves: Sequence[RateCurve] = ()
    histograms: Sequence[Histogram] = ()
    compared: Sequence[Compared] = ()
    conventions: Sequence[str] = ()


@dataclass(frozen=True)
class View:
    """All that a result shows; `summary` is what was judged, in one line."""

    parts: Sequence[Part]
    summary: str = ""


@dataclass(frozen=True)
class ProtocolResult(JsonResult):
    """What every protocol's result has: a name, its conventions, its view; and it lives as JSON.

    protocol: its name; conventions: what was counted how, printed beside the numbers.
    missing_images: how many were left out because they have no embedding
    """

    IS: ClassVar[str] = "a result of this protocol"
    WRITTEN_BY: ClassVar[str] = "sphereface2 evaluate --protocol NAME"

    protocol: str
    conventions: tuple[str, ...]
    missing_images: int = field(default=0, kw_only=True)

    def view(self) -> View:
        """The numbers, tables and curves to show."""
        raise NotImplementedError

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Every number, in the order in which it is printed."""
        return tuple(measure for part in self.view().parts for measure in part.measures)


def cmc_view(title: str, cmc: Sequence[float], ranks: Sequence[Measure]) -> RateCurve:
    """A CMC curve; `ranks` are measures that are called "rank 1", "rank 5" ..."""
    marks = [(int(measure.name.removeprefix("rank ")), measure) for measure in ranks]
    return RateCurve(
        title=f"CMC, {title}",
        x_label="rank",
        y_label="found (%)",
        x=range(1, len(cmc) + 1),
        y=cmc,
        marks=[(rank, measure) for rank, measure in marks if rank <= len(cmc)],
    )


def strictest(measures: Sequence[Measure], *, target: float) -> list[Measure]:
    """The one at the strictest target that is resolved, but none stricter than `target`."""
    found = [
        (measure.at.target, measure)
        for measure in measures
        if measure.at is not None and measure.at.resolved and measure.at.target >= target
    ]
    return [min(found, key=lambda each: each[0])[1]] if found else []
