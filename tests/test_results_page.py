"""docs/results.md shows what docs/results/ holds."""

from pathlib import Path

import pytest

from benchmarks import results as results_page
from benchmarks.results import read_results, refreshed, without_block
from sphereface2.reporting.pages.sweep import markdown_table
from tests.reporting.sweep_example import example_sweep

DOCS = Path(__file__).parent.parent / "docs"
PAGE = "# Results\n\n<!-- table losses -->\nold\n<!-- end losses -->\n\nWhat it means.\n"


def test_the_page_is_up_to_date() -> None:
    page = DOCS / "results.md"
    if not page.is_file():
        pytest.skip("there is no docs/results.md yet")
    text = page.read_text(encoding="utf-8")
    found = read_results(DOCS / "results")
    assert refreshed(text, found) == text, "run `python -m benchmarks.results`"
    assert without_block(text, found) == []


def test_a_block_is_filled_and_the_rest_stays() -> None:
    result = example_sweep()
    page = refreshed(PAGE, {"losses": result})
    # Four rows of runs of 60, 61 and 62 seconds.
    line = "`sphereface2 reproduce losses`, 3 seeds, 12 minutes of training"
    table = markdown_table(result)
    assert page == (
        f"# Results\n\n<!-- table losses -->\n{line}\n\n{table}<!-- end losses -->\n\n"
        "What it means.\n"
    )
    assert refreshed(page, {"losses": result}) == page


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (
            "<!-- table loses -->\n<!-- end loses -->\n",
            "no table in docs/results/loses.json; did you mean",
        ),
        ("<!-- table losses -->\n", "the block 'losses' has no end"),
        ("text\n<!-- end losses -->\n", "line 2 has <!-- end losses --> outside a block"),
        (
            "<!-- table losses -->\n<!-- table losses -->\n<!-- end losses -->\n",
            "line 2 has <!-- table losses --> inside the block 'losses'",
        ),
    ],
)
def test_a_mistake_in_the_page_is_one_sentence(page: str, said: str) -> None:
    with pytest.raises(ValueError, match="block") as error:
        refreshed(page, {"losses": example_sweep()})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_results_of_other_kinds_are_left_alone(tmp_path: Path) -> None:
    example_sweep().save(tmp_path / "losses.json")
    (tmp_path / "parallel.json").write_text('{"identities": 1000, "runs": []}')
    (tmp_path / "list.json").write_text('["rows", "columns"]')
    assert read_results(tmp_path) == {"losses": example_sweep()}
    (tmp_path / "half.json").write_text('{"rows": [')
    with pytest.raises(ValueError, match=r"half\.json is not JSON"):
        read_results(tmp_path)


def test_the_command_writes_the_page_and_names_what_it_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["results"])
    with pytest.raises(SystemExit):
        results_page.main()
    assert "docs/results.md does not exist" in capsys.readouterr().err

    example_sweep().save(results_page.RESULTS / "losses.json")
    example_sweep().save(results_page.RESULTS / "noise.json")
    results_page.PAGE.write_text(PAGE, encoding="utf-8")
    results_page.main()
    assert "SphereFace2-C" in results_page.PAGE.read_text(encoding="utf-8")
    said = capsys.readouterr().out
    assert "docs/results.md: written" in said
    assert "docs/results/noise.json has no block" in said
    assert "losses.json" not in said
    results_page.main()
    assert "is up to date" in capsys.readouterr().out
