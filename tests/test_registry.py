"""Names and options of the tables: what is found, converted and refused."""

from typing import Literal

import pytest

from sphereface2.registry import (
    build,
    did_you_mean,
    look_up,
    near,
    nearest,
    option_names,
    resolve_options,
)


class Lamp:
    """A class whose keyword arguments are options."""

    def __init__(
        self,
        rooms: int,
        *,
        power: float = 40.0,
        colour: Literal["warm", "cold"] = "warm",
        bulbs: int = 1,
        dimmed: bool = False,
        label: str | None = None,
        model_number: int = 7,
        steps: tuple[float, ...] = (),
    ) -> None:
        self.rooms = rooms
        self.power = power
        self.bulbs = bulbs


class SmallLamp(Lamp):
    """Inherits the options."""


def candle(*, height: int) -> str:
    """A function with an option that has no default."""
    return f"candle of {height}"


TABLE = {"lamp": Lamp, "small-lamp": SmallLamp}


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        # slips of the pen
        ("radus", "radius margin", "radius"),
        ("nmae", "normalize name", "name"),
        ("lwf", "bin lfw pairs", "lfw"),
        ("ArcFace", "arcface cosface", "arcface"),
        ("batchsize", "batch_size sample_rate", "batch_size"),
        ("mobilenet", "mobilefacenet iresnet18", "mobilefacenet"),
        # a beginning, or the last part
        ("arc", "arcface adaface", "arcface"),
        ("clip", "flip clip_norm", "clip_norm"),
        ("max_epochs", "epochs steps", "epochs"),
        ("rate", "learning_rate momentum", "learning_rate"),
        # another word for it
        ("gpu", "auto cpu cuda mps", "cuda"),
        ("radius", "scale margin gradient", "scale"),
        ("float16", "float32 fp16", "fp16"),
        # several, and none
        ("sphereface2", "sphereface sphereface2-c sphereface2-a", "sphereface2-c sphereface2-a"),
        ("sfnet", "sfnet4 sfnet10 sfnet20 sfnet36", ""),
        ("zzz", "radius margin", ""),
        ("radius", "margin gradient", ""),
        ("margin_type", "margin balance", ""),
        ("", "radius margin", ""),
    ],
)
def test_near_is_only_what_may_well_be_meant(word: str, known: str, meant: str) -> None:
    assert near(word, known.split()) == meant.split()


def test_a_hint_asks_for_one_or_for_several() -> None:
    assert nearest("radus", ["radius", "margin"]) == "; did you mean 'radius'?"
    assert did_you_mean(["a", "b", "c"]) == "; did you mean 'a', 'b' or 'c'?"
    assert nearest("zzz", ["radius", "margin"]) == ""


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^unknown lamp 'lmap'; did you mean 'lamp'\? \(known: "):
        look_up("lamp", TABLE, "lmap")


def test_options_are_the_keyword_only_arguments_also_when_inherited() -> None:
    assert option_names(SmallLamp)[:2] == ["power", "colour"]
    assert "rooms" not in option_names(SmallLamp)


def test_options_lie_over_the_defaults_and_take_the_types_of_the_signature() -> None:
    options = resolve_options("lamp", "lamp", Lamp, {"power": 60, "steps": [1, 2]})
    assert options == {
        "power": 60.0,
        "colour": "warm",
        "bulbs": 1,
        "dimmed": False,
        "label": None,
        "model_number": 7,
        "steps": (1.0, 2.0),
    }
    assert isinstance(options["power"], float)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"powr": 3}, "lamp 'lamp' has no option 'powr'; did you mean 'power'? (options: power,"),
        ({"rooms": 3}, "lamp 'lamp' has no option 'rooms' (options: "),
        ({"nmae": 3}, "lamp 'lamp' has no option 'nmae'; did you mean 'lamp.name'? (options: "),
        ({"power": "much"}, "lamp.power: must be a valid number, got 'much'"),
        ({"power": None}, "lamp.power: must be a valid number, got nothing"),
        ({"power": True}, "lamp.power: must be a number, got true"),
        ({"bulbs": True}, "lamp.bulbs: must be a number, got true"),
        ({"bulbs": 1.5}, "lamp.bulbs: must be a whole number, got 1.5"),
        ({"dimmed": "maybe"}, "lamp.dimmed: must be true or false, got 'maybe'"),
        ({"colour": "worm"}, "lamp.colour: must be 'warm' or 'cold', got 'worm'; did you mean"),
        ({"steps": 3}, "lamp.steps: must be a list, got 3"),
    ],
)
def test_a_wrong_option_is_one_sentence_with_its_key(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        resolve_options("lamp", "lamp", Lamp, options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_an_option_without_default_must_be_given() -> None:
    with pytest.raises(
        ValueError, match=r"needs the option 'height'; give it as light\.height=VAL"
    ):
        resolve_options("light", "candle", candle, {})
    with pytest.raises(ValueError, match=r"'height'; give it as height: VALUE$"):
        resolve_options("set of lights", "candle", candle, {})
    assert build("light", {"candle": candle}, "candle", height=3) == "candle of 3"


def test_build_passes_arguments_and_options() -> None:
    lamp = build("lamp", TABLE, "small-lamp", 4, bulbs="2")
    assert (lamp.rooms, lamp.power, lamp.bulbs) == (4, 40.0, 2)


def test_aliases_mean_our_words_and_may_not_repeat_them() -> None:
    aliases = {"watts": ("energy", "power")}
    assert resolve_options("lamp", "lamp", Lamp, {"watts": 5}, aliases=aliases)["power"] == 5
    both = {"power": 1, "watts": 5}
    for options in (both, dict(reversed(both.items()))):
        first, second = options
        with pytest.raises(ValueError, match=f"'{first}' and '{second}' mean the same option"):
            resolve_options("lamp", "lamp", Lamp, options, aliases=aliases)
