"""The tables of a protocol's view, for the terminal and for the page."""

from collections.abc import Sequence

from sphereface2.evaluation.protocols.protocol import Table, Value
from sphereface2.evaluation.thresholds import Measure
from sphereface2.evaluation.uncertainty import Rate
from sphereface2.reporting.tables import UNRESOLVED, Cell, TableContent, interval_text, percent

ABSENT = Cell("–", faint=True)


def measures_content(title: str, measures: Sequence[Measure]) -> TableContent:
    """Every number with its interval, its trials and where it was read."""
    at_threshold = any(measure.at is not None for measure in measures)
    columns: tuple[str, ...] = ("measure", "rate (%)", "trials")
    if at_threshold:
        columns += ("false rate reached", "threshold")
    note = f"under each rate its {100 * measures[0].rate.interval.confidence:g}% interval"
    if any(not measure.resolved for measure in measures):
        note += f"; {UNRESOLVED}: the target is below one of so many impostor trials"
    return TableContent(
        title=title,
        columns=columns,
        rows=tuple(_row(measure, at_threshold=at_threshold) for measure in measures),
        note=note,
    )


def table_content(table: Table) -> TableContent:
    """Any table of a view."""
    rows = tuple(tuple(value_cell(value) for value in row) for row in table.rows)
    return TableContent(table.title, table.columns, rows, table.note)


def value_cell(value: Value) -> Cell:
    """A value as it is printed: rates in percent over their interval."""
    match value:
        case None:
            return ABSENT
        case Measure(resolved=False):
            return Cell(UNRESOLVED, faint=True)
        case Measure(rate=rate) | (Rate() as rate):
            ends = interval_text(rate.interval, digits=2)
            return Cell(percent(rate.value, digits=2), ends, strong=True)
        case int():
            return Cell(f"{value:,}")
        case float():
            return Cell(f"{value:.3g}".replace("-", "−"))
        case _:
            return Cell(value)


def _row(measure: Measure, *, at_threshold: bool) -> tuple[Cell, ...]:
    cells = (Cell(measure.name), value_cell(measure), Cell(f"{measure.rate.trials:,}"))
    if not at_threshold:
        return cells
    at = measure.at
    if at is None:
        return (*cells, Cell(""), Cell(""))
    of = f"of {at.impostors:,}"
    if not at.resolved:
        return (*cells, Cell("", of), Cell(""))
    threshold = f"{at.threshold:.4f}".replace("-", "−")
    return (*cells, Cell(f"{at.reached:.3g}", of), Cell(threshold))
