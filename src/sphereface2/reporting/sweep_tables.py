"""The table of a sweep: for the terminal, as Markdown and as CSV."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from sphereface2.evaluation.experiment_results import SweepResult, SweepRow
from sphereface2.reporting.tables import Cell, TableContent, TerminalTable, decimals

Standing = Literal["best", "level", "below", "unknown"]

ABSENT = "–"
LEVEL_MARK = "†"
_LEVEL_ERRORS = 2.0  # standard errors of a difference, below which it cannot be told from chance
_STANDING_WORDS: Mapping[Standing, str] = {
    "best": "best",
    "level": "not distinguishable from the best",
    "below": "below the best",
    "unknown": "",
}


def sweep_content(
    result: SweepResult, *, paper: Literal["beside", "under"] = "beside"
) -> TableContent:
    """All our numbers; the paper's `under` each, or `beside` those of the column to judge by."""
    by_column = {column: standings(result, column) for column in result.columns}
    judge = published_judge(result) if paper == "beside" else None
    published = [] if judge is None else [judge]
    rows = []
    for place, row in enumerate(result.rows):
        cells = [Cell(setting_text(result, row))]
        for column in result.columns:
            cell = number_cell(result, row, column, by_column[column][place])
            if paper == "under" and column in row.published:
                cell = replace(cell, detail=f"paper {row.published[column]:.2f}")
            cells.append(cell)
        rows.append((*cells, *(published_cell(result, row, column) for column in published)))
    return TableContent(
        title=f"{result.title} ({result.where})" if result.where else result.title,
        columns=(
            "setting",
            *result.columns,
            *(f"paper: {published_name(result, column)}" for column in published),
        ),
        rows=tuple(rows),
        # The page lists failures by themselves.
        note="; ".join((rules(result), *(failures(result) if paper == "beside" else ()))),
    )


def console_table(result: SweepResult) -> TerminalTable:
    """The table for the terminal: the paper's number beside the column to judge by."""
    return sweep_content(result).to_rich()


def markdown_table(result: SweepResult) -> str:
    """The table as Markdown, with its rules and failures as a paragraph under it."""
    content = sweep_content(result)
    lines = [
        _markdown_line([_escaped(column) for column in content.columns]),
        _markdown_line((":--", *("--:" for _ in content.columns[1:]))),
        *(_markdown_line([_markdown_cell(cell) for cell in row]) for row in content.rows),
        "",
        f"{rules(result).capitalize()}.",
        *(f"\n{_escaped(failure)}." for failure in failures(result)),
    ]
    return "\n".join(lines) + "\n"


def csv_table(result: SweepResult) -> str:
    """All numbers of the table, and all of the paper's, one setting per line."""
    names = ["setting", "method", "seeds", "failed"]
    for column in result.columns:
        names += [column, f"{column} deviation"]
        if has_published(result, column):
            names.append(f"{column} paper")
    names += [f"{result.judged_by} standing", "command"]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
    writer.writeheader()
    judged = standings(result, result.judged_by)
    for row, standing in zip(result.rows, judged, strict=True):
        line: dict[str, object] = {
            "setting": row.label,
            "method": row.method,
            "seeds": done(row),
            "failed": sum(bool(run.error) for run in row.runs),
            f"{result.judged_by} standing": _STANDING_WORDS[standing],
            "command": row.command,
        }
        for column in result.columns:
            for name, number in (
                (column, row.mean(column)),
                (f"{column} deviation", row.deviation(column)),
            ):
                line[name] = "" if number is None else f"{number:.4f}"
            if column in row.published:
                line[f"{column} paper"] = f"{row.published[column]:.10g}"
        writer.writerow(line)
    return buffer.getvalue()


def standings(result: SweepResult, column: str) -> list[Standing]:
    """Where each row stands in a column, higher being better.

    The best has the highest mean. Level with it are rows whose mean differs by less than two
    standard errors of the difference, and those where a single seed leaves that error unknown.
    With one seed for all there is a best one, and nothing is known of the others.
    """
    means = [row.mean(column) for row in result.rows]
    top = max((mean for mean in means if mean is not None), default=None)
    if top is None:
        return ["unknown"] * len(means)
    best = result.rows[means.index(top)]
    found: list[Standing] = []
    for row, mean in zip(result.rows, means, strict=True):
        if mean == top:
            found.append("best")
        elif mean is None or len(result.seeds) < 2:
            found.append("unknown")
        else:
            errors = best.standard_error(column), row.standard_error(column)
            level = None in errors or top - mean < _LEVEL_ERRORS * math.hypot(*filter(None, errors))
            found.append("level" if level else "below")
    return found


