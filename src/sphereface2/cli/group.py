"""The commands that make people of photos, and correct them: group, and regroup NAME."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sphereface2.cli import options
from sphereface2.cli.console import Watch, console, print_answer, stdout, stoppable
from sphereface2.files import require_writable

if TYPE_CHECKING:
    from sphereface2.datatools.group.groups import Groups

Out = Annotated[Path, typer.Argument(metavar="OUT", help="A folder that 'group' has written.")]
PersonWord = Annotated[str, typer.Argument(metavar="PERSON", help="person-12, 12, or a name.")]

regroup = typer.Typer(
    help="Correct what 'sphereface2 group' has made: name, merge, split, undo. The corrections "
    "hold when it runs again.",
    no_args_is_help=True,
)


def group(
    context: typer.Context,
    photos: Annotated[
        Path,
        typer.Argument(
            metavar="PHOTOS",
            help="A folder of photos or aligned crops, at any depth, or saved embeddings.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for tables and pages.")],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            envvar="SPHEREFACE2_MODEL",
            help="A run or model folder; the environment may name it. Not needed "
            "for saved embeddings if a --threshold is given.",
        ),
    ] = None,
    false_accepts: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="The threshold in words: how many pairs of different people may reach it: 1e-4, "
            "0.01%, '1 in 10,000'. If not given, 1 in 1,000, or fewer among more than 10,000 "
            "faces; for an OUT that is there, as before.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Instead: the mean cosine that the faces of a person reach."),
    ] = None,
    crops: options.Crops = None,
    detector: Annotated[str, typer.Option(help="mtcnn, or yunet (faster, less exact).")] = "mtcnn",
    min_face: options.MinFace = None,
    flip: options.Flip = None,
    folders: Annotated[
        str | None,
        typer.Option(
            metavar="link|copy",
            help="Also make OUT/people/NAME with links to the person's photos, or copies.",
        ),
    ] = None,
    afresh: Annotated[
        bool,
        typer.Option(
            "--afresh",
            help="Decide everything again except your own merges, splits and names, for example "
            "with a stricter rate; without it people only grow.",
        ),
    ] = False,
    workers: options.Workers = None,
    json: options.AsJson = False,
) -> None:
    """Group photos by the people in them: sphereface2 group photos people --model MODEL

    Every face is found and embedded once; two faces of one photo are never one person. Run again
    with more photos, new faces join the people who are there, who keep their numbers and names.
    OUT gets index.html, faces.csv, people.json (edit the names in it) and journal.jsonl. After an
    interruption the same command resumes. Correct mistakes with 'sphereface2 regroup'.
    """
    from sphereface2.datatools.group import group_photos
    from sphereface2.evaluation.decision import share_in_words

    if photos.is_file():
        finding = ("crops", "detector", "min_face", "flip", "workers")
        options.refuse_idle(context, *finding, because="is for photos, not for saved embeddings")
    wanted = None if false_accepts is None else share_in_words(false_accepts)
    detecting: dict[str, Any] = {} if min_face is None else {"min_face": min_face}
    require_writable(out)
    with stoppable():
        done = group_photos(
            photos,
            out,
            model=model,
            kind=options.kind_of_photos(crops),
            detector=detector,
            options=detecting,
            flip=flip,
            false_accepts=wanted,
            threshold=threshold,
            afresh=afresh,
            folders=folders,
            workers=options.readers(workers),
            watch=Watch(console()),
        )
        _show(done, as_json=json)


@regroup.command("name")
def name(
    out: Out,
    person: PersonWord,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name; '' takes it away.")],
    json: options.AsJson = False,
) -> None:
    """Give a person a name: sphereface2 regroup name OUT person-12 "Anna" """
    _change(out, "name", person, name, as_json=json)


@regroup.command("merge")
def merge(
    out: Out,
    people: Annotated[
        list[str], typer.Argument(metavar="PERSON...", help="Who is one person; the first stays.")
    ],
    json: options.AsJson = False,
) -> None:
    """Make one person of several: sphereface2 regroup merge OUT person-3 person-12"""
    _change(out, "merge", *people, as_json=json)


@regroup.command("split")
def split(
    out: Out,
    person: PersonWord,
    faces: Annotated[
        list[int], typer.Argument(metavar="FACE...", help="Their numbers: on the page, faces.csv.")
    ],
    json: options.AsJson = False,
) -> None:
    """Make another person of some faces: sphereface2 regroup split OUT person-3 17 42"""
    _change(out, "split", person, faces, as_json=json)


@regroup.command("undo")
def undo(out: Out, json: options.AsJson = False) -> None:
    """Take back the last name, merge or split that was not taken back yet."""
    _change(out, "undo", as_json=json)


def _change(out: Path, what: str, *words: Any, as_json: bool) -> None:
    from sphereface2.datatools.group import regroup as change

    _show(change(out, what, *words), as_json=as_json)


def _show(groups: "Groups", *, as_json: bool) -> None:
    from sphereface2.evaluation.verification import installed_versions
    from sphereface2.files import printable
    from sphereface2.reporting.pages.group import group_pages, group_table

    pages = group_pages(
        groups,
        groups.crop,
        title=groups.out.resolve().name,
        versions=installed_versions(),
    )
    for file, page in pages.items():
        page.write(groups.out / file)
    number = len(pages) + 1
    while (old := groups.out / f"page-{number}.html").is_file():
        old.unlink()
        number += 1
    if as_json:
        print_answer(groups.to_mapping(), as_json=True)
        return
    for sentence in groups.said:
        print(sentence)
    stdout().print(group_table(groups))
    for names, what in ((groups.without_face, "no face"), (groups.unreadable, "cannot be read")):
        if names:
            print(f"{len(names):,} photos left out ({what}); people.json and the page list them")
    if groups.gone:
        print(f"{groups.gone:,} photos are no longer there; what is known of them is kept")
    print(f"page: {printable(groups.out / 'index.html')}")
