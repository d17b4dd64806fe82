"""The comparison of runs, in the terminal and as a page."""

from pathlib import Path

import pytest

from sphereface2.evaluation.comparison import Comparison, compare
from sphereface2.reporting.pages.comparison import (
    comparison_page,
    comparison_tables,
)
from tests.evaluation.test_comparison import scored
from tests.reporting.test_tables import printed
from tests.reporting.test_verification import HOSTILE, Page


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    models = zip(("cosface", "sphereface2-c", "weak"), (0.3, 0.32, 1.5), strict=True)
    return compare(
        [
            (label, [scored(0, noise=noise), scored(1, noise=noise, name="cross-age")])
            for label, noise in models
        ],
        replicates=120,
    )


def test_tables_hold_every_difference(comparison: Comparison) -> None:
    accuracy, *differences = comparison_tables(comparison)
    assert [row[0].text for row in accuracy.rows] == ["cosface", "sphereface2-c", "weak"]
    assert len(differences) == 3
    for content, name in zip(differences, comparison.sets, strict=True):
        assert content.title.startswith(f"{name}: difference to cosface")
        assert [row[0].text for row in content.rows] == ["sphereface2-c", "weak"]
        found = [each for each in comparison.comparisons if each.set_name == name]
        for row, each in zip(content.rows, found, strict=True):
            for cell, difference in zip(row[1:], each.differences, strict=False):
                points = f"{abs(100 * difference.difference):.2f}"
                assert cell.text.lstrip("+−") == points
                assert cell.text.startswith("−") == (difference.difference < -5e-5)
                assert cell.faint == (not difference.is_resolved)
            assert row[-1].detail == f"{each.only_model} : {each.only_baseline}"
        text = printed(content, width=90)
        assert "…" not in text
        assert "Holm" in text
    assert differences[0].rows[1][1].strong


def test_the_page_holds_all_and_loads_nothing(comparison: Comparison) -> None:
    text = comparison_page(comparison, title="three runs").render()
    page = Page(text)
    assert not page.open
    assert text.startswith("<!doctype html>")
    for name in ("Accuracy", "Differences", "ROC", "DET", "Definitions"):
        anchor = name.lower()
        assert page.ids.count(anchor) == 1
        assert name in page.text
    assert page.tags.count("svg") == 2 * 3
    assert page.tags.count("table") == 1 + 3
    for each in comparison.comparisons:
        assert each.sentence in page.text
    assert "https://" not in text
    assert not {"script", "link", "img"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    assert len(page.ids) == len(set(page.ids))


def test_hostile_names_stay_text() -> None:
    models = [(label, [scored(0, noise=noise)]) for label, noise in (("a", 0.3), (HOSTILE, 0.4))]
    page = Page(comparison_page(compare(models, replicates=20), title=HOSTILE).render())
    assert not page.open
    assert "script" not in page.tags
    assert not page.handlers


def test_writing_leaves_one_file(comparison: Comparison, tmp_path: Path) -> None:
    comparison_page(comparison, title="runs").write(tmp_path / "new" / "comparison.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["comparison.html"]