def digits(result: SweepResult) -> int:
    """Two decimals beside the paper's numbers, which have two; else as the pairs allow."""
    if any(row.published for row in result.rows):
        return 2
    return decimals(min(result.pairs.values(), default=0))


def number_cell(
    result: SweepResult, row: SweepRow, column: str, standing: Standing = "unknown"
) -> Cell:
    """A setting's mean ± deviation over seeds, "91.42 ± 0.35", with its mark.

    A single seed has no deviation; what failed is said once in a row.
    """
    mean, deviation = row.mean(column), row.deviation(column)
    if mean is None:
        word = ABSENT
        if done(row) == 0 and column == result.judged_by:
            word = "failed" if any(run.error for run in row.runs) else "not run"
        return Cell(word, faint=True)
    mark, places = f"{LEVEL_MARK} " if standing == "level" else "", digits(result)
    return Cell(
        f"{mark}{mean:.{places}f}",
        strong=standing == "best",
        deviation="" if deviation is None else f"{deviation:.{places}f}",
    )


def setting_text(result: SweepResult, row: SweepRow) -> str:
    """The label, and how many seeds there are if some are missing: "ArcFace (2 of 3)"."""
    asked = len(result.seeds)
    return row.label if done(row) in (0, asked) else f"{row.label} ({done(row)} of {asked})"


def done(row: SweepRow) -> int:
    """How many seeds of a setting gave numbers."""
    return sum(bool(run.values) for run in row.runs)


def run_seconds(rows: Sequence[SweepRow]) -> float:
    """The training time of all runs together, as a clock at each would have it."""
    return sum(run.seconds for row in rows for run in row.runs)


def has_published(result: SweepResult, column: str) -> bool:
    return any(column in row.published for row in result.rows)


def published_judge(result: SweepResult) -> str | None:
    """The column to judge by where the paper has it, or else the last that it has."""
    published = [column for column in result.columns if has_published(result, column)]
    if result.judged_by in published:
        return result.judged_by
    return published[-1] if published else None


def published_name(result: SweepResult, column: str) -> str:
    """What the paper calls a column."""
    return result.published_columns.get(column, column)


def published_cell(result: SweepResult, row: SweepRow, column: str) -> Cell:
    """The paper's number; the best of those in this table is strong."""
    if column not in row.published:
        return Cell(ABSENT, faint=True)
    number = row.published[column]
    best = max(other.published[column] for other in result.rows if column in other.published)
    return Cell(f"{number:.2f}", strong=number == best)


def rules(result: SweepResult) -> str:
    """How the table is to be read: the number of seeds, bold, the mark, and the step measured."""
    return "; ".join(part for part in (_marks(result), _steps(result)) if part)


def _steps(result: SweepResult) -> str:
    """Which step of each training was measured; nothing where that is not known of all."""
    steps = [run.model_step for row in result.rows for run in row.runs if run.values]
    if not steps or None in steps:
        return ""
    if all(step.which == "last" for step in steps if step is not None):
        return "every number is of the last step of its training"
    if all(step.which == "last" or step.own_sets for step in steps if step is not None):
        return "the step of each training was chosen on sets of their own"
    return "the step of some trainings was chosen on these very pairs: reads too high"


def _marks(result: SweepResult) -> str:
    seeds = len(result.seeds)
    if seeds < 2:
        return "one seed, so no deviation is known and no difference is judged; bold: the best"
    text = f"mean ± deviation over {seeds} seeds; bold: the best mean of a column"
    if not any("level" in standings(result, column) for column in result.columns):
        return text
    text += (
        f"; {LEVEL_MARK}: not distinguishable from the best, from which it differs by less than "
        "two standard errors of the difference"
    )
    single = any(len(row.numbers(column)) == 1 for row in result.rows for column in result.columns)
    return f"{text} (or one of the two has one seed only)" if single else text


def failures(result: SweepResult) -> list[str]:
    """What failed and why: "ArcFace, seeds 0 and 2 failed: the loss is not finite"."""
    found = []
    for row in result.rows:
        seeds: dict[str, list[str]] = {}
        for run in row.runs:
            if run.error:
                seeds.setdefault(run.error.rstrip("."), []).append(str(run.seed))
        for error, names in seeds.items():
            *first, last = names
            which = f"seeds {', '.join(first)} and {last}" if first else f"seed {last}"
            found.append(f"{row.label}, {which} failed: {error}")
    return found


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    return f"**{text}**" if cell.strong else text


def _escaped(text: str) -> str:
    """Signs that would end a cell or start emphasis or a tag, as themselves; one line."""
    words = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in "\\|*_`<[" else sign for sign in words)
