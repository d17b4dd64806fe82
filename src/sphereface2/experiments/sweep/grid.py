"""What a sweep runs: settings, which are lists of overrides over one recipe, times seeds."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sphereface2.evaluation.experiment_results import SweepFigure


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    published: column -> the paper's number; empty if the paper has no such row
    drawn_as: what a figure calls the row, if not by its label
    """

    label: str
    overrides: tuple[str, ...]
    published: Mapping[str, float] = field(default_factory=dict)
    drawn_as: str = ""


@dataclass(frozen=True)
class Sweep:
    """All settings, each to be trained with every seed; the other fields go to the result."""

    name: str
    title: str
    recipe: str
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    where: str = ""
    scale: str = "small"
    command: str = ""
    published_columns: Mapping[str, str] = field(default_factory=dict)
    judged: str = ""
    figure: SweepFigure = field(default_factory=SweepFigure)


def settings_of_grid(assignments: Sequence[str]) -> tuple[Setting, ...]:
    """Every combination of `head.margin=0.2,0.3 head.sharpness=1,3`, the last key fastest.

    Commas inside [..], {..} or quotes do not split. Labels say what varies. Nothing given is one
    setting.
    """
    if not assignments:
        return (Setting("the recipe as it is", ()),)
    axes = dict(_axis(assignment) for assignment in assignments)
    if len(axes) < len(assignments):
        counts = Counter(_axis(assignment)[0] for assignment in assignments)
        key = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"{key} is given twice; write its values in one word, as {key}=A,B")
    varying = [key for key, values in axes.items() if len(values) > 1] or list(axes)
    words = _words(varying)
    settings = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        label = ", ".join(words[key] + chosen[key] for key in varying)
        settings.append(Setting(label, tuple(f"{key}={value}" for key, value in chosen.items())))
    return tuple(settings)


def seeds_of_text(text: str) -> tuple[int, ...]:
    """`3` is the first three seeds, 0, 1 and 2; `0,4,7` are these, and `4,` is one of them."""
    numbers = [part.strip() for part in text.removesuffix(",").split(",")]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"--seeds is a count, such as 3, or a list, such as 0,4,7; got '{text}'")
    if "," in text:
        return tuple(int(number) for number in numbers)
    if int(text) < 1:
        raise ValueError(f"--seeds: at least one seed is needed, got {text}")
    return tuple(range(int(text)))


def split_values(text: str) -> list[str]:
    """The values between commas, as YAML would split them inside brackets."""
    values, current, depth = [], "", 0
    quote = closed = ""  # the quote that is open, and the one that the last character closed
    for character in text:
        at_start = not current.strip() or (depth > 0 and current.rstrip()[-1] in "[{,:")
        was_closed, closed = closed, ""
        if quote:
            is_escaped = quote == '"' and _trailing_backslashes(current) % 2 == 1
            if character == quote and not is_escaped:
                quote, closed = "", quote
        # A doubled quote inside quotes closes and opens again, which comes to the same.
        elif character in "'\"" and (at_start or character == was_closed):
            quote = character
        elif character in "[{" and (at_start or depth):
            depth += 1
        elif character in "]}" and depth:
            depth -= 1
        elif character == "," and not depth:
            values.append(current.strip())
            current = ""
            continue
        current += character
    return [*values, current.strip()]


def _trailing_backslashes(text: str) -> int:
    return len(text) - len(text.rstrip("\\"))


def _axis(assignment: str) -> tuple[str, list[str]]:
    key, equals, text = assignment.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ValueError(
            "a grid is made of section.key=value,value, such as head.margin=0.2,0.3; "
            f"got '{assignment}'"
        )
    values = split_values(text)
    if not all(values):
        raise ValueError(f"{key} has an empty value in '{assignment}'; write null for none")
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{key} has the value {twice[0]} twice in '{assignment}'")
    return key, values


def _words(keys: Sequence[str]) -> dict[str, str]:
    """What stands before a value in labels: the last word of its key, or all of it if need be."""
    last = Counter(key.rpartition(".")[2] for key in keys)
    words = {}
    for key in keys:
        word = key.rpartition(".")[2]
        words[key] = f"{word if last[word] == 1 else key}="
    # The name of a head speaks for itself.
    return words | ({"head.name": ""} if "head.name" in words else {})
