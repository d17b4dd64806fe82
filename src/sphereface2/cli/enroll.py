"""The command that adds people to a gallery: enroll."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli import options
from sphereface2.cli.console import Watch, console, print_answer, stoppable

if TYPE_CHECKING:
    from sphereface2.recognition.enrolment import Enrolment

_NAMED = 3  # photos in the sentence about why nothing was enrolled


def enroll(
    context: typer.Context,
    gallery: options.InGallery,
    model: options.Model,
    person: Annotated[
        str | None, typer.Argument(metavar="PERSON", help="The name; new or known already.")
    ] = None,
    photos: Annotated[
        list[Path] | None, typer.Argument(metavar="PHOTO...", help="Photos of this person.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="PEOPLE", help="Instead: a folder with a folder for each person."),
    ] = None,
    collection: options.Collection = "default",
    metadata: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='What else is known about them: \'{"team": "blue"}\'.'),
    ] = None,
    allow: options.Allow = None,
    limit: options.Limit = None,
    keep_crops: Annotated[
        bool,
        typer.Option(
            "--keep-crops/--drop-crops",
            help="Keep the aligned faces, which another model can embed later (gallery migrate).",
        ),
    ] = True,
    choose: options.Choose = "prominent",
    crops: options.Crops = None,
    flip: options.Flip = None,
    json: options.AsJson = False,
) -> None:
    """Add a person's photos to a gallery: enroll Anna a.jpg b.jpg --gallery people --model MODEL

    Photos that are blurred, small, turned away, unlike the person's others or of somebody else's
    face are left out, each with its reason. A photo that is there already is not added again, so
    the same command can be repeated; with --folder it resumes. Exit code 2 if nothing was enrolled.
    """
    from sphereface2.config.loading import parse_mapping
    from sphereface2.recognition.enrolment import people_of
    from sphereface2.recognition.gate import Gate
    from sphereface2.recognition.recognizer import Recognizer

    gate = Gate.of(allow=allow or (), limits=limit or ())
    if folder is None:
        if person is None or not photos:
            raise ValueError(
                "give a name and photos (enroll Anna a.jpg b.jpg), or --folder with a folder for "
                "each person"
            )
        listed = None
    else:
        options.refuse_idle(
            context, "person", "metadata", because="has no meaning beside --folder, which names all"
        )
        listed = people_of(folder)
    known = None if metadata is None else parse_mapping(metadata, origin="--metadata")
    recognizer = Recognizer(model, kind=options.kind_of_photos(crops), choose=choose, flip=flip)
    opened = recognizer.open_gallery(gallery, collection=collection, create=True)
    if listed is None:
        assert person is not None
        done = [
            recognizer.enroll(
                person,
                list(photos or []),
                opened,
                gate=gate,
                metadata=known,
                keep_crops=keep_crops,
            )
        ]
    else:
        with stoppable(), Watch(console())("enrolling photos") as progress:
            done = recognizer.enroll_people(
                listed, opened, gate=gate, keep_crops=keep_crops, progress=progress
            )
    refused = [photo for each in done for photo in each.refused]
    total = sum(len(each.photos) for each in done)
    if json or total > len(refused):
        print_answer([each.to_mapping() for each in done], *_sentences(done), as_json=json)
    if total == len(refused):
        said = "; ".join(photo.words() for photo in refused[:_NAMED])
        more = len(refused) - _NAMED
        raise ValueError(f"nothing was enrolled: {said}{f'; and {more} more' if more > 0 else ''}")


def _sentences(done: "list[Enrolment]") -> list[str]:
    from sphereface2.workers import counted

    if len(done) == 1:
        return done[0].sentences()
    added = sum(each.added for each in done)
    refused = [f"{each.person}: {photo.words()}" for each in done for photo in each.refused]
    again = sum(len(each.photos) for each in done) - added - len(refused)
    people = counted(len(done), "person", "people")
    summary = f"{counted(added, 'photo')} enrolled, {again} there already, {len(refused)} left out"
    return [f"{people}: {summary}", *refused, *done[0].notes]
