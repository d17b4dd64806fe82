"""Recipes: YAML files that describe a run, built in or the user's own, read into plain mappings.

A recipe may open with `base: other-recipe` and state its differences only. Its first comment line
is its summary. What a mapping may hold is the matter of `config/schema.py`.
"""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml

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


# Where a mapping is a Choice, and what it is without a name; "0" stands for any index.
_CHOICES: dict[tuple[str, ...], str | None] = {
    ("data",): None,
    ("open_set", "data"): None,
    ("augmentation",): "none",
    ("backbone",): None,
    ("backbone", "network"): None,
    ("head",): None,
    ("optimizer",): "sgd",
    ("evaluation", "sets", "0"): None,
    ("evaluation", "choose_on", "0"): None,
}

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
            f"recipes form a cycle by their base: {' -> '.join(map(str, (*seen, origin)))}"
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
    names = recipe_names()
    if source in names:
        return source, parse_mapping(_recipe_text(source), origin=f"recipe {source}")
    path = folder / source
    if path.is_dir():
        path = path / "config.yaml"
        if not path.is_file():
            raise FileNotFoundError(f"{path.parent} is not a run folder: it holds no config.yaml")
        return path.resolve(), read_yaml_file(path)
    if path.exists() or len(Path(source).parts) != 1 or path.suffix in (".yaml", ".yml"):
        return path.resolve(), read_yaml_file(path)
    raise ValueError(
        f"unknown recipe '{source}'{nearest(source, names)} (recipes: {', '.join(names)}; "
        "or give the path of a YAML file or of a run folder)"
    )


def _lay_over(below: Any, above: Any, path: tuple[str, ...]) -> Any:
    """`above` over `below`, section by section; lists and single values are replaced."""
    place = tuple("0" if key.isdigit() else key for key in path)
    if place in _CHOICES:
        below, above = named(below), named(above)
        if isinstance(below, dict) and isinstance(above, dict):
            old = below.get("name", _CHOICES[place])
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


# -- YAML 1.2's numbers and words, no key twice, mistakes with their place -------------------------

# No config comes near these; beyond them a file is a mistake or an attack, which must not take
# minutes, or all the memory, to be refused.
_MOST_BYTES = 1_000_000
_MOST_VALUES = 10_000  # an alias counts as everything that it stands for
_MOST_LEVELS = 50


# Keys whose values are texts whatever they look like: a folder may be called 123 or 2024_01.
TEXTS = ("base", "path", "root", "start_from", "title")


def read_yaml_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; a ValueError names the place of whatever is wrong with it."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"{path} is too large for a config: above {_MOST_BYTES:,} bytes")
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not a text file in UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    return parse_mapping(text, origin=str(path))


def parse_mapping(text: str, *, origin: str) -> dict[str, Any]:
    """The mapping that a YAML text holds."""
    value = parse_yaml(text, origin=origin)
    if value is None:
        raise ValueError(f"{origin} is empty; it should hold lines such as 'seed: 0'")
    if not isinstance(value, dict):
        kinds = {list: "list", str: "text", bool: "true/false value"}
        kind = kinds.get(type(value), "single value")
        raise ValueError(f"{origin} holds no 'key: value' lines but a {kind}")
    return value


def parse_yaml(text: str, *, origin: str) -> Any:
    """The value that a YAML text holds; a ValueError gives line and column of a mistake."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = " ".join(filter(None, (error.context, error.problem)))
        refused = "" if isinstance(error, _TooLarge) else "not valid YAML: "
        raise ValueError(f"{origin}{place}: {refused}{reason}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{origin}: not valid YAML: {' '.join(str(error).split())}") from None


def dump_yaml(value: dict[str, Any]) -> str:
    """YAML text that `parse_yaml` reads back to an equal value, keys in their given order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


# YAML 1.2's core schema; PyYAML's dates, sets and byte strings are not for configs.
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")


class _TooLarge(yaml.MarkedYAMLError):
    """Valid YAML that stands for more than a config holds."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain words and numbers, no key twice, and no more than a config needs.

    PyYAML follows YAML 1.1, where 1e-1 is a text, 010 is eight, 1:30 is ninety, and `no` is false.
    """

    # Not inherited: PyYAML's table of YAML 1.1 patterns.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    yaml_constructors = {  # noqa: RUF012
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix("tag:yaml.org,2002:") in _KINDS
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.values = 0  # so far, those behind aliases counted each time
        self.level = self.deepest = 0
        self.extents: dict[yaml.Node, tuple[int, int]] = {}  # finished node: values, levels

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # so in types-PyYAML
        mark = cast("yaml.Mark", event.start_mark)
        values, deepest = self.values, self.deepest
        self.level += 1
        self.deepest = self.level
        self._refuse_excess(mark)
        node = cast("yaml.Node", super().compose_node(parent, index))
        if not isinstance(event, yaml.AliasEvent):
            self.values += 1
            self.extents[node] = (self.values - values, self.deepest - self.level)
        elif node in self.extents:
            self.values += self.extents[node][0]
            self.deepest += self.extents[node][1]
        else:
            raise _TooLarge(None, None, "this alias stands for a value that contains it", mark)
        self._refuse_excess(mark)
        self.deepest = max(deepest, self.deepest)
        self.level -= 1
        return node

    def _refuse_excess(self, mark: yaml.Mark) -> None:
        if self.values > _MOST_VALUES:
            reason = f"more than {_MOST_VALUES:,} values (an alias counts as all it stands for)"
            raise _TooLarge(None, None, reason, mark)
        if self.deepest > _MOST_LEVELS:
            raise _TooLarge(None, None, f"nested deeper than {_MOST_LEVELS} levels", mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError):
            # `!!int many` and `!!bool perhaps`, or more digits than Python takes for an int.
            text = str(node.value)
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"'{shown}' cannot be read as {kind}", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        if not isinstance(node, yaml.MappingNode):
            return super().construct_mapping(node, deep=deep)  # `!!map [1]`: refused there
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is not a word", key_node.start_mark
                )
            if key in lines:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key '{key}' appears twice, first in line {lines[key]}",
                    key_node.start_mark,
                )
            lines[key] = key_node.start_mark.line + 1
        mapping = super().construct_mapping(node, deep=deep)
        for key_node, value_node in node.value:
            if key_node.value in TEXTS and isinstance(mapping[key_node.value], int | float):
                mapping[key_node.value] = value_node.value
        return mapping


class _Dumper(yaml.SafeDumper):
    """Writes tuples as lists, lists of plain values in one line, and quotes what might mislead."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: yaml.SafeDumper, value: list[Any] | tuple[Any, ...]) -> yaml.Node:
    plain = not any(isinstance(item, list | tuple | dict) for item in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=plain)


_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
)
for _tag, _pattern, _first in (
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, list(_first))
# PyYAML's own patterns stay beside ours, so a text such as `no` or 1e5 is quoted for both.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(tuple, _represent_list)
