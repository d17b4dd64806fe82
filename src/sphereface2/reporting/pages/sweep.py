"""The page of a sweep: its figures, its table, and for every row what made it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from sphereface2.evaluation.experiment_results import SeedRun, SweepResult, SweepRow
from sphereface2.evaluation.results import installed_versions
from sphereface2.files import write_atomically
from sphereface2.progress import in_words
from sphereface2.reporting.figures import verification as plots
from sphereface2.reporting.pages.page import render_page
from sphereface2.reporting.sweep_tables import (
    ABSENT,
    csv_table,
    digits,
    done,
    failures,
    has_published,
    markdown_table,
    number_cell,
    number_text,
    published_judge,
    published_name,
    rules,
    run_seconds,
    setting_text,
    standings,
)
from sphereface2.reporting.tables import Cell, TableContent

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
        "deviation badly, so a difference a little above this is no proof either.",
    ),
    (
        "Place",
        "The rank by the column to judge by, among the rows that have both our number and the "
        "paper's. At small scale the order and the steps are to be compared, not the numbers: "
        "data and network are others than the paper's.",
    ),
)


def write_sweep_files(
    folder: Path, result: SweepResult, *, figures: Sequence[tuple[str, Figure]] = ()
) -> list[Path]:
    """Write the result as a page, JSON, Markdown and CSV; the paths, the page first."""
    names = (PAGE, RESULT, "table.md", "table.csv")
    page, data, markdown, table = (folder / name for name in names)
    result.save(data)
    write_atomically(markdown, markdown_table(result))
    write_atomically(table, csv_table(result))
    write_sweep_report(page, result, figures=figures)
    return [page, data, markdown, table]


def write_sweep_report(
    path: Path, result: SweepResult, *, figures: Sequence[tuple[str, Figure]] = ()
) -> None:
    """Write the page to `path`, all of it or nothing; `figures` are (caption, figure)."""
    write_atomically(path, render_sweep_report(result, figures=figures))


def render_sweep_report(result: SweepResult, *, figures: Sequence[tuple[str, Figure]] = ()) -> str:
    """The page as a string."""
    beside = differences_content(result)
    sections = [
        ("figures", "Figures", bool(figures)),
        ("table", "Table", True),
        ("paper", "The paper", beside is not None),
        ("settings", "Settings", True),
        ("definitions", "Definitions", True),
    ]
    return render_page(
        "sweep.html.jinja",
        title=result.title,
        kicker=" · ".join(
            part
            for part in ("Sweep", result.where, result.scale and f"{result.scale} scale")
            if part
        ),
        accent=plots.METHOD_COLOURS["sphereface2"],
        sections=[(anchor, name) for anchor, name, there in sections if there],
        command=result.command,
        tiles=_tiles(result),
        figures=[_figure(number, *each) for number, each in enumerate(figures)],
        content=sweep_content(result),
        failures=failures(result),
        differences=beside,
        judged_by=result.judged_by,
        settings=[_setting(result, row) for row in result.rows],
        definitions=DEFINITIONS,
        versions=list((result.versions or installed_versions()).items()),
    )


def sweep_content(result: SweepResult) -> TableContent:
    """All our numbers, under each of them the paper's."""
    by_column = {column: standings(result, column) for column in result.columns}
    rows = []
    for place, row in enumerate(result.rows):
        cells = [Cell(setting_text(result, row))]
        for column in result.columns:
            cell = number_cell(result, row, column, by_column[column][place])
            paper = row.published.get(column)
            detail = "" if paper is None else f"paper {paper:.2f}"
            cells.append(Cell(cell.text, detail, strong=cell.strong, faint=cell.faint))
        rows.append(tuple(cells))
    return TableContent(
        title=result.title,
        columns=("setting", *result.columns),
        rows=tuple(rows),
        note=rules(result),
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
            text = ABSENT if mean is None or paper is None else _signed(mean - paper)
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


def _tiles(result: SweepResult) -> list[dict[str, str]]:
    column = result.judged_by
    runs = [run for row in result.rows for run in row.runs]
    ended = sum(bool(run.values) for run in runs)
    failed = sum(bool(run.error) for run in runs)
    tiles = [
        {
            "label": "Settings × seeds",
            "value": f"{len(result.rows)} × {len(result.seeds)}",
            "note": f"{ended} of {len(result.rows) * len(result.seeds)} runs done"
            + (f", {failed} failed" if failed else ""),
            "style": "",
        },
        {
            "label": "Training, all runs",
            "value": in_words(run_seconds(result.rows)),
            "note": f"recipe {result.recipe}",
            "style": "",
        },
    ]
    means = [(mean, row) for row in result.rows if (mean := row.mean(column)) is not None]
    if means:
        _, best = max(means, key=lambda each: each[0])
        tile = {"label": f"Best, {column}", "value": number_text(result, best, column)}
        tiles.insert(0, {**tile, "note": best.label, "style": "main"})
    theirs = [(row.published[column], row) for row in result.rows if column in row.published]
    if theirs:
        number, row = max(theirs, key=lambda each: each[0])
        name = published_name(result, column)
        tile = {"label": f"The paper's best, {name}", "value": f"{number:.2f}"}
        tiles.insert(1, {**tile, "note": row.label, "style": "base"})
    return tiles


def _figure(number: int, caption: str, figure: Figure) -> dict[str, Any]:
    svg = plots.to_svg(figure, name=f"sweep-figure-{number}", description=caption)
    # As wide as it was drawn, so that the text of all figures has about one size.
    return {"svg": Markup(svg), "caption": caption, "width": round(98 * figure.get_figwidth())}


def _setting(result: SweepResult, row: SweepRow) -> dict[str, Any]:
    """What stands in the fold of one row."""
    column = result.judged_by
    return {
        "label": setting_text(result, row),
        "number": number_text(result, row, column) if done(row) else "",
        "time": in_words(run_seconds([row])),
        "colour": plots.method_colour(row.method),
        "failed": any(run.error for run in row.runs),
        "overrides": row.overrides,
        "command": row.command,
        "config": row.config,
        "seeds": TableContent(
            title="",
            columns=("seed", *result.columns, "time", "run folder"),
            rows=tuple(_seed_row(result, run) for run in row.runs),
        ),
    }


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


def _signed(difference: float) -> str:
    text = f"{abs(difference):.2f}"
    sign = "" if float(text) == 0 else "+" if difference > 0 else "−"
    return sign + text
