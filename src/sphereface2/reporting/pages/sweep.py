"""A sweep as a page, as Markdown and CSV: figures, its table, and for every row what made it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from sphereface2.evaluation.experiment_results import (
    SeedRun,
    Standing,
    SweepResult,
    SweepRow,
    places_of_both,
    standings,
)
from sphereface2.evaluation.verification import installed_versions
from sphereface2.files import csv_text, write_atomically
from sphereface2.reporting.pages import Page, Section, Tile, blocks, definitions
from sphereface2.reporting.style import BLUE, NamedFigure, method_colour, to_svg
from sphereface2.reporting.tables import ABSENT, Cell, TableContent, decimals, signed
from sphereface2.workers import in_words

PAGE, RESULT = "index.html", "result.json"
DEFINITIONS = (
    (
        "Mean ± deviation",
        "The mean over the seeds, and their sample standard deviation: how far a single run may "
        "lie from it. The standard error of the mean is the deviation over the root of the number "
        "of seeds.",
    ),
    (
        "Not distinguishable",
        "The mean differs from the best of its column by less than two standard errors of the "
        "difference, the root of the sum of the two squared standard errors. Few seeds know their "
        "deviation badly, so a difference a little above this proves nothing either.",
    ),
    (
        "Place",
        "The rank by the column to judge by, among the rows that have both our number and the "
        "paper's. At small scale the order and the steps are to be compared, not the numbers: "
        "data and network are others than the paper's.",
    ),
)


def write_sweep_files(
    folder: Path, result: SweepResult, *, figures: Sequence[NamedFigure] = ()
) -> list[Path]:
    """Write the result as a page, JSON, Markdown and CSV; the paths, the page first."""
    names = (PAGE, RESULT, "table.md", "table.csv")
    page, data, markdown, table = (folder / name for name in names)
    result.save(data)
    write_atomically(markdown, markdown_table(result))
    write_atomically(table, csv_table(result))
    sweep_page(result, figures=figures).write(page)
    return [page, data, markdown, table]


def sweep_page(result: SweepResult, *, figures: Sequence[NamedFigure] = ()) -> Page:
    """The page of a sweep."""
    block, beside = blocks(), differences_content(result)
    scale = result.scale and f"{result.scale} scale"
    sections = []
    if figures:
        drawn = [_figure(number, each) for number, each in enumerate(figures)]
        sections.append(Section("figures", "Figures", [block.drawn(drawn)]))
    failed = failures(result)
    table = [
        block.table(sweep_content(result, paper="under")),
        *([block.failures(failed)] if failed else []),
    ]
    sections.append(Section("table", "Table", table))
    if beside is not None:
        title = block.note(f"{beside.title}, in points.")
        sections.append(Section("paper", "The paper", [title, block.table(beside)]))
    note = (
        "What made each row: its command, its seeds and its config. A click on a command or a "
        f"config selects all of it. Numbers are of {result.judged_by}."
    )
    settings = [block.note(note), *(_setting(result, row) for row in result.rows)]
    sections += [Section("settings", "Settings", settings), definitions(DEFINITIONS)]
    return Page(
        kind="sweep",
        kicker=" · ".join(part for part in ("Sweep", result.where, scale) if part),
        title=result.title,
        accent=BLUE,
        head=[
            *([block.text(result.command, "block asked")] if result.command else []),
            block.tiles(_tiles(result)),
        ],
        sections=sections,
        versions=result.versions or installed_versions(),
    )


def differences_content(result: SweepResult) -> TableContent | None:
    """Ours less the paper's, and the places in both; None if the paper has no such numbers."""
    columns = [column for column in result.columns if has_published(result, column)]
    if not columns:
        return None
    judged = published_judge(result) or columns[-1]
    rows = []
    for row, places in zip(result.rows, places_of_both(result, judged), strict=True):
        cells = [Cell(setting_text(result, row))]
        for column in columns:
            mean, paper = row.mean(column), row.published.get(column)
            cells.append(ABSENT if mean is None or paper is None else Cell(signed(mean - paper)))
        for place in places or (None, None):
            cells.append(ABSENT if place is None else Cell(str(place), strong=place == 1))
        rows.append(tuple(cells))
    names = [
        column
        if published_name(result, column) == column
        # The sets stand for those of the paper and are not the same.
        else f"{column} less {published_name(result, column)}"
        for column in columns
    ]
    return TableContent(
        title="Ours less the paper's",
        columns=("setting", *names, "place, ours", "place, paper"),
        rows=tuple(rows),
        note=f"places by {judged}, among the rows with both numbers",
    )


