"""Grids: splitting as YAML does, every combination once, labels, seeds, and mistakes."""

import numpy as np
import pytest
import yaml

from sphereface2.experiments.sweep.plan import seeds_of_text, settings_of_grid, split_values

WORDS = ["0.2", "cosface", "[1,2]", "[[1, 2], 3]", "{a: 1, b: [2,3]}", "'a,b'", '"c,\\",d"']
WORDS += ["'it''s, so'", "''", '"]"', "it's", "['x,y', 2]", "{name: 'p,q'}", "a b", "1e-3", "null"]


def test_values_are_split_where_yaml_splits_a_list() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        words = [str(word) for word in generator.choice(WORDS, size=generator.integers(1, 6))]
        text = generator.choice([",", ", "]).join(words)
        assert split_values(text) == words
        assert [yaml.safe_load(word) for word in split_values(text)] == yaml.safe_load(f"[{text}]")


def test_a_grid_is_every_combination() -> None:
    settings = settings_of_grid(["head.margin=0.2,0.3", "head.sharpness=1,3", "training.epochs=5"])
    naive = []
    for margin in ("0.2", "0.3"):
        for sharpness in ("1", "3"):
            overrides = (f"head.margin={margin}", f"head.sharpness={sharpness}")
            label = f"margin={margin}, sharpness={sharpness}"
            naive.append((label, (*overrides, "training.epochs=5")))
    assert [(setting.label, setting.overrides) for setting in settings] == naive


@pytest.mark.parametrize(
    ("grid", "labels"),
    [
        (["head.name=cosface,arcface", "training.epochs=5"], ["cosface", "arcface"]),
        (["training.epochs=5"], ["epochs=5"]),
        (["schedule.milestones=[1,2],[3]"], ["milestones=[1,2]", "milestones=[3]"]),
        (["data.people=5,6", "a.people=7,8"], ["data.people=5, a.people=7"]),
    ],
)
def test_labels_say_what_varies(grid: list[str], labels: list[str]) -> None:
    found = [setting.label for setting in settings_of_grid(grid)]
    assert found[: len(labels)] == labels


def test_nothing_to_vary_is_one_setting() -> None:
    (setting,) = settings_of_grid([])
    assert (setting.label, setting.overrides) == ("the recipe as it is", ())


@pytest.mark.parametrize(
    ("grid", "part"),
    [
        (["head.margin"], "got 'head.margin'"),
        (["=3"], "got '=3'"),
        (["head.=3"], "got 'head.=3'"),
        (["head.margin="], "head.margin has an empty value"),
        (["head.margin=0.2,,0.3"], "head.margin has an empty value"),
        (["head.margin=0.2,0.3,0.2"], "the value 0.2 twice"),
        (["head.margin=0.2", "head.margin=0.3"], "head.margin is given twice"),
    ],
)
def test_a_wrong_grid_gets_one_sentence(grid: list[str], part: str) -> None:
    with pytest.raises(ValueError, match=part) as raised:
        settings_of_grid(grid)
    assert "\n" not in str(raised.value)


def test_seeds_are_counted_or_listed() -> None:
    assert seeds_of_text("3") == (0, 1, 2)
    assert seeds_of_text("0,4,7") == (0, 4, 7)
    assert seeds_of_text("4,") == (4,)
    for text in ("", "0", "three", "1,,2", "-1", "1.5", ","):
        with pytest.raises(ValueError, match="seed"):
            seeds_of_text(text)
