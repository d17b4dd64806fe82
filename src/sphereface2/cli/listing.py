"""Commands that list what there is: recipes, settings, heads, backbones, sources, sets and more."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from sphereface2.cli.console import stdout
from sphereface2.cli.options import named_options


def recipes() -> None:
    """List the built-in recipes, one line each."""
    from sphereface2.config.loading import recipes as known

    _print_table("recipe", [(recipe.name, recipe.summary) for recipe in known()])


def settings(
    section: Annotated[
        str | None, typer.Argument(help="One section or key, such as optimizer; all if not given.")
    ] = None,
) -> None:
    """List what a config may say, key by key, with the defaults: sphereface2 settings optimizer"""
    from pydantic import BaseModel

    from sphereface2.config.schema import Choice
    from sphereface2.config.schema import settings as known
    from sphereface2.registry import look_up

    rows: dict[str, list[tuple[str, str]]] = {}
    for key, field in known(choices=False):
        default = field.get_default(call_default_factory=True)
        word = _assignment(key, default.name if isinstance(default, Choice) else default)
        if field.is_required():
            word = f"{key} (must be given)"
        elif isinstance(default, BaseModel) and not isinstance(default, Choice):
            word = key  # a section, whose keys follow
        rows.setdefault(key.partition(".")[0], []).append((word, field.description))
    listed = [row for each in rows.values() for row in each]
    if section is not None:
        # A key shows its whole section: its neighbours are often what is looked for.
        listed = look_up("section", rows, section.partition(".")[0])
    _print_table("setting", listed)
    typer.echo(
        "\nchange any of them with: sphereface2 train RECIPE KEY=VALUE; the options of data, "
        "augmentation, backbone, head and evaluation.sets: sphereface2 sources, augmentations, "
        "backbones, heads, sets"
    )


Name = Annotated[str | None, typer.Argument(help="One of them, to explain it in full.")]


def heads(
    name: Name = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Options that its pull is computed with: scale=30 ..."
        ),
    ] = None,
) -> None:
    """List the heads (losses) with their options and defaults; one: how strongly it pulls."""
    from sphereface2.heads import HEADS

    given = named_options("head", options, like="scale=30")
    _print_choices("head", HEADS, name)
    if name is not None:
        _print_pull(name, given)


def _print_pull(name: str, options: Mapping[str, Any]) -> None:
    """How strongly a head pulls at its start, so that losses can be compared at equal strength."""
    import torch

    from sphereface2.heads import ProxyHead, build_head
    from sphereface2.heads.proxy import SHOWN_CLASSES, SHOWN_COSINES, pull

    with torch.random.fork_rng(devices=[]):
        head = build_head(name, 3, SHOWN_CLASSES, **options)
    if not isinstance(head, ProxyHead) or not head.unit_weights:
        has_any = isinstance(head, ProxyHead)
        why = "its class weights are of any length" if has_any else "it has none"
        typer.echo(f"\nNo pull to compare: that is of class weights of unit length, and {why}.")
        return
    pulls = " and ".join(f"{pull(head, cosine):.3g} at {cosine:g}" for cosine in SHOWN_COSINES)
    given = [_assignment(key, value) for key, value in options.items()]
    how = f" with {', '.join(given)}" if given else ""
    pairs = getattr(head, "pairs", None)
    and_pairs = "" if pairs is None else " The term on pairs pulls samples alone: not counted here."
    typer.echo(
        f"\nPull{how}: {pulls}; that is -dL/dcos of the target with {SHOWN_CLASSES:,} classes, all "
        f"others at a right angle. Compare losses by pull × learning rate.{and_pairs}"
    )


def backbones(name: Name = None) -> None:
    """List the backbones (networks) with their options and defaults."""
    from sphereface2.backbones import BACKBONES

    _print_choices("backbone", BACKBONES, name)


def augmentations(name: Name = None) -> None:
    """List the augmentations of training images with their options and defaults."""
    from sphereface2.data.augmentation import AUGMENTATIONS

    _print_choices("augmentation", AUGMENTATIONS, name)


def sources(name: Name = None) -> None:
    """List the sources of training images (data.name) with their options and defaults."""
    from sphereface2.data.sources import SOURCES

    _print_choices("source", SOURCES, name)


def sets(name: Name = None) -> None:
    """List the kinds of verification sets (evaluation.sets) with their options and defaults."""
    from sphereface2.data.pairs import VERIFICATION_SETS

    _print_choices("set", VERIFICATION_SETS, name)


def _print_choices(kind: str, table: Mapping[str, Callable[..., object]], name: str | None) -> None:
    """All entries of a table with a phrase and their options, or all about one entry."""
    import inspect

    from sphereface2.registry import look_up

    if name is not None:
        factory = look_up(kind, table, name)
        text = inspect.getdoc(factory) or ""
        # Options that a class takes over are explained where they come from.
        for base in inspect.getmro(factory)[1:] if inspect.isclass(factory) else ():
            if "Args:" not in text:
                _, found, explained = (inspect.getdoc(base) or "").partition("\n\nArgs:")
                text += found + explained
        typer.echo(f"{text}\n\nOptions: {', '.join(_options(factory)) or 'none'}")
        return
    rows = []
    for each, factory in table.items():
        phrase = " ".join((inspect.getdoc(factory) or "").partition("\n\n")[0].split())
        rows.append((each, f"{phrase.rstrip(':')}\n{', '.join(_options(factory)) or 'no options'}"))
    _print_table(kind, rows)
    typer.echo(f"\nmore on one: sphereface2 {kind}s NAME")


def _options(factory: Callable[..., object]) -> list[str]:
    """Every option with its default, as a config would have it."""
    import inspect

    from sphereface2.registry import option_names

    def shown(key: str) -> str:
        value = inspect.signature(factory).parameters[key].default
        if value is inspect.Parameter.empty:
            return f"{key} (must be given)"
        if value is None:  # a default that differs between classes with one signature
            value = getattr(factory, f"default_{key}", None)
        return _assignment(key, value)

    return [shown(key) for key in option_names(factory)]


def _assignment(key: str, value: object) -> str:
    """A value as a config would have it."""
    if value is None:
        return f"{key}=null"
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    return f"{key}={list(value) if isinstance(value, tuple) else value}"


def _print_table(kind: str, rows: Sequence[tuple[str, str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(kind, style="bold", no_wrap=True)
    table.add_column("")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    stdout().print(table)
