"""The tables of an evaluation: for the terminal (rich) and for the page, from one content."""

from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from sphereface2.evaluation import COMBINED, EvaluationResult, OperatingPoint, VerificationResult

UNRESOLVED = "*"
_ABSENT = "–"


@dataclass(frozen=True)
class Cell:
    """A value, and the small print under it."""

    text: str
    detail: str = ""
    strong: bool = False
    faint: bool = False


@dataclass(frozen=True)
class TableContent:
    """A table before it takes a form; the first column holds names, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def to_rich(self) -> Table:
        table = Table(
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            caption=self.note or None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 0, 0, 1),
        )
        for number, column in enumerate(self.columns):
            first = number == 0
            table.add_column(Text(column), justify="left" if first else "right", no_wrap=first)
        for row in self.rows:
            table.add_row(*(_rich_cell(cell) for cell in row))
        return table


def percent(share: float, *, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}"


def accuracy_text(result: VerificationResult) -> str:
    """LFW-protocol accuracy as tables print it: "97.3 ± 0.6"."""
    return f"{percent(result.accuracy)} ± {percent(result.accuracy_std)}"


def accuracy_content(evaluation: EvaluationResult) -> TableContent:
    """LFW-protocol accuracy of every model on every set; the best of each set is strong."""
    rows = []
    for model in evaluation.models:
        cells = [Cell(model, strong=model == evaluation.model)]
        for set_name in evaluation.sets:
            result = evaluation.find(model, set_name)
            if result is None:
                cells.append(Cell(_ABSENT, faint=True))
            else:
                best = result.accuracy >= _best(evaluation, set_name)
                cells.append(Cell(accuracy_text(result), strong=best))
        rows.append(tuple(cells))
    return TableContent(
        title="Verification accuracy (%)",
        columns=("model", *evaluation.sets),
        rows=tuple(rows),
        note="10-fold as on LFW: threshold from the other folds, mean ± deviation over the folds"
        if all(len(row.fold_accuracies) == 10 for row in evaluation.rows)
        else "threshold of each fold from the other folds, mean ± deviation over the folds",
    )


def detail_content(evaluation: EvaluationResult, *, model: str | None = None) -> TableContent:
    """The other numbers of one model, by default of the evaluation's subject."""
    subject = model or evaluation.model
    results = [evaluation.find(subject, name) for name in evaluation.sets]
    found = [result for result in results if result is not None]
    targets = sorted({p.target_far for r in found for p in r.tar_at_far}, reverse=True)
    rows = []
    for result in found:
        points = {point.target_far: point for point in result.tar_at_far}
        rows.append(
            (
                Cell(result.set_name, strong=result.set_name == COMBINED),
                Cell(percent(result.best_threshold_accuracy)),
                Cell(percent(result.eer)),
                Cell(percent(result.auc, digits=2)),
                *(_tar_cell(points.get(target)) for target in targets),
            )
        )
    unresolved = any(not point.resolved for result in found for point in result.tar_at_far)
    note = "under each TAR: the FAR reached, in impostor pairs accepted/all"
    if unresolved:
        note += f"; {UNRESOLVED} not resolved: the target is below one impostor pair"
    return TableContent(
        title=f"{subject} in detail (%)",
        columns=(
            "set",
            "best-threshold accuracy",
            "EER",
            "AUC",
            *(f"TAR@FAR {_rate(t)}" for t in targets),
        ),
        rows=tuple(rows),
        note=note,
    )


def accuracy_table(evaluation: EvaluationResult) -> Table:
    """The accuracy table for the terminal."""
    return accuracy_content(evaluation).to_rich()


def detail_table(evaluation: EvaluationResult, *, model: str | None = None) -> Table:
    """The table of EER, AUC, TAR at FAR and best-threshold accuracy for the terminal."""
    return detail_content(evaluation, model=model).to_rich()


def _best(evaluation: EvaluationResult, set_name: str) -> float:
    return max(row.accuracy for row in evaluation.rows if row.set_name == set_name)


def _tar_cell(point: OperatingPoint | None) -> Cell:
    if point is None:
        return Cell(_ABSENT, faint=True)
    mark = "" if point.resolved else UNRESOLVED
    accepted = round(point.far * point.impostors)
    return Cell(
        f"{percent(point.tar)}{mark}",
        detail=f"{accepted:,}/{point.impostors:,}",
        faint=not point.resolved,
    )


def _rate(share: float) -> str:
    return f"{100 * share:g}%"


def _rich_cell(cell: Cell) -> Text:
    # Text, not markup: a label may hold square brackets.
    text = Text(cell.text, style="bold" if cell.strong else "dim" if cell.faint else "")
    if cell.detail:
        text.append(f"\n{cell.detail}", style="dim not bold")
    return text
