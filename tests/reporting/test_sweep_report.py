"""The page of a sweep: complete, self-contained, and everything in it escaped."""

import re
from dataclasses import replace
from pathlib import Path

from sphereface2.evaluation.experiment_results import SweepResult
from sphereface2.reporting.pages.sweep import (
    differences_content,
    sweep_content,
    sweep_page,
    write_sweep_files,
)
from sphereface2.reporting.style import NamedFigure, axes_of
from sphereface2.reporting.sweep_tables import csv_table, markdown_table
from tests.reporting.sweep_example import SOFTMAX, example_sweep, made_row, made_sweep


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
    content = sweep_content(example_sweep())
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
