"""The tables of a protocol's result, for the terminal and for the page."""

from collections.abc import Mapping, Sequence

from sphereface2.evaluation.ijb import IjbResult
from sphereface2.evaluation.ijb_identification import IjbIdentification
from sphereface2.evaluation.megaface import MegaFaceResult
from sphereface2.evaluation.results import ProtocolResult
from sphereface2.evaluation.thresholds import Measure
from sphereface2.reporting.published import (
    IJB_B,
    IJB_B_ADJUSTED,
    IJB_B_MARGINS,
    IJB_C,
    IJB_C_ADJUSTED,
    IJB_C_MARGINS,
    MEGAFACE,
    PublishedTable,
)
from sphereface2.reporting.tables import UNRESOLVED, Cell, TableContent, interval_text, percent

_IJB_TABLES = {
    "ijb-b": (IJB_B, IJB_B_ADJUSTED, IJB_B_MARGINS),
    "ijb-c": (IJB_C, IJB_C_ADJUSTED, IJB_C_MARGINS),
}
# The paper's columns and our names of the same numbers.
_IJB_NAMES = {
    "TAR@FAR 1e-5": "TAR@FAR=1e-05",
    "TAR@FAR 1e-4": "TAR@FAR=0.0001",
    "TAR@FAR 1e-3": "TAR@FAR=0.001",
    "rank-1": "rank 1",
    "TPIR@FPIR 1e-2": "TPIR@FPIR=0.01",
    "TPIR@FPIR 1e-1": "TPIR@FPIR=0.1",
}
_ABSENT = Cell("–", faint=True)


def parts_of(result: ProtocolResult) -> tuple[ProtocolResult, ...]:
    """The results that have numbers of their own: those of IJB's parts, or the result itself."""
    return result.parts if isinstance(result, IjbResult) else (result,)


def measures_content(part: ProtocolResult) -> TableContent:
    """Every number with its interval, its trials and where it was read."""
    measures = part.measures
    at_threshold = any(measure.at is not None for measure in measures)
    columns: tuple[str, ...] = ("measure", "rate (%)", "trials")
    if at_threshold:
        columns += ("false rate reached", "threshold")
    note = f"under each rate its {_confidence(measures)} interval"
    if any(not measure.resolved for measure in measures):
        note += f"; {UNRESOLVED}: the target is below one of so many impostor trials"
    return TableContent(
        title=part.protocol,
        columns=columns,
        rows=tuple(_row(measure, at_threshold=at_threshold) for measure in measures),
        note=note,
    )


def galleries_content(part: IjbIdentification) -> TableContent:
    """The numbers of each gallery alone."""
    first = part.galleries[0]
    return TableContent(
        title=f"{part.protocol}, gallery by gallery (%)",
        columns=(
            "gallery",
            "people",
            "mated",
            "non-mated",
            *(measure.name for measure in (*first.ranks, *first.tpir)),
        ),
        rows=tuple(
            (
                Cell(each.gallery),
                *(Cell(f"{count:,}") for count in (each.people, each.mated, each.non_mated)),
                *(_rate_cell(measure, digits=2) for measure in (*each.ranks, *each.tpir)),
            )
            for each in part.galleries
        ),
        note="probes are mated if their person is in the gallery",
    )


def published_contents(result: ProtocolResult) -> list[TableContent]:
    """The paper's numbers for the same protocol, ours first; none if it has none."""
    if isinstance(result, IjbResult) and result.protocol in _IJB_TABLES:
        ours = _ijb_rows(result)
        return [_beside(table, ours) for table in _IJB_TABLES[result.protocol]]
    if isinstance(result, MegaFaceResult):
        return [_beside(MEGAFACE, [_megaface_row(result)])]
    return []


def _row(measure: Measure, *, at_threshold: bool) -> tuple[Cell, ...]:
    cells = (
        Cell(measure.name),
        _rate_cell(measure, digits=2),
        Cell(f"{measure.rate.trials:,}"),
    )
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


def _rate_cell(measure: Measure, *, digits: int) -> Cell:
    if not measure.resolved:
        return Cell(UNRESOLVED, faint=True)
    rate = measure.rate
    ends = interval_text(rate.interval, digits=digits)
    return Cell(percent(rate.value, digits=digits), ends, strong=True)


def _confidence(measures: Sequence[Measure]) -> str:
    return f"{100 * measures[0].rate.interval.confidence:g}%" if measures else "95%"


def _ijb_rows(result: IjbResult) -> list[tuple[Cell, Mapping[str, Cell]]]:
    pairs = {} if result.verification is None else _by_name(result.verification.measures)
    searches = [
        (word, {**pairs, **_by_name(part.measures)})
        for word, part in (("1:N standard", result.standard), ("1:N legacy", result.legacy))
        if part is not None
    ]
    rows: list[tuple[Cell, Mapping[str, Cell]]] = []
    for word, found in searches or [("1:1", pairs)]:
        cells = {
            column: _rate_cell(found[name], digits=2)
            for column, name in _IJB_NAMES.items()
            if name in found
        }
        rows.append((Cell(f"ours, {word}", strong=True), cells))
    return rows


def _megaface_row(result: MegaFaceResult) -> tuple[Cell, Mapping[str, Cell]]:
    kind = ", refined" if result.noisy_probes or result.noisy_distractors else ""
    cells = {f"rank-1{kind}": _rate_cell(result.rank_1[-1], digits=2)}
    at = _by_name(result.tpr).get("TPR@FPR=1e-06")
    if at is not None:
        cells[f"TPR@FPR 1e-6{kind}"] = _rate_cell(at, digits=2)
    return Cell("ours", strong=True), cells


def _by_name(measures: Sequence[Measure]) -> dict[str, Measure]:
    return {measure.name.removeprefix("legacy "): measure for measure in measures}


def _beside(table: PublishedTable, ours: Sequence[tuple[Cell, Mapping[str, Cell]]]) -> TableContent:
    mine = [
        (name, *(cells.get(column, _ABSENT) for column in table.columns)) for name, cells in ours
    ]
    theirs = [
        (Cell(method), *(_ABSENT if value is None else Cell(f"{value:.2f}") for value in values))
        for method, values in table.rows
    ]
    return TableContent(
        title=f"Beside the paper's numbers: {table.network} (%)",
        columns=("method", *table.columns),
        rows=(*mine, *theirs),
        note=f"theirs: the paper's table '{table.label}', without intervals; its 1:N is presumably "
        "the legacy one"
        if table is not MEGAFACE
        else f"theirs: the paper's table '{table.label}', without intervals",
    )
