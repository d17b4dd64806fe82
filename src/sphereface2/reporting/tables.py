"""The tables of an evaluation: for the terminal (rich) and for the page, from one content."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich import box
from rich.table import Table
from rich.text import Text

from sphereface2.evaluation import (
    COMBINED,
    EvaluationResult,
    Interval,
    OperatingPoint,
    VerificationResult,
)
from sphereface2.reporting.published import LOSSES, PAIR_SETS, published_column

UNRESOLVED = "not resolved"
_ABSENT = "–"
_WIDTH = 10  # of what may be wrapped in a terminal: seven columns fit into 80


@dataclass(frozen=True)
class Cell:
    """A value, and the small print under it, which may have several lines."""

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
            # Wrapped here: rich would rather cut a long heading.
            heading = column if first else _wrapped(column)
            table.add_column(Text(heading), justify="left" if first else "right", no_wrap=first)
        for row in self.rows:
            table.add_row(*(_rich_cell(cell) for cell in row))
        return table


def percent(share: float, *, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}"


def accuracy_text(result: VerificationResult) -> str:
    """LFW-protocol accuracy as tables print it: "97.3 ± 0.6"."""
    return f"{percent(result.accuracy)} ± {percent(result.accuracy_std)}"


def interval_text(interval: Interval | None, *, digits: int = 1) -> str:
    """The ends of an interval in percent: "96.1–98.2", or nothing."""
    if interval is None:
        return ""
    return f"{percent(interval.low, digits=digits)}–{percent(interval.high, digits=digits)}"


def interval_note(results: Sequence[VerificationResult]) -> str:
    """What the intervals of these results are, in words."""
    intervals = [result.accuracy_interval for result in results if result.accuracy_interval]
    if not intervals:
        return ""
    by_people = [result.people for result in results if result.people is not None]
    how = f"people drawn anew ({_span(by_people)} a set)" if by_people else "pairs as trials"
    return f"under it the {100 * intervals[0].confidence:g}% interval, {how}"


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
                detail = interval_text(result.accuracy_interval)
                cells.append(Cell(accuracy_text(result), detail, strong=best))
        rows.append(tuple(cells))
    note = "threshold of each fold from the other folds, mean ± deviation over the folds"
    if all(len(row.fold_accuracies) == 10 for row in evaluation.rows):
        note = "10-fold as on LFW: threshold from the other folds, mean ± deviation over the folds"
    notes = (note, interval_note(evaluation.rows), missing_note(evaluation))
    return TableContent(
        title="Verification accuracy (%)",
        columns=("model", *evaluation.sets),
        rows=tuple(rows),
        note="; ".join(each for each in notes if each),
    )


def missing_note(evaluation: EvaluationResult) -> str:
    """What was left out because images have no embedding, set by set, or nothing."""
    results = [evaluation.find(evaluation.model, name) for name in evaluation.sets]
    return "; ".join(
        f"{each.set_name}: {each.missing_images:,} images without an embedding, "
        f"{each.skipped_pairs:,} of {each.pairs + each.skipped_pairs:,} pairs left out"
        for each in results
        if each is not None and each.missing_images and each.set_name != COMBINED
    )


def detail_content(evaluation: EvaluationResult, *, model: str | None = None) -> TableContent:
    """The other numbers of one model, by default of the evaluation's subject."""
    subject = model or evaluation.model
    results = [evaluation.find(subject, name) for name in evaluation.sets]
    found = [result for result in results if result is not None]
    targets = sorted({p.target_far for r in found for p in r.tar_at_far}, reverse=True)
    rows = []
    for result in found:
        by_target = {point.target_far: point for point in result.tar_at_far}
        rows.append(
            (
                Cell(result.set_name, strong=result.set_name == COMBINED),
                Cell(
                    percent(result.best_threshold_accuracy),
                    interval_text(result.best_threshold_interval),
                ),
                Cell(percent(result.eer), interval_text(result.eer_interval)),
                Cell(percent(result.auc, digits=2), interval_text(result.auc_interval)),
                *(_tar_cell(by_target.get(target)) for target in targets),
            )
        )
    points = [point for result in found for point in result.tar_at_far]
    intervals = any(point.interval for point in points)
    note = "under each TAR: " + ("its interval, then " if intervals else "")
    note += "the FAR reached, in impostor pairs accepted/all"
    if any(point.interval and point.interval.low == 0 < point.tar for point in points):
        note += "; from 0: too few impostor pairs stand above the threshold to bound it"
    if any(not point.resolved for point in points):
        note += f"; {UNRESOLVED}: the target is below one of so many impostor pairs"
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


