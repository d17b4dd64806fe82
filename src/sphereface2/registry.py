"""Named choices (heads, backbones, sources, sets): look a name up, check its options, build it.

Every stage keeps a plain dict from a name to the class or function that builds it. The options
that a name takes are the keyword arguments of that class or function, with the types and defaults
of its signature, so they are in one place only.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")


# What OpenSphere, InsightFace, wespeaker and the papers call the options of heads, and our word for
# it: both are understood. Where two are named, the first that the head at hand takes is meant.
OPTION_ALIASES: dict[str, tuple[str, ...]] = {
    "alpha": ("balance",),
    "lam": ("balance",),
    "lanbuda": ("balance",),
    "r": ("radius", "scale"),
    "s": ("scale", "radius"),
    "gamma": ("scale",),
    "scale": ("radius",),
    "m": ("margin",),
    "t": ("sharpness",),
    "h": ("concentration",),
    "lw": ("loss_weight",),
    "b_theta": ("angular_bias",),
    "init_bias": ("bias_start",),
    "t_alpha": ("ema",),
    "l_a": ("norm_low",),
    "u_a": ("norm_high",),
    "l_margin": ("margin_low",),
    "u_margin": ("margin_high",),
    "lambda_g": ("norm_weight",),
}

# Words that are not understood, and what is meant by them.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "gpu": ("cuda",),
    "preset": ("name",),
    "augment": ("augmentation",),
    "nvidia": ("cuda",),
    "metal": ("mps",),
    "fp32": ("float32",),
    "float16": ("fp16",),
    "half": ("fp16",),
    "bfloat16": ("bf16",),
    "lr": ("learning_rate",),
    "wd": ("weight_decay",),
    "bs": ("batch_size",),
    "iterations": ("steps",),
    "threads": ("workers",),
    "lambda": ("balance",),
    "loss": ("head",),
    "model": ("backbone",),
    "network": ("backbone",),
    "dataset": ("data",),
    "root": ("path",),
    "dir": ("path",),
    "file": ("path",),
}


def other_words(option: str) -> set[str]:
    """All other words for the same option: those of 'r' are radius, scale, s and gamma."""
    words = {option}
    while True:
        related = {
            word
            for alias, ours in OPTION_ALIASES.items()
            if words & {alias, *ours}
            for word in (alias, *ours)
        }
        if related <= words:
            return words - {option}
        words |= related


def _absolute(path: str) -> str:
    """The path from the root on; links stay links, and ~nobody stays as it is."""
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - Path's differ there


DataPath = Annotated[str, AfterValidator(_absolute)]
"""An option that is a path: absolute in a run's config, so that the run works from anywhere."""


def near(word: str, known: Iterable[str]) -> list[str]:
    """Those of `known` that a wrong word may well mean: at most three, and often none.

    First what is the same under another name, then what the word is the beginning of, then what is
    called by its last part (`max_epochs` and epochs, `rate` and learning_rate), then a slip of the
    pen: a few wrong letters, or all the right ones in another order.
    """
    names = list(dict.fromkeys(known))
    meant = {*SYNONYMS.get(word.lower(), ()), *other_words(word)}
    plain = _plain(word)
    likeness = {name: SequenceMatcher(None, name, word.lower()).ratio() for name in names}
    likely = [name for name in names if likeness[name] >= _LIKE]
    best = max(likeness.values(), default=0.0)
    found = (
        [name for name in names if name in meant]
        or [name for name in names if _plain(name) == plain]
        or [name for name in names if len(plain) > 2 and _plain(name).startswith(plain)]
        or [name for name in names if _ends_with(name, word) or _ends_with(word, name)]
        or [name for name in likely if likeness[name] == best]
        or [name for name in names if sorted(_plain(name)) == sorted(plain)]
    )
    return found if len(found) <= 3 else []


