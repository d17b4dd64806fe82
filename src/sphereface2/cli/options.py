"""Options that several commands have, and the refusal of options that would change nothing."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sphereface2.files import require_writable
from sphereface2.workers import usable_cores

if TYPE_CHECKING:
    from sphereface2.data.pairs.verification_set import Missing
    from sphereface2.recognition.photos import Kind

Model = Annotated[
    Path,
    typer.Option(
        metavar="MODEL",
        envvar="SPHEREFACE2_MODEL",
        help="A run or model folder; the environment may name it.",
    ),
]
Flip = Annotated[
    bool | None,
    typer.Option(
        "--flip/--no-flip",
        help="Add the mirror image's embedding; as the model's folder says if not given.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Threads that read images, or processes that render; one per core if not given."
    ),
]
Seeds = Annotated[str, typer.Option(help="How many (3: the seeds 0, 1 and 2), or which (0,4,7).")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at once; one per GPU, or else one per core, if not given."),
]
ListRoot = Annotated[
    Path | None, typer.Option(help="The folder that the paths of a list start from.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images at once.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]

FalseAccepts = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="How many pairs of different people may be accepted: 1e-4, 0.01%, '1 in 10,000'; 1 in "
        "1,000 if not given.",
    ),
]
Prior = Annotated[
    float | None,
    typer.Option(
        help="The share of the pairs you compare that are one person; the calibration's if not "
        "given."
    ),
]
Choose = Annotated[
    str,
    typer.Option(
        help="Of several faces: prominent (large, whole, near the middle), largest, central, or "
        "only (several are an error)."
    ),
]
Crops = Annotated[
    bool | None,
    typer.Option(
        "--crops/--photos",
        help="The pictures are aligned crops, or photos to find the face in; detected for each if "
        "not given.",
    ),
]
MinFace = Annotated[
    int | None,
    typer.Option(help="Pixels of the smallest face; a small part of the photo if not given."),
]
Collection = Annotated[
    str, typer.Option(metavar="NAME", help="Which of the collections of the gallery.")
]
InGallery = Annotated[
    str,
    typer.Option(
        "--gallery",
        metavar="GALLERY",
        envvar="SPHEREFACE2_GALLERY",
        help="A folder, or the address of a server; the environment may name it.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CHECK",
        help="Leave a check out: several-faces, too-small, blurred, turned-away, unlike-others, "
        "same-as-another, or all; repeat it for more.",
    ),
]
Limit = Annotated[
    list[str] | None,
    typer.Option(metavar="CHECK=VALUE", help="Another limit, as in blurred=60; repeat for more."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def kind_of_photos(crops: bool | None) -> "Kind":
    """What --crops and --photos mean for a recognizer."""
    return "auto" if crops is None else "crop" if crops else "photo"


def checked_picture(show: Path | None) -> None:
    """Refuse at once what --show could not write."""
    if show is None:
        return
    require_writable(show, is_file=True)
    if show.suffix.lower() != ".png":
        raise ValueError(f"--show writes a PNG picture; give a name that ends in .png: {show}")


def readers(workers: int | None) -> int:
    """How many read images in this process: as many as asked for, or its share of the cores."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return workers or max(1, usable_cores() // ranks)


def checked_missing(word: str) -> "Missing":
    """What a word after --missing means."""
    from typing import get_args

    from sphereface2.data.pairs.verification_set import Missing
    from sphereface2.registry import look_up

    words: dict[str, Missing] = {each: each for each in get_args(Missing)}
    return look_up("--missing", words, word)


def given_options(context: typer.Context) -> dict[str, Any]:
    """The values of the options given on the command line, by their Python names."""
    return {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"
    }


def refuse_idle(context: typer.Context, *names: str, because: str) -> None:
    """Refuse those of the named options that are given: they would change nothing, `because`."""
    given = given_options(context)
    for name in (name for name in names if name in given):
        option = next(each for each in context.command.params if each.name == name)
        words = option.secondary_opts if given[name] is False else option.opts
        values = given[name] if isinstance(given[name], list) else [given[name]]
        word = words[0] if option.param_type_name == "option" else f"'{values[0]}'"
        raise ValueError(f"{word} {because}")


def named_options(section: str, texts: Sequence[str] | None, *, like: str) -> dict[str, Any]:
    """What KEY=VALUE arguments say of a section of a config; `like` is an example."""
    from sphereface2.config.loading import parse_yaml

    given = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"an option of the {section} looks like {like}; got '{text}'")
        given[key.removeprefix(f"{section}.")] = parse_yaml(value, origin=f"option '{text}'")
    return given
