"""docs/heads.md has every head, with every option and its default."""

import re
from pathlib import Path

import pytest

from sphereface2.config.loading import parse_yaml
from sphereface2.heads import HEADS, build_head, head_options

PAGE = Path(__file__).parents[2] / "docs" / "heads.md"
ROWS = {
    cells[1].strip(" `"): cells
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `") and len(cells := line.split("|")) == 7
}
OF_ALL = {"margin_schedule", "gradient"}  # described below the table


def test_every_head_is_there_once() -> None:
    assert sorted(ROWS) == sorted(HEADS)


def test_every_head_has_its_formula_its_source_and_its_use() -> None:
    for name, (_, _, formula, _, source, when, _) in ROWS.items():
        assert all(cell.strip() for cell in (formula, source, when)), name
        assert re.search(r"[·σΣ²]|cross-entropy|the same", formula), f"{name}: {formula}"


@pytest.mark.parametrize("name", HEADS)
def test_options_and_defaults_are_those_of_the_signature(name: str) -> None:
    text = ROWS[name][3]
    if text.strip().startswith("the same"):
        text = re.sub(r"`margin` m 0.4", text, ROWS["sphereface2-c"][3])
    # `radius` r 30: the option, perhaps its symbol, its default; none or (words): not a constant.
    stated = dict(re.findall(r"`(\w+)`(?: of)?(?: [a-zλγ](?= ))?(?: ([\w.-]+))?", text))
    options = head_options(name, {})
    assert set(stated) == set(options) - OF_ALL
    margin = getattr(build_head(name, 4, 5), "margin", None)
    for option, word in stated.items():
        default = margin if option == "margin" else options[option]
        assert (parse_yaml(word, origin=option) if word else None) == default
