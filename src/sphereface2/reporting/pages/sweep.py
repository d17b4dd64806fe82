"""The page of a sweep: its figures, its table, and for every row what made it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sphereface2.evaluation.experiment_results import SeedRun, SweepResult, SweepRow
from sphereface2.evaluation.verification import installed_versions
from sphereface2.files import write_atomically
from sphereface2.reporting.pages.page import Page, Section, Tile, blocks, definitions
from sphereface2.reporting.style import BLUE, NamedFigure, method_colour, to_svg
from sphereface2.reporting.sweep_tables import (
    ABSENT,
    csv_table,
    digits,
    done,
    failures,
    has_published,
    markdown_table,
    number_cell,
    published_judge,
    published_name,
    run_seconds,
    setting_text,
    sweep_content,
)
from sphereface2.reporting.tables import Cell, TableContent, signed
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
    ours, theirs = _places(result, judged)
    rows = []
    for row in result.rows:
        cells = [Cell(setting_text(result, row))]
        for column in columns:
            mean, paper = row.mean(column), row.published.get(column)
            text = ABSENT if mean is None or paper is None else signed(mean - paper)
            cells.append(Cell(text, faint=text == ABSENT))
        for places in (ours, theirs):
            text = places.get(id(row), ABSENT)
            cells.append(Cell(text, faint=text == ABSENT, strong=text == "1"))
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
        columns=(
            "setting",
            *names,
            "place, ours",
            "place, paper",
        ),
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
    """What stands in the fold of one row."""
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
    places = digits(result)
    numbers: Mapping[str, float] = run.values
    return (
        Cell(str(run.seed)),
        *(
            Cell(f"{numbers[column]:.{places}f}")
            if column in numbers
            else Cell("failed" if run.error and column == result.judged_by else ABSENT, faint=True)
            for column in result.columns
        ),
        Cell(in_words(run.seconds)),
        Cell(run.folder),
    )


def _places(result: SweepResult, column: str) -> tuple[dict[int, str], dict[int, str]]:
    """The rank of each row here and in the paper, by `id`; equal numbers share a place."""
    both = [
        (id(row), mean, row.published[column])
        for row in result.rows
        if column in row.published and (mean := row.mean(column)) is not None
    ]
    ours = {key: str(1 + sum(other > mean for _, other, _ in both)) for key, mean, _ in both}
    theirs = {key: str(1 + sum(other > paper for _, _, other in both)) for key, _, paper in both}
    return ours, theirs
