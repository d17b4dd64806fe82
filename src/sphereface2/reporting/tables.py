"""The tables of an evaluation: for the terminal (rich) and for the page, from one content."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from textwrap import wrap

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sphereface2.evaluation.pair_scores import COMBINED
from sphereface2.evaluation.thresholds import RateAtTarget
from sphereface2.evaluation.uncertainty import Interval, Rate
from sphereface2.evaluation.verification import EvaluationResult, VerificationResult
from sphereface2.workers import counted

UNRESOLVED = "not resolved"
_WHOLE = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
_WIDTH = 10  # of what may be wrapped in a terminal: seven columns fit into 80
_LABEL_WIDTHS = (20, 14)  # of a label's line where the terminal is too narrow for the whole
_MANY_PAIRS = 1000  # from here on a second decimal is more than chance


@dataclass(frozen=True)
class Cell:
    """A value, its deviation if it has one, and the small print under it, perhaps of several lines.

    In a narrow table the deviation goes under the value.
    """

    value: str
    detail: str = ""
    strong: bool = False
    faint: bool = False
    deviation: str = ""

    @property
    def text(self) -> str:
        """All of it in one line: "97.3 ± 0.6"."""
        return f"{self.value} ± {self.deviation}" if self.deviation else self.value


ABSENT = Cell("–", faint=True)


@dataclass(frozen=True)
class TableContent:
    """A table for pages and terminals; the first column holds names, the others numbers.

    It fits its terminal: where that is narrow it grows downwards, never wrapping or cutting a
    number or a heading. First deviations go under their means and labels are broken, then columns
    are shown in blocks.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def to_grid(self) -> Table:
        """The table as it is, however wide; nothing in it is wrapped or cut."""
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
            heading = Text(column if first else _wrapped(column))
            table.add_column(heading, justify="left" if first else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(_rich_cell(cell) for cell in row))
        return table

    def stacked(self, label_width: int, *, cut: bool = False) -> "TableContent":
        """Narrower: labels broken between words (or `cut` within), deviations under their means.

        A deviation stays where the column is as wide without it.
        """
        stacked = [_stacked(row, label_width, cut) for row in self.rows]
        for number, heading in enumerate(self.columns[1:], start=1):
            column = [row[number] for row in stacked]
            room = max(
                len(line)
                for text in (_wrapped(heading), *(f"{each.text}\n{each.detail}" for each in column))
                for line in text.splitlines()
            )
            if all(len(row[number].text) <= room for row in self.rows):
                for row, whole in zip(stacked, self.rows, strict=True):
                    row[number] = whole[number]
        return replace(self, rows=tuple(map(tuple, stacked)))

    def part(self, columns: Sequence[int], *, note: str = "", title: str = "") -> "TableContent":
        """The names and some of the columns."""
        taken = (0, *columns)
        return TableContent(
            title=title,
            columns=tuple(self.columns[number] for number in taken),
            rows=tuple(tuple(row[number] for number in taken) for row in self.rows),
            note=note,
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width

        def width(content: TableContent) -> int:
            grid = replace(content, title="", note="").to_grid()
            return Measurement.get(console, options.update(width=10_000), grid).maximum

        forms = (self, *(self.stacked(label) for label in _LABEL_WIDTHS))
        content = next((form for form in forms if width(form) <= room), forms[-1])
        if width(content.part([])) > room // 2:
            content = content.stacked(room // 2, cut=True)
        numbers = range(1, len(content.columns))
        # As few blocks as possible, and as even: a last column is not left alone.
        for count in range(1, max(1, len(numbers)) + 1):
            ends = [-(-len(numbers) * part // count) for part in range(count + 1)]
            blocks = [numbers[start:end] for start, end in pairwise(ends)]
            if all(width(content.part(block)) <= room for block in blocks):
                break
        for place, block in enumerate(blocks):
            # A block by itself may have room for what the whole table has not.
            form = next((form for form in forms if width(form.part(block)) <= room), content)
            title = self.title if place == 0 else ""
            yield form.part(
                block, title=title, note=self.note if len(blocks) == 1 else ""
            ).to_grid()
            if len(blocks) > 1:
                yield ""
        if len(blocks) > 1 and self.note:
            yield Text(self.note, style="table.caption")


@dataclass(frozen=True)
class PublishedTable:
    """A table that others printed, in percent as printed; None where it has a dash.

    label: the table's \\label in the paper's source; protocol: what was measured
    network: what was trained on what; remark: what its reader has to know, or nothing
    """

    label: str
    protocol: str
    network: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    remark: str = ""

    def value(self, method: str, column: str) -> float | None:
        return dict(self.rows)[method][self.columns.index(column)]

    def beside(
        self, ours: Sequence[tuple[Cell, ...]], *, columns: Sequence[str], title: str, source: str
    ) -> TableContent:
        """Some of its columns, with our rows on top; `source` follows the name of the table."""
        places = [self.columns.index(column) for column in columns]
        theirs = [
            (
                Cell(method),
                *(ABSENT if (v := values[p]) is None else Cell(f"{v:.2f}") for p in places),
            )
            for method, values in self.rows
        ]
        words = (f"theirs: the paper's table '{self.label}', {source}", self.remark)
        return TableContent(
            title=title,
            columns=("method", *columns),
            rows=(*ours, *theirs),
            note="; ".join(word for word in words if word),
        )


def percent(share: float, *, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}"


def decimals(trials: int) -> int:
    """How many decimals a percentage has that so many pairs stand behind."""
    return 2 if trials >= _MANY_PAIRS else 1


def accuracy_cell(result: VerificationResult, *, strong: bool = False) -> Cell:
    """LFW-protocol accuracy: "97.3 ± 0.6", or "97.32 ± 0.61" of many pairs, over its interval."""
    digits = decimals(result.pairs)
    cell = share_cell(result.accuracy, result.accuracy_interval, digits=digits, strong=strong)
    return replace(cell, deviation=percent(result.accuracy_std, digits=digits))


def share_cell(
    share: float, interval: Interval | None, *, digits: int = 1, strong: bool = False
) -> Cell:
    """A share in percent over its interval."""
    return Cell(percent(share, digits=digits), interval_text(interval, digits=digits), strong)


def rate_cell(rate: Rate, *, digits: int) -> Cell:
    """A rate over its interval and the trials behind it."""
    cell = share_cell(rate.value, rate.interval, digits=digits)
    return replace(cell, detail=f"{cell.detail}\n{rate.successes:,}/{rate.trials:,}")


def signed(points: float) -> str:
    """A difference of percentages: "+0.35", "−1.20", or "0.00" without a sign."""
    text = f"{abs(points):.2f}"
    sign = "" if float(text) == 0 else "+" if points > 0 else "−"
    return sign + text


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
    how = "pairs as trials"
    if by_people:
        low, high = min(by_people), max(by_people)
        span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        how = f"people resampled ({span} per set)"
    return f"under it the {100 * intervals[0].confidence:g}% interval, {how}"


def accuracy_content(evaluation: EvaluationResult) -> TableContent:
    """LFW-protocol accuracy of every model on every set; the best of each set is strong."""
    best = {
        name: max(row.accuracy for row in evaluation.rows if row.set_name == name)
        for name in evaluation.sets
    }

    def cell(model: str, name: str) -> Cell:
        found = evaluation.find(model, name)
        return accuracy_cell(found, strong=found.accuracy >= best[name]) if found else ABSENT

    note = "threshold of each fold from the other folds, mean ± deviation over the folds"
    if all(len(row.fold_accuracies) == 10 for row in evaluation.rows):
        note = "10-fold as on LFW: threshold from the other folds, mean ± deviation over the folds"
    pooled = any(row.set_name == COMBINED and row.people is not None for row in evaluation.rows)
    notes = (
        note,
        interval_note(evaluation.rows),
        f"{COMBINED}: who occurs in several sets counts once per set" if pooled else "",
        missing_note(evaluation),
    )
    return TableContent(
        title="Verification accuracy (%)",
        columns=("model", *evaluation.sets),
        rows=tuple(
            (
                Cell(model, strong=model == evaluation.model),
                *(cell(model, name) for name in evaluation.sets),
            )
            for model in evaluation.models
        ),
        note="; ".join(each for each in notes if each),
    )


def missing_note(evaluation: EvaluationResult) -> str:
    """What was left out because images have no embedding, set by set, or nothing."""
    return "; ".join(
        f"{each.set_name}: {counted(each.missing_images, 'image')} without an embedding, "
        f"{each.skipped_pairs:,} of {each.pairs + each.skipped_pairs:,} pairs left out"
        for each in evaluation.results_of()
        if each.missing_images and each.set_name != COMBINED
    )


def detail_content(evaluation: EvaluationResult) -> TableContent:
    """EER, AUC, TAR at FAR and best-threshold accuracy of the evaluation's subject."""
    found = evaluation.results_of()
    targets = sorted({p.target for r in found for p in r.tar_at_far}, reverse=True)
    rows = []
    for result in found:
        by_target = {point.target: point for point in result.tar_at_far}
        digits = decimals(result.pairs)
        numbers = (
            (result.best_threshold_accuracy, result.best_threshold_interval, digits),
            (result.eer, result.eer_interval, digits),
            (result.auc, result.auc_interval, 2),
        )
        rows.append(
            (
                Cell(result.set_name, strong=result.set_name == COMBINED),
                *(share_cell(value, ends, digits=places) for value, ends, places in numbers),
                *(_tar_cell(by_target.get(target), digits) for target in targets),
            )
        )
    points = [point for result in found for point in result.tar_at_far]
    intervals = any(point.interval for point in points)
    note = "under each TAR: " + ("its interval, then " if intervals else "")
    note += "the FAR reached, in impostor pairs accepted/all"
    if any(point.interval and point.interval.low == 0 < point.rate for point in points):
        note += "; from 0: too few impostor pairs lie above the threshold to bound it"
    if any(not point.resolved for point in points):
        note += f"; {UNRESOLVED}: the target is below one of so many impostor pairs"
    return TableContent(
        title=f"{evaluation.model} in detail (%)",
        columns=(
            "set",
            "best-threshold accuracy",
            "EER",
            "AUC",
            *(f"TAR@FAR {100 * t:g}%" for t in targets),
        ),
        rows=tuple(rows),
        note=note,
    )


def slices_content(evaluation: EvaluationResult) -> TableContent | None:
    """The decisions of the subject by attributes of the pairs; None if none are known."""
    rows = [
        (
            Cell(f"{result.set_name}, {each.attribute} {each.value}"),
            *(
                ABSENT if rate is None else rate_cell(rate, digits=decimals(rate.trials))
                for rate in (each.right, each.true_accepts, each.false_accepts)
            ),
        )
        for result in evaluation.results_of()
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


def published_content(
    evaluation: EvaluationResult, published: PublishedTable
) -> TableContent | None:
    """The published numbers for the sets of the same names, ours first; None if there are none.

    Its combined column is only the same where all of its other sets, and no others, were pooled.
    """
    known = {_plain(column): column for column in published.columns}
    pooled = known.pop(COMBINED, None)
    columns = {name: known[_plain(name)] for name in evaluation.sets if _plain(name) in known}
    if not columns:
        return None
    single = [name for name in evaluation.sets if name != COMBINED]
    if pooled is not None and len(columns) == len(single) == len(known):
        columns[COMBINED] = pooled
    results = [evaluation.find(evaluation.model, name) for name in columns]
    ours = (
        share_cell(each.accuracy, each.accuracy_interval, digits=2, strong=True) if each else ABSENT
        for each in results
    )
    return published.beside(
        [(Cell(f"{evaluation.model} (ours)", strong=True), *ours)],
        columns=tuple(columns.values()),
        title="Beside the paper's numbers (%)",
        source=f"{published.network}, without intervals",
    )


def _plain(set_name: str) -> str:
    """How sets are recognised whatever their files are called: agedb_30 is AgeDB-30."""
    return "".join(sign for sign in set_name.lower() if sign.isalnum())


def _tar_cell(point: RateAtTarget | None, digits: int) -> Cell:
    if point is None:
        return ABSENT
    if not point.resolved:
        return Cell(UNRESOLVED, f"{point.impostors:,} impostors", faint=True)
    reached = f"{point.false_rate.successes:,}/{point.impostors:,}"
    ends = interval_text(point.interval, digits=digits)
    return Cell(percent(point.rate, digits=digits), f"{ends}\n{reached}" if ends else reached)


def _wrapped(text: str) -> str:
    whole = text.replace(" ± ", _WHOLE)
    lines = wrap(whole, _WIDTH, break_long_words=False)
    return "\n".join(lines).replace(_WHOLE, " ± ") or text


def _stacked(row: tuple[Cell, ...], label_width: int, cut: bool) -> list[Cell]:
    label, *numbers = row
    lines = wrap(label.text, label_width, break_long_words=cut)
    cells = [replace(label, value="\n".join(lines) or label.text)]
    for cell in numbers:
        under = f"± {cell.deviation}\n{cell.detail}".rstrip() if cell.deviation else cell.detail
        cells.append(replace(cell, detail=under, deviation=""))
    return cells


def _rich_cell(cell: Cell) -> Text:
    # Text, not markup: a label may hold square brackets.
    value = _wrapped(cell.text) if cell.faint else cell.text
    text = Text(value, style="bold" if cell.strong else "dim" if cell.faint else "")
    for line in cell.detail.splitlines():
        text.append(f"\n{_wrapped(line)}", style="dim not bold")
    return text