def _tiles(result: SweepResult) -> list[Tile]:
    column = result.judged_by
    runs = [run for row in result.rows for run in row.runs]
    ended = sum(bool(run.values) for run in runs)
    failed = sum(bool(run.error) for run in runs)
    asked = len(result.rows) * len(result.seeds)
    tiles = []
    means = [(mean, row) for row in result.rows if (mean := row.mean(column)) is not None]
    if means:
        _, best = max(means, key=lambda each: each[0])
        value = number_cell(result, best, column).text
        tiles.append(Tile(f"Best, {column}", value, best.label, "main"))
    theirs = [(row.published[column], row) for row in result.rows if column in row.published]
    if theirs:
        number, row = max(theirs, key=lambda each: each[0])
        name = f"The paper's best, {published_name(result, column)}"
        tiles.append(Tile(name, f"{number:.2f}", row.label, "base"))
    note = f"{ended} of {asked} runs done" + (f", {failed} failed" if failed else "")
    return [
        *tiles,
        Tile("Settings × seeds", f"{len(result.rows)} × {len(result.seeds)}", note),
        Tile("Training, all runs", in_words(run_seconds(result.rows)), f"recipe {result.recipe}"),
    ]


def _figure(number: int, named: NamedFigure) -> dict[str, Any]:
    svg = to_svg(named.figure, name=f"sweep-figure-{number}", description=named.caption)
    # As wide as it was drawn, so that the text of all figures has about one size.
    width = round(98 * named.figure.get_figwidth())
    return {"svg": svg, "caption": named.caption, "width": width}


def _setting(result: SweepResult, row: SweepRow) -> Any:
    """What the fold of one row holds."""
    return blocks().setting(
        row,
        label=setting_text(result, row),
        number=number_cell(result, row, result.judged_by).text if done(row) else "",
        time=in_words(run_seconds([row])),
        colour=method_colour(row.method),
        failed=any(run.error for run in row.runs),
        seeds=TableContent(
            title="",
            columns=("seed", *result.columns, "time", "run folder"),
            rows=tuple(_seed_row(result, run) for run in row.runs),
        ),
    )


def _seed_row(result: SweepResult, run: SeedRun) -> tuple[Cell, ...]:
    cells = [Cell(str(run.seed))]
    for column in result.columns:
        if column in run.values:
            cells.append(Cell(f"{run.values[column]:.{digits(result)}f}"))
        else:
            is_named = run.error and column == result.judged_by  # once in a row
            cells.append(Cell("failed", faint=True) if is_named else ABSENT)
    return (*cells, Cell(in_words(run.seconds)), Cell(run.folder))


# -- its table: for the terminal, as Markdown and as CSV -------------------------------------------

LEVEL_MARK = "†"
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
    lines = []
    judged = standings(result, result.judged_by)
    for row, standing in zip(result.rows, judged, strict=True):
        failed = sum(bool(run.error) for run in row.runs)
        line: list[object] = [row.label, row.method, done(row), failed]
        for column in result.columns:
            numbers = (row.mean(column), row.deviation(column))
            line += ["" if number is None else f"{number:.4f}" for number in numbers]
            if has_published(result, column):
                number = row.published.get(column)
                line.append("" if number is None else f"{number:.10g}")
        lines.append([*line, _STANDING_WORDS[standing], row.command])
    return csv_text(names, lines)


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
        if done(row) or column != result.judged_by:
            return ABSENT
        return Cell("failed" if any(run.error for run in row.runs) else "not run", faint=True)
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
        return ABSENT
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
