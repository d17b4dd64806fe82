"""Commands that list what there is: recipes, heads, backbones."""

from collections.abc import Callable, Mapping, Sequence


def recipes() -> None:
    """List the built-in recipes, one line each."""
    from sphereface2.config import recipes as known

    _print_table("recipe", [(recipe.name, recipe.summary) for recipe in known()])


def heads() -> None:
    """List the heads (losses) with their options and defaults."""
    from sphereface2.heads import HEADS

    _print_options("head", HEADS)


def backbones() -> None:
    """List the backbones (networks) with their options and defaults."""
    from sphereface2.backbones import BACKBONES

    _print_options("backbone", BACKBONES)


def _print_options(kind: str, table: Mapping[str, Callable[..., object]]) -> None:
    import inspect

    from sphereface2.tables import option_names

    def default(factory: Callable[..., object], key: str) -> str:
        value = inspect.signature(factory).parameters[key].default
        if value is None:  # a default that differs between classes with one signature
            value = getattr(factory, f"default_{key}", None)
        if value is None:
            return "null"
        return str(value).lower() if isinstance(value, bool) else str(value)

    rows = []
    for name, factory in table.items():
        options = [f"{key}={default(factory, key)}" for key in option_names(factory)]
        rows.append((name, ", ".join(options) or "no options"))
    _print_table(kind, rows)


def _print_table(kind: str, rows: Sequence[tuple[str, str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(kind, style="bold", no_wrap=True)
    table.add_column("")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    Console().print(table)
