"""A sweep's tables and page: complete, self-contained, against numbers taken by hand."""

import csv
import io
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sphereface2.evaluation.experiment_results import SweepResult, standings
from sphereface2.reporting.pages.sweep import (
    csv_table,
    differences_content,
    failures,
    markdown_table,
    rules,
    run_seconds,
    sweep_content,
    sweep_page,
    write_sweep_files,
)
from sphereface2.reporting.style import NamedFigure, axes_of
from sphereface2.training.result import ModelStep
from tests.reporting.sweep_example import (
    ARCFACE,
    SOFTMAX,
    SPHEREFACE2,
    example_sweep,
    made_row,
    made_sweep,
)


def printed(result: SweepResult, *, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(sweep_content(result))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(markdown: str) -> dict[str, list[str]]:
    """The cells of a Markdown table by the first one of each line."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {first: rest for first, *rest in split}


def naive(numbers: tuple[float | None, ...]) -> str:
    there = [number for number in numbers if number is not None]
    return f"{statistics.mean(there):.2f} ± {statistics.stdev(there):.2f}"


def test_markdown_has_mean_and_deviation_the_mark_and_the_papers_number() -> None:
    table = cells(markdown_table(example_sweep()))
    assert table["setting"] == ["plain", "combined", "paper: Combined"]
    assert table["Softmax"] == [naive(SOFTMAX["plain"]), naive(SOFTMAX["combined"]), "89.05"]
    assert table["ArcFace (2 of 3)"] == [
        f"† {naive(ARCFACE['plain'])}",
        f"† {naive(ARCFACE['combined'])}",
        "93.97",
    ]
    assert table["SphereFace2-C"] == [
        f"**{naive(SPHEREFACE2['plain'])}**",
        f"**{naive(SPHEREFACE2['combined'])}**",
        "**94.28**",
    ]
    assert table[r"Circle \| \<b>"] == ["–", "failed", "–"]


def test_markdown_says_the_seeds_once_and_the_rule_and_what_failed() -> None:
    text = markdown_table(example_sweep())
    assert text.count("3 seeds") == 1
    assert "†: not distinguishable from the best" in text
    assert "less than two standard errors of the difference" in text
    assert "\nArcFace, seed 1 failed: the loss is not finite at step 12.\n" in text
    assert r"Circle \| \<b>, seeds 0, 1 and 2 failed: the disk is full." in text


def test_one_decimal_where_the_paper_has_no_numbers() -> None:
    result = made_sweep(made_row("A", SOFTMAX), made_row("B", SPHEREFACE2))
    table = cells(markdown_table(result))
    assert table["setting"] == ["plain", "combined"]
    mean, deviation = (f(SOFTMAX["plain"]) for f in (statistics.mean, statistics.stdev))
    assert table["A"][0] == f"{mean:.1f} ± {deviation:.1f}"


def test_the_papers_column_is_the_last_that_it_has() -> None:
    result = made_sweep(made_row("A", SOFTMAX, published={"plain": 98.2}))
    assert cells(markdown_table(result))["setting"][-1] == "paper: LFW"


def test_another_column_than_the_last_may_be_the_one_to_judge_by() -> None:
    result = replace(example_sweep(), judged="plain")
    table = cells(markdown_table(result))
    assert table["setting"] == ["plain", "combined", "paper: LFW"]
    assert table[r"Circle \| \<b>"] == ["failed", "–", "–"]
    assert "plain standing" in csv_table(result).splitlines()[0]
    assert replace(result, judged="").judged_by == "combined"
    assert replace(result, judged="rank-1").judged_by == "combined"  # of which there is no number


def test_a_row_of_one_seed_among_three_is_not_distinguishable() -> None:
    single = made_row("single", {"combined": (10.0, None, None)}, error="stopped")
    full = made_row("full", {"combined": (80.0, 80.1, 80.2)})
    result = made_sweep(single, full, columns=("combined",))
    assert standings(result, "combined") == ["level", "best"]
    assert "one seed only" in rules(result)
    assert cells(markdown_table(result))["single (1 of 3)"] == ["† 10.0"]


def test_one_seed_for_all_judges_nothing() -> None:
    rows = (made_row("a", {"combined": (70.0,)}), made_row("b", {"combined": (80.0,)}))
    result = made_sweep(*rows, columns=("combined",))
    assert standings(result, "combined") == ["unknown", "best"]
    text = markdown_table(result)
    assert "One seed" in text
    assert "†" not in text
    assert cells(text)["a"] == ["70.0"]


def test_rows_without_any_run_are_not_run() -> None:
    waiting = made_row("waiting", {"combined": (None, None)})
    result = made_sweep(waiting, columns=("combined",))
    assert standings(result, "combined") == ["unknown"]
    assert cells(markdown_table(result))["waiting"] == ["not run"]
    assert failures(result) == []


def test_the_console_table_fits_80_columns_and_uses_more() -> None:
    result = example_sweep()
    narrow, wide = printed(result, width=46), printed(result, width=120)
    assert all(len(line) <= 46 for line in narrow.splitlines())
    assert "…" not in narrow + wide
    assert naive(SOFTMAX["combined"]) in wide
    assert naive(SOFTMAX["combined"]) not in narrow
    for text in (narrow, wide):
        assert "Table 5" in text
        assert "94.28" in text
        assert "failed" in text
    five = ("plain", "age-30", "cross-age", "cross-pose", "combined")
    row = made_row("λ=0.7, r=30, m=0.4, t=3", dict.fromkeys(five, (90.0, 91.0, 93.0)))
    row = replace(row, published=dict.fromkeys(five, 94.28))
    small = printed(made_sweep(row, columns=five), width=80)
    assert "…" not in small
    assert "± 1.53" in small


def test_decimals_follow_the_paper_or_the_pairs() -> None:
    result = made_sweep(made_row("a", {"combined": (80.0, 81.0)}), columns=("combined",))
    assert "80.5 ± 0.7" in markdown_table(result)
    assert "80.50 ± 0.71" in markdown_table(replace(result, pairs={"combined": 1000}))
    assert "80.5 ± 0.7" in markdown_table(replace(result, pairs={"combined": 999}))


def test_the_table_says_which_step_was_measured() -> None:
    def said(*steps: ModelStep | None) -> str:
        row = made_row("a", {"combined": (80.0, 81.0)})
        runs = tuple(replace(r, model_step=s) for r, s in zip(row.runs, steps, strict=True))
        return rules(made_sweep(replace(row, runs=runs), columns=("combined",)))

    last, best = ModelStep("last", 9, 9), ModelStep("best", 6, 9, 3, ("plain",))
    assert said(last, last).endswith("every number is of the last step of its training")
    assert said(last, replace(best, own_sets=True)).endswith("chosen on sets of their own")
    assert said(last, best).endswith("on these very pairs: reads too high")
    assert "step" not in said(last, None)


def test_csv_has_every_number_of_ours_and_of_the_paper() -> None:
    text = csv_table(example_sweep())
    rows = {row["setting"]: row for row in csv.DictReader(io.StringIO(text))}
    softmax, arcface = rows["Softmax"], rows["ArcFace"]
    for column in ("plain", "combined"):
        assert float(softmax[column]) == pytest.approx(statistics.mean(SOFTMAX[column]), abs=1e-4)
        assert float(softmax[f"{column} deviation"]) == pytest.approx(
            statistics.stdev(SOFTMAX[column]), abs=1e-4
        )
    assert (softmax["plain paper"], softmax["combined paper"]) == ("98.2", "89.05")
    assert (arcface["seeds"], arcface["failed"]) == ("2", "1")
    assert arcface["combined standing"] == "not distinguishable from the best"
    assert softmax["combined standing"] == "below the best"
    assert rows["SphereFace2-C"]["combined standing"] == "best"
    failed = rows["Circle | <b>"]
    assert (failed["seeds"], failed["combined"], failed["combined standing"]) == ("0", "", "")
    assert softmax["command"] == "sphereface2 train small head.name=softmax seed=0"


def test_a_set_may_be_called_like_another_column_of_the_csv() -> None:
    row = made_row("a", {"seeds": (80.0, 81.0)})
    titles, line = csv.reader(io.StringIO(csv_table(made_sweep(row, columns=("seeds",)))))
    named = [value for title, value in zip(titles, line, strict=True) if title == "seeds"]
    assert named == ["2", "80.5000"]


def test_the_time_is_that_of_all_runs() -> None:
    row = made_row("a", {"combined": (80.0, 81.0)})  # 60 and 61 seconds
    assert run_seconds([row, row]) == 242.0


def test_the_page_holds_the_table_the_commands_and_the_configs(tmp_path: Path) -> None:
    result = example_sweep()
    figure, axes = axes_of("combined", "setting", "accuracy (%)")
    axes.plot([1, 2, 3])
    path = tmp_path / "deep" / "index.html"
    sweep_page(result, figures=[NamedFigure("bars", "Bars & all", figure)]).write(path)
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.index("<svg") < page.index('<section id="table">')
    assert 'aria-label="Bars &amp; all"' in page
    for row in result.rows:
        assert row.command.replace("<", "&lt;").replace(">", "&gt;") in page
        for run in row.runs:
            assert run.folder.replace("<", "&lt;").replace(">", "&gt;") in page
    assert "head:\n  name: softmax" in page
    assert "ArcFace, seed 1 failed: the loss is not finite at step 12" in page
    assert "ArcFace (2 of 3)" in page
    assert "<b>, seeds" not in page  # a label is text
    assert "10 of" not in page
    assert "8 of 12 runs done, 4 failed" in page
    assert page.count('<details class="setting">') == len(result.rows)


def test_a_result_is_kept_in_four_files(tmp_path: Path) -> None:
    result = example_sweep()
    figure, _ = axes_of("combined", "setting", "accuracy (%)")
    files = write_sweep_files(
        tmp_path / "new", result, figures=[NamedFigure("bars", "Bars", figure)]
    )
    page, data, markdown, table = files
    names = [path.name for path in files]
    assert names == ["index.html", "result.json", "table.md", "table.csv"]
    assert set(files) == set((tmp_path / "new").iterdir())
    assert 'aria-label="Bars"' in page.read_text(encoding="utf-8")
    assert SweepResult.load(data) == result
    assert markdown.read_text(encoding="utf-8") == markdown_table(result)
    assert table.read_text(encoding="utf-8") == csv_table(result)


def test_above_the_title_stands_what_is_known_of_the_place_and_the_scale() -> None:
    result = example_sweep()
    assert "Sweep · Table 5 · small scale<" in sweep_page(result).render()
    page = sweep_page(replace(result, where="", scale="")).render()
    assert "Sweep ·" not in page
    assert re.search(r">\s*Sweep\s*<", page)


def test_the_page_loads_nothing() -> None:
    page = sweep_page(example_sweep()).render()
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page)
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page


def test_without_figures_or_the_papers_numbers_their_sections_are_left_out() -> None:
    page = sweep_page(made_sweep(made_row("a", SOFTMAX))).render()
    assert 'id="figures"' not in page
    assert 'href="#figures"' not in page
    assert 'id="paper"' not in page
    assert 'id="table"' in page


def test_a_sweep_of_which_nothing_ran_has_a_page() -> None:
    row = replace(made_row("a", {"plain": (None,), "combined": (None,)}), runs=())
    page = sweep_page(replace(made_sweep(row), command="", versions={})).render()
    assert "not run" in page


def test_the_papers_number_stands_under_ours() -> None:
    content = sweep_content(example_sweep(), paper="under")
    assert [cell.detail for cell in content.rows[0]] == ["", "paper 98.20", "paper 89.05"]
    assert content.rows[3][2].text == "failed"


def test_differences_and_places() -> None:
    content = differences_content(example_sweep())
    assert content is not None
    assert content.columns[1:3] == ("plain less LFW", "combined less Combined")
    texts = [[cell.text for cell in row] for row in content.rows]
    # The means of combined are 70.4, 81.2 and 81.93.
    assert [row[2] for row in texts] == ["−18.65", "−12.77", "−12.35", "–"]
    assert [row[-2:] for row in texts] == [["3", "3"], ["2", "2"], ["1", "1"], ["–", "–"]]
    other = differences_content(replace(example_sweep(), judged="plain"))
    assert other is not None
    assert other.note.startswith("places by plain")
