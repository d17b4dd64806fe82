"""Recipes: YAML files that describe a run, built in or the user's own, read into plain mappings.

A recipe may open with `base: other-recipe` and state its differences only. Its first comment line
is its summary. What a mapping may hold is the matter of `config/schema.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

from sphereface2.config.yaml_text import TEXTS, parse_mapping, parse_yaml, read_yaml_file
from sphereface2.registry import nearest, other_words


@dataclass(frozen=True)
class Recipe:
    """A built-in recipe: its name and the line that `sphereface2 recipes` shows."""

    name: str
    summary: str


def recipe_names() -> list[str]:
    """The names of the built-in recipes, in alphabetical order."""
    folder = resources.files(__package__) / "recipes"
    return sorted(
        file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")
    )


def recipes() -> list[Recipe]:
    """The built-in recipes with one line each."""
    first_lines = {name: _recipe_text(name).partition("\n")[0] for name in recipe_names()}
    return [
        Recipe(name, line.lstrip("# ").strip() if line.startswith("#") else "")
        for name, line in first_lines.items()
    ]


def read_run(source: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The mapping of a recipe's name, a YAML file or a run folder, with `a.b=value` overrides.

    Of two overrides the more specific one wins, else the later one. A new name for a choice drops
    the options that the file gives for the old name.
    """
    values: Any = _read(str(source), folder=Path(), seen=())
    for override in _parse_overrides(overrides):
        values = _lay_over(values, override, ())
    return cast("dict[str, Any]", values)


def _read_recipe(name: str) -> dict[str, Any]:
    """The mapping of a built-in recipe, or a ValueError that lists the recipes."""
    names = recipe_names()
    if name not in names:
        raise ValueError(
            f"unknown recipe '{name}'{nearest(name, names)} (recipes: {', '.join(names)}; "
            "or give the path of a YAML file or of a run folder)"
        )
    return parse_mapping(_recipe_text(name), origin=f"recipe {name}")


# Where a mapping is a Choice; "0" stands for any index.
_CHOICES = (
    ("data",),
    ("open_set", "data"),
    ("augmentation",),
    ("backbone",),
    ("head",),
    ("optimizer",),
    ("evaluation", "sets", "0"),
    ("evaluation", "choose_on", "0"),
)


# What a mapping without a name is.
_UNNAMED: dict[tuple[str, ...], str] = {("augmentation",): "none", ("optimizer",): "sgd"}

# Where one of two keys is given: the one from above replaces the other.
_EITHER = {("training",): ("epochs", "steps"), ("training", "average"): ("decay", "last_epochs")}


def named(value: Any) -> Any:
    """A choice as a mapping: `head: cosface` is short for `head: {name: cosface}`."""
    return {"name": value} if isinstance(value, str) else value


def _read(source: str, *, folder: Path, seen: tuple[Path | str, ...]) -> dict[str, Any]:
    """The mapping of a source, laid over the bases that it names."""
    origin, values = _read_one(source, folder)
    if origin in seen:
        raise ValueError(
            f"recipes form a circle by their base: {' -> '.join(map(str, (*seen, origin)))}"
        )
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ValueError(f"{source}: base must be the name of a recipe, got {base!r}")
    # A file's base may be a recipe or another file, seen from where the first one lies.
    beside = origin.parent if isinstance(origin, Path) else folder
    below = _read(base, folder=beside, seen=(*seen, origin))
    return cast("dict[str, Any]", _lay_over(below, values, ()))


def _read_one(source: str, folder: Path) -> tuple[Path | str, dict[str, Any]]:
    # A recipe's name wins over a folder of that name; ./quickstart is the folder.
    if source in recipe_names():
        return source, _read_recipe(source)
    path = folder / source
    if path.is_dir():
        path = path / "config.yaml"
        if not path.is_file():
            raise FileNotFoundError(f"{path.parent} is not a run folder: it holds no config.yaml")
        return path.resolve(), read_yaml_file(path)
    if path.exists() or len(Path(source).parts) != 1 or path.suffix in (".yaml", ".yml"):
        return path.resolve(), read_yaml_file(path)
    return source, _read_recipe(source)


def _lay_over(below: Any, above: Any, path: tuple[str, ...]) -> Any:
    """`above` over `below`, section by section; lists and single values are replaced."""
    if tuple("0" if key.isdigit() else key for key in path) in _CHOICES:
        below, above = named(below), named(above)
        if isinstance(below, dict) and isinstance(above, dict):
            old = below.get("name", _UNNAMED.get(path))
            if above.get("name", old) != old:
                return above
    if isinstance(below, list) and isinstance(above, dict):
        return _lay_over_list(below, above, path)
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    merged = dict(below)
    either = _EITHER.get(path, ())
    for ours, other in zip(either, reversed(either), strict=True):
        if above.get(ours) is not None and other not in above:
            merged.pop(other, None)
    for key, value in above.items():
        if path == ("head",):
            # head.r=40 over a recipe's radius: 30 is the same option under another name.
            for word in other_words(key) - set(above):
                merged.pop(word, None)
        merged[key] = _lay_over(below.get(key), value, (*path, key))
    return merged


def _lay_over_list(below: list[Any], above: dict[str, Any], path: tuple[str, ...]) -> list[Any]:
    merged = list(below)
    for key, value in above.items():
        if not key.isdecimal() or int(key) >= len(merged):
            entries = f"0 to {len(merged) - 1}" if merged else "none"
            raise ValueError(f"{'.'.join(path)} has no entry '{key}' (entries: {entries})")
        merged[int(key)] = _lay_over(merged[int(key)], value, (*path, key))
    return merged


def _parse_overrides(overrides: Iterable[str]) -> list[dict[str, Any]]:
    """Each override as a mapping with one leaf, in the order in which they are to be laid over."""
    parsed = []
    for text in overrides:
        key, equals, written = text.partition("=")
        keys = key.strip().split(".")
        if not equals or not all(keys):
            raise ValueError(
                f"an override looks like section.key=value, such as training.epochs=5; got '{text}'"
            )
        if not written.strip():  # the variable of a script, say, that is not set
            raise ValueError(f"{key.strip()} has an empty value in '{text}'; write null for none")
        value = parse_yaml(written, origin=f"override '{text}'")
        if keys[-1] in TEXTS and isinstance(value, int | float):
            value = written.strip()
        parsed.append((keys, value))
    # Names first, so that head.margin=0.3 head.name=cosface means what it says in either order.
    parsed.sort(key=lambda item: (len(item[0]), item[0][-1] != "name"))
    overlays = []
    for keys, value in parsed:
        for key in reversed(keys):
            value = {key: value}
        overlays.append(value)
    return overlays


def _recipe_text(name: str) -> str:
    return (resources.files(__package__) / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