# Of SequenceMatcher's ratio: one wrong letter of four has 0.75, 'margin_type' and 'margin' 0.71.
_LIKE = 0.72


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def _ends_with(word: str, part: str) -> bool:
    return word.lower().endswith(f"_{part.lower()}")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word: "; did you mean 'radius'?", or nothing if none is near."""
    return did_you_mean(near(word, known))


def did_you_mean(meant: Sequence[str]) -> str:
    """The question whether one of these was meant, to be put behind what is wrong."""
    if not meant:
        return ""
    *others, last = (f"'{name}'" for name in meant)
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def look_up(kind: str, table: Mapping[str, T], name: str) -> T:
    """The entry called `name`, or a ValueError that lists the known names."""
    if name in table:
        return table[name]
    raise ValueError(
        f"unknown {kind} '{name}'{nearest(name, table)} (known: {', '.join(sorted(table))})"
    )


def option_names(factory: Callable[..., object]) -> list[str]:
    """The keyword-only arguments of a class or function: what a config file may set."""
    parameters = inspect.signature(factory).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def resolve_options(
    kind: str,
    name: str,
    factory: Callable[..., object],
    options: Mapping[str, Any],
    *,
    aliases: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """All keyword options of `factory`, `options` over its defaults, checked and converted.

    `aliases` maps another project's word to ours; the first of ours that `factory` takes is meant.
    """
    known = option_names(factory)
    given: dict[str, Any] = {}
    words: dict[str, str] = {}
    for key, value in options.items():
        ours = key
        if key not in known and aliases and key in aliases:
            ours = next((word for word in aliases[key] if word in known), key)
        if ours not in known:
            listing = ", ".join(known) if known else "none"
            # What a config has beside the options may be misspelt as well: the name.
            meant = near(key, [*known, "name"])
            if meant == ["name"] and " " not in kind:
                meant = [f"{kind}.name"]
            raise ValueError(
                f"{kind} '{name}' has no option '{key}'{did_you_mean(meant)} (options: {listing})"
            )
        if ours in given:
            raise ValueError(
                f"{kind} '{name}': '{words[ours]}' and '{key}' mean the same option; "
                "give one of them"
            )
        given[ours], words[ours] = value, key
    # The types are those of __init__ for a class, on the function itself otherwise.
    built = factory.__init__ if inspect.isclass(factory) else factory
    hints = get_type_hints(built, include_extras=True)
    parameters = inspect.signature(factory).parameters
    resolved: dict[str, Any] = {}
    for key in known:
        if key in given:
            resolved[key] = _checked(f"{kind}.{key}", hints.get(key, Any), given[key])
        elif parameters[key].default is inspect.Parameter.empty:
            # A set is an entry of a list, written as {name: bin, path: VALUE}.
            form = f"{key}: VALUE" if " " in kind else f"{kind}.{key}=VALUE"
            raise ValueError(f"{kind} '{name}' needs the option '{key}'; give it as {form}")
        else:
            resolved[key] = parameters[key].default
    return resolved


def build(
    kind: str,
    table: Mapping[str, Callable[..., T]],
    name: str,
    *arguments: Any,
    aliases: Mapping[str, tuple[str, ...]] | None = None,
    **options: Any,
) -> T:
    """Look `name` up in `table`, check `options` and build it."""
    factory = look_up(kind, table, name)
    return factory(*arguments, **resolve_options(kind, name, factory, options, aliases=aliases))


# What pydantic's error types ask for, in words.
_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a valid number",
    "float_parsing": "a valid number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "string_too_short": "a name",
    "list_type": "a list",
    "tuple_type": "a list",
    "missing": "a longer list",
    "too_long": "a list of at most {max_length}",
    "model_type": "a section of 'key: value' lines",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
}


def mistake(key: str, detail: Mapping[str, Any]) -> str:
    """One of pydantic's error details as a sentence with the dotted key and the value given."""
    context: Mapping[str, Any] = detail.get("ctx", {})
    value = detail["input"]
    expected = _EXPECTED.get(detail["type"])
    if detail["type"] == "value_error":
        said = f"{key} {context['error']}"
        return said if ", got " in said else f"{said}, got {shown(value)}"
    if expected is None:
        return f"{key} is wrong ({detail['msg'].lower()}), got {shown(value)}"
    hint = ""
    if detail["type"] == "literal_error" and isinstance(value, str):
        hint = nearest(value, re.findall(r"'([^']+)'", context["expected"]))
    return f"{key} must be {expected.format(**context)}, got {shown(value)}{hint}"


def shown(value: Any) -> str:
    """A value as a config file would have it, shortened if it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _checked(key: str, hint: Any, value: Any) -> Any:
    """The value as the type that the signature asks for."""
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        checked = TypeAdapter(hint, config=config).validate_python(value)
    except ValidationError as error:
        # An option of several types has an error for each of them; the first says enough.
        raise ValueError(mistake(f"{key}:", error.errors()[0])) from None
    if isinstance(value, bool) and isinstance(checked, int | float) and checked is not value:
        # In Python true is also 1, but nobody who writes `radius: true` means that.
        raise ValueError(f"{key}: must be a number, got {shown(value)}")
    return checked
