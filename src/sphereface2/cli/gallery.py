"""The commands that look after a gallery: list, show, remove, rename, doctor, migrate and more."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sphereface2.cli import options
from sphereface2.cli.console import Watch, console, print_answer, say, stdout, stoppable
from sphereface2.workers import counted

if TYPE_CHECKING:
    from sphereface2.galleries.gallery import Gallery
    from sphereface2.recognition.doctor import Diagnosis

app = typer.Typer(
    help="Look after a gallery: list, check and correct its people, or move it to another model.",
    no_args_is_help=True,
)

Url = Annotated[
    str, typer.Argument(metavar="GALLERY", help="A folder, or the address of a server.")
]
Name = Annotated[str, typer.Argument(metavar="PERSON", help="Somebody who is enrolled.")]


@app.command("list")
def list_(
    url: Url, collection: options.Collection = "default", json: options.AsJson = False
) -> None:
    """List the people of a gallery, with how many photos each has."""
    gallery = _open(url, collection)
    people = gallery.people()
    _, photos = gallery.count()
    print_answer(
        [asdict(person) for person in people],
        *(f"{person.name}  {counted(person.photos, 'photo')}" for person in people),
        f"{counted(len(people), 'person', 'people')}, {counted(photos, 'photo')}; model "
        f"{gallery.model[:12]}",
        as_json=json,
    )


@app.command()
def show(
    url: Url, person: Name, collection: options.Collection = "default", json: options.AsJson = False
) -> None:
    """Show a person: metadata, photos with what was measured, faces marked as not theirs."""
    gallery = _open(url, collection)
    known = gallery.person(person)
    photos = gallery.photos(known.name)
    negatives = gallery.negatives(known.name)
    lines = [f"{known.name}: {counted(known.photos, 'photo')}, since {known.added}"]
    lines += [f"  {key}: {value}" for key, value in known.metadata.items()]
    for photo in photos:
        measured = ", ".join(
            f"{word} {photo.facts[word]:g}"
            for word in ("sharpness", "eye_distance", "yaw")
            if isinstance(photo.facts.get(word), int | float)
        )
        lines.append(f"  {photo.id}  {photo.source}  {measured}")
    lines += [f"  not this person: {each.id}  {each.source}" for each in negatives]
    facts = {
        **asdict(known),
        "photos": [asdict(photo) for photo in photos],
        "not_this_person": [_plain(each) for each in negatives],
    }
    print_answer(facts, *lines, as_json=json)


@app.command()
def remove(
    url: Url,
    person: Annotated[
        str | None, typer.Argument(metavar="PERSON", help="With all photos; or give --photo.")
    ] = None,
    photo: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this photo; repeat it for more.")
    ] = None,
    collection: options.Collection = "default",
    json: options.AsJson = False,
) -> None:
    """Remove a person, or single photos, so that no byte of them stays in the gallery."""
    if (person is None) == (not photo):
        raise ValueError("give the name of a person or --photo ID, and only one of the two")
    gallery = _open(url, collection)
    count = gallery.remove_photos(photo or []) if person is None else gallery.remove(person)
    photos = counted(count, "photo")
    said = f"{photos} removed" if person is None else f"{person} is removed, with {photos}"
    print_answer({"person": person, "photos": count}, said, as_json=json)


@app.command()
def rename(
    url: Url,
    person: Name,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that nobody has.")],
    collection: options.Collection = "default",
    json: options.AsJson = False,
) -> None:
    """Give a person another name."""
    _open(url, collection).rename(person, name)
    print_answer({"person": name, "before": person}, f"{person} is {name} now", as_json=json)


@app.command()
def merge(
    url: Url,
    person: Name,
    into: Annotated[str, typer.Argument(metavar="INTO", help="Who gets the photos.")],
    collection: options.Collection = "default",
    json: options.AsJson = False,
) -> None:
    """Give all photos of a person to another and remove the first: two names for one face."""
    from sphereface2.recognition.moving import merge as merge_people

    count = merge_people(_open(url, collection), person, into)
    said = f"{counted(count, 'photo')} of {person} are {into}'s now"
    print_answer({"person": into, "before": person, "photos": count}, said, as_json=json)


@app.command()
def export(
    url: Url,
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    collection: options.Collection = "default",
    json: options.AsJson = False,
) -> None:
    """Write a gallery as plain files: embeddings.npz, people.csv and the crops."""
    from sphereface2.recognition.moving import export as write

    gallery = _open(url, collection)
    with Watch(console())("exporting photos") as progress:
        count = write(gallery, folder, progress=progress)
    said = f"{counted(count, 'photo')} in {folder}"
    print_answer({"photos": count, "folder": str(folder)}, said, as_json=json)


@app.command()
def doctor(
    context: typer.Context,
    url: Url,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            envvar="SPHEREFACE2_MODEL",
            help="The gallery's model: with its calibration, scores are looked at, too.",
        ),
    ] = None,
    flip: options.Flip = None,
    collection: options.Collection = "default",
    allow: options.Allow = None,
    limit: options.Limit = None,
    json: options.AsJson = False,
) -> None:
    """Find what is wrong in a gallery: blurred, small, turned or odd photos, one face under two
    names, people without photos, the same photo twice; and the command that repairs each.
    """
    from sphereface2.recognition.doctor import examine
    from sphereface2.recognition.gate import Gate
    from sphereface2.recognition.recognizer import Recognizer

    gate = Gate.of(allow=allow or (), limits=limit or ())
    if model is None:
        options.refuse_idle(context, "flip", because="is for --model")
        gallery, calibration = _open(url, collection), None
        gate = replace(gate, unlike_others=None, same_as_another=None)
    else:
        recognizer = Recognizer(model, flip=flip)
        gallery = recognizer.open_gallery(url, collection=collection)
        calibration = recognizer.calibration
    with Watch(console())("looking at people") as progress:
        found = examine(
            gallery, calibration, url=url, collection=collection, gate=gate, progress=progress
        )
    if model is None:
        note = "scores were not looked at; give --model to find odd photos and one face twice"
        found = replace(found, notes=(note, *found.notes))
    if json:
        print_answer(found.to_mapping(), as_json=True)
    else:
        _print_diagnosis(found)


@app.command()
def migrate(
    url: Url,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The gallery to make.")],
    model: options.Model,
    collection: options.Collection = "default",
    flip: options.Flip = None,
    json: options.AsJson = False,
) -> None:
    """Embed a gallery by another model, from the kept crops, into a new gallery.

    The old one stays as it is. Interrupted, the same command resumes.
    """
    from sphereface2.recognition.moving import migrate as move
    from sphereface2.recognition.recognizer import Recognizer

    if url == new:
        raise ValueError("the new gallery must not be the old one")
    old = _open(url, collection)
    recognizer = Recognizer(model, flip=flip)
    made = recognizer.open_gallery(new, collection=collection, create=True)
    with stoppable(), Watch(console())("embedding photos") as progress:
        done = move(old, made, recognizer, progress=progress)
    print_answer(done.to_mapping(), *done.sentences(), as_json=json)


@app.command()
def reject(
    url: Url,
    photos: Annotated[list[Path], typer.Argument(metavar="PHOTO...", help="Photos of others.")],
    model: options.Model,
    person: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whom the photos do not show.")
    ] = None,
    stranger: Annotated[
        bool, typer.Option("--stranger", help="Instead: they show nobody of the collection.")
    ] = False,
    collection: options.Collection = "default",
    choose: options.Choose = "prominent",
    crops: options.Crops = None,
    flip: options.Flip = None,
    json: options.AsJson = False,
) -> None:
    """Not this person: keep faces that were wrongly taken for somebody, and learn from them.

    From five faces on, and three photos of the person, a small classifier takes part in decisions
    about the person, where it does better on left-out photos. `gallery unreject` undoes it.
    """
    from sphereface2.recognition.recognizer import Recognizer
    from sphereface2.recognition.rejection import LEAST_NEGATIVES

    if (person is None) != stranger:
        raise ValueError("give --person NAME or --stranger, and only one of the two")
    recognizer = Recognizer(model, kind=options.kind_of_photos(crops), choose=choose, flip=flip)
    gallery = recognizer.open_gallery(url, collection=collection)
    kept = [recognizer.reject(photo, person, gallery) for photo in photos]
    whom = "a stranger to all" if person is None else f"not {kept[0].person}"
    undo = f"undo: gallery unreject {url}"
    lines = [f"{each.source}: kept as {whom}; {undo} {each.id}" for each in kept]
    if person is not None:
        known = len(gallery.negatives(person)) + len(gallery.negatives(None))
        lines.append(
            f"{counted(known, 'face is', 'faces are')} known that are not {kept[0].person}; "
            f"decisions learn from {LEAST_NEGATIVES} on"
        )
    print_answer([_plain(each) for each in kept], *lines, as_json=json)


@app.command()
def unreject(
    url: Url,
    face: Annotated[list[str], typer.Argument(metavar="ID...", help="As `reject` printed them.")],
    collection: options.Collection = "default",
    json: options.AsJson = False,
) -> None:
    """Undo `reject`: the faces no longer count against the person."""
    gallery = _open(url, collection)
    for each in face:
        gallery.remove_negative(each)
    count = counted(len(face), "face no longer counts", "faces no longer count")
    print_answer({"removed": face}, f"{count} against the person", as_json=json)


@app.command()
def strangers(
    url: Url, collection: options.Collection = "default", json: options.AsJson = False
) -> None:
    """List the faces that were kept as strangers to everybody."""
    kept = _open(url, collection).negatives(None)
    lines = [f"{each.id}  {each.source}  {each.added}" for each in kept]
    count = counted(len(kept), "stranger")
    print_answer([_plain(each) for each in kept], *lines, count, as_json=json)


def _open(url: str, collection: str) -> "Gallery":
    from sphereface2.galleries import open_gallery

    return open_gallery(url, collection=collection)


def _plain(negative: Any) -> dict[str, Any]:
    return {name: getattr(negative, name) for name in ("id", "person", "source", "added")}


def _print_diagnosis(found: "Diagnosis") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = stdout()
    people = counted(found.people, "person", "people")
    photos = counted(found.photos, "photo")
    if not found.findings:
        say(out, f"{people}, {photos}: nothing found")
    else:
        say(out, f"{people}, {photos}: {counted(len(found.findings), 'finding')}")
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in ("what", "person", "words"):
            table.add_column(column)
        for each in found.findings:
            table.add_row(Text(each.kind), Text(each.person), Text(each.words))
        out.print(table)
        say(out, "to repair, after a look at the photos:")
        for repair in dict.fromkeys(each.repair for each in found.findings if each.repair):
            say(out, f"  {repair}")
    for note in found.notes:
        say(out, note, wrap=True)
