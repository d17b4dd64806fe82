"""Tables of an evaluation, in the terminal and in the page."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from sphereface2.evaluation.verification import EvaluationResult
from sphereface2.experiments.paper.published import LOSSES
from sphereface2.reporting.pages.verification import ReportPictures, verification_page
from sphereface2.reporting.tables import (
    Cell,
    TableContent,
    accuracy_cell,
    accuracy_content,
    detail_content,
    interval_text,
    published_content,
)
from tests.reporting.example import example_evaluation

FOUR = ("plain", "age-30", "cross-age", "cross-pose")


def printed(table: TableContent, *, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_accuracy_table_has_every_model_and_set() -> None:
    evaluation = example_evaluation(sets=FOUR)
    content = accuracy_content(evaluation)
    assert content.columns == ("model", *FOUR, "combined")
    assert [row[0].text for row in content.rows] == [
        "sphereface2-c",
        "raw pixels",
        "untrained network",
    ]
    first = evaluation.rows[0]
    assert content.rows[0][1] == accuracy_cell(first, strong=True)
    assert content.rows[0][1].detail == interval_text(first.accuracy_interval)
    assert "95% interval, pairs as trials" in content.note
    assert (
        accuracy_cell(first).text == f"{100 * first.accuracy:.1f} ± {100 * first.accuracy_std:.1f}"
    )
    assert [row[1].strong for row in content.rows] == [True, False, False]


def test_the_tables_fit_a_terminal_of_80_columns() -> None:
    evaluation = example_evaluation(sets=FOUR)
    accuracy = printed(accuracy_content(evaluation))
    detail = printed(detail_content(evaluation))
    assert "…" not in accuracy + detail
    (line,) = (line for line in accuracy.splitlines() if line.startswith("sphereface2-c"))
    for set_name in evaluation.sets:
        result = evaluation.find("sphereface2-c", set_name)
        assert result is not None
        assert accuracy_cell(result).text in line
    assert all(len(line) <= 80 for line in (accuracy + detail).splitlines())
    for word in ("threshold", "EER", "AUC", "TAR@FAR 1%", "resolved"):
        assert word in detail


WIDE = TableContent(
    title="Wide (%)",
    columns=("model", *(f"set {n} of impostors" for n in range(8))),
    rows=tuple(
        (
            Cell(name),
            *(
                Cell(f"{50 + n}.73", f"{40 + n}.71–{60 + n}.72", deviation=f"13.3{n}")
                for n in range(8)
            ),
        )
        for name in (
            "sphereface2-c",
            "untrained network",
            "a-name-of-forty-letters-without-any-blank",
        )
    ),
    note="what it means",
)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_number_or_heading_is_wrapped_or_cut_at_any_width(width: int) -> None:
    text = printed(WIDE, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    words = text.split()
    for row in WIDE.rows:
        for cell in row[1:]:
            assert words.count(cell.detail) == 3
            assert words.count(cell.value) == words.count(cell.deviation) == 3
    assert words.count("impostors") == 8
    assert text.count("what it means") == 1
    # A deviation stands beside its mean or whole under it.
    assert text.count("± 13.3") == 24


def test_the_deviation_stands_beside_the_mean_where_there_is_room() -> None:
    assert "50.73 ± 13.30" in printed(WIDE, width=200)
    assert "50.73 ± 13.30" not in printed(WIDE, width=80)


def test_a_deviation_is_not_moved_where_that_saves_no_room() -> None:
    names = [*(f"agedb_long_name_{number}" for number in range(1, 7)), "combined"]
    row = (Cell("sphereface2-c"), *(Cell("54.5", "43.4–65.6", deviation="11.1") for _ in names))
    text = printed(TableContent("Long names", ("model", *names), (row,)))
    assert text.count("54.5 ± 11.1") == 7
    # Seven columns in blocks of three at most: no block has a single one.
    headings = [line.split()[1:] for line in text.splitlines() if "agedb" in line]
    assert headings == [names[:3], names[3:5], names[5:]]


def test_people_of_several_sets_are_said_to_count_several_times() -> None:
    evaluation = example_evaluation(sets=FOUR)
    said = "combined: who occurs in several sets counts once per set"
    assert said not in accuracy_content(evaluation).note
    known = replace(evaluation, rows=tuple(replace(row, people=9) for row in evaluation.rows))
    assert said in accuracy_content(known).note


def test_numbers_of_a_thousand_pairs_have_two_decimals() -> None:
    few, many = example_evaluation().rows[0], replace(example_evaluation().rows[0], pairs=1000)
    for digits, result in ((1, few), (2, many)):
        shares = (few.accuracy, few.accuracy_std)
        assert accuracy_cell(result).text == " ± ".join(f"{100 * x:.{digits}f}" for x in shares)
    evaluation = EvaluationResult(title="x", rows=(many,))
    assert many.accuracy_interval is not None
    ends = f"{100 * many.accuracy_interval.low:.2f}–{100 * many.accuracy_interval.high:.2f}"
    assert accuracy_content(evaluation).rows[0][1].detail == ends
    detail = detail_content(evaluation).rows[0]
    assert [cell.text for cell in detail[1:3]] == [
        f"{100 * many.best_threshold_accuracy:.2f}",
        f"{100 * many.eer:.2f}",
    ]
    report = verification_page(evaluation, history=[], config_yaml="", pictures=ReportPictures())
    page = report.render()
    assert f"<b>{100 * many.accuracy:.2f}<small>" in page


def test_a_result_that_is_missing_leaves_a_gap() -> None:
    evaluation = example_evaluation()
    fewer = EvaluationResult(title="x", rows=evaluation.rows[:-1])
    assert accuracy_content(fewer).rows[2][3].text == "–"


def test_detail_shows_the_far_reached_and_marks_what_is_not_resolved() -> None:
    evaluation = example_evaluation()
    content = detail_content(evaluation)
    assert content.columns[1] == "best-threshold accuracy"
    plain = evaluation.rows[0]
    row = content.rows[0]
    assert row[0].text == "plain"
    assert row[1].text == f"{100 * plain.best_threshold_accuracy:.1f}"
    # 100 impostor pairs: one in ten and one in a hundred are resolved, one in a thousand is not.
    for cell, point in zip(row[4:6], plain.tar_at_far, strict=False):
        assert cell.text == f"{100 * point.rate:.1f}"
        assert point.interval is not None
        ends = f"{100 * point.interval.low:.1f}–{100 * point.interval.high:.1f}"
        assert cell.detail == f"{ends}\n{point.false_rate.successes}/100"
    # No number where there is none: only how many impostor pairs were not enough.
    assert (row[6].text, row[6].detail) == ("not resolved", "100 impostors")
    assert "not resolved: the target is below one of so many impostor pairs" in content.note
    assert row[2].detail == interval_text(plain.eer_interval)
    pixels = tuple(row for row in evaluation.rows if row.model == "raw pixels")
    other = detail_content(replace(evaluation, rows=pixels + evaluation.rows))
    assert other.title == "raw pixels in detail (%)"
    assert other.rows[0][1].text != row[1].text


def test_the_papers_numbers_stand_under_ours_for_the_same_sets() -> None:
    assert published_content(example_evaluation(sets=FOUR), LOSSES) is None
    one = published_content(example_evaluation(sets=("agedb_30", "mine")), LOSSES)
    assert one is not None
    assert one.columns == ("method", "AgeDB-30")
    assert [cell.text for cell in one.rows[-3]] == ["SphereFace2-C", "93.68"]
    for other in ("age-30", "cfp_fp", "lfw2"):
        assert published_content(example_evaluation(sets=(other,)), LOSSES) is None
    named = published_content(example_evaluation(sets=("CA-LFW", "AgeDB-30")), LOSSES)
    assert named is not None
    assert named.columns == ("method", "CA-LFW", "AgeDB-30")
    whole = example_evaluation(sets=("lfw", "agedb_30", "calfw", "cplfw"))
    every = published_content(whole, LOSSES)
    assert every is not None
    assert every.columns == ("method", "LFW", "AgeDB-30", "CA-LFW", "CP-LFW", "Combined")
    assert every.rows[0][0].text == "sphereface2-c (ours)"
    assert len(every.rows) == 1 + 10


def test_labels_are_no_markup() -> None:
    evaluation = example_evaluation(model="[bold]net[/bold]")
    assert "[bold]net[/bold]" in printed(accuracy_content(evaluation), width=120)