def slices_content(evaluation: EvaluationResult) -> TableContent | None:
    """The decisions of the subject by attributes of the pairs; None if none are known."""
    results = [evaluation.find(evaluation.model, name) for name in evaluation.sets]
    rows = [
        (
            Cell(f"{result.set_name}, {each.attribute} {each.value}"),
            *(
                Cell(_ABSENT, faint=True)
                if rate is None
                else Cell(
                    percent(rate.value),
                    f"{interval_text(rate.interval)}\n{rate.successes:,}/{rate.trials:,}",
                )
                for rate in (each.right, each.true_accepts, each.false_accepts)
            ),
        )
        for result in results
        if result is not None
        for each in result.slices
    ]
    if not rows:
        return None
    return TableContent(
        title=f"{evaluation.model} by attributes of the pairs (%)",
        columns=("pairs", "decided right", "TAR", "FAR"),
        rows=tuple(rows),
        note="at the fold thresholds of the whole set; under each rate its interval and the pairs "
        "behind it",
    )


def published_content(evaluation: EvaluationResult) -> TableContent | None:
    """The paper's numbers for the sets of the same names, ours first; None if there are none.

    "Combined" is only the same where all four sets of the paper, and no others, were pooled.
    """
    columns = {
        name: column for name in evaluation.sets if (column := published_column(name)) is not None
    }
    if not columns:
        return None
    single = [name for name in evaluation.sets if name != COMBINED]
    if len(columns) == len(single) == len(PAIR_SETS) - 1 and COMBINED in evaluation.sets:
        columns[COMBINED] = PAIR_SETS[-1]
    ours: list[Cell] = [Cell(f"{evaluation.model} (ours)", strong=True)]
    for name in columns:
        result = evaluation.find(evaluation.model, name)
        if result is None:
            ours.append(Cell(_ABSENT, faint=True))
        else:
            ends = interval_text(result.accuracy_interval, digits=2)
            ours.append(Cell(percent(result.accuracy, digits=2), ends, strong=True))
    theirs = [
        (
            Cell(method),
            *(Cell(f"{LOSSES.value(method, column):.2f}") for column in columns.values()),
        )
        for method, _ in LOSSES.rows
    ]
    return TableContent(
        title="Beside the paper's numbers (%)",
        columns=("method", *columns.values()),
        rows=(tuple(ours), *theirs),
        note=f"theirs: the paper's table '{LOSSES.label}', {LOSSES.network}, without intervals",
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
    if not point.resolved:
        return Cell(UNRESOLVED, f"{point.impostors:,} impostors", faint=True)
    reached = f"{point.false_accepts:,}/{point.impostors:,}"
    ends = interval_text(point.interval)
    return Cell(percent(point.tar), f"{ends}\n{reached}" if ends else reached)


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _rate(share: float) -> str:
    return f"{100 * share:g}%"


def _wrapped(text: str) -> str:
    return "\n".join(wrap(text, _WIDTH, break_long_words=False)) or text


def _rich_cell(cell: Cell) -> Text:
    # Text, not markup: a label may hold square brackets.
    value = _wrapped(cell.text) if cell.faint else cell.text
    text = Text(value, style="bold" if cell.strong else "dim" if cell.faint else "")
    for line in cell.detail.splitlines():
        text.append(f"\n{_wrapped(line)}", style="dim not bold")
    return text
