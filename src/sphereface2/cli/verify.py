"""The command that compares photos: verify."""

from pathlib import Path
from typing import Annotated

import typer

from sphereface2.cli import options
from sphereface2.cli.console import print_answer


def verify(
    context: typer.Context,
    photo: Annotated[Path, typer.Argument(metavar="A.jpg", help="A photo, or an aligned crop.")],
    model: options.Model,
    photos: Annotated[
        list[Path] | None,
        typer.Argument(metavar="B.jpg...", help="One photo of the person, or several."),
    ] = None,
    gallery: Annotated[
        str | None,
        typer.Option(metavar="GALLERY", help="Where --person is enrolled, instead of photos."),
    ] = None,
    person: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare with all photos of this person.")
    ] = None,
    collection: options.Collection = "default",
    false_accepts: options.FalseAccepts = None,
    prior: options.Prior = None,
    choose: options.Choose = "prominent",
    crops: options.Crops = None,
    flip: options.Flip = None,
    show: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the faces, the score and the words."),
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Are these the same person? sphereface2 verify a.jpg b.jpg --model MODEL

    With several photos of the person, the score is the mean over them; so it is with --gallery
    and --person. Exit code 0 whatever the answer is; 2 if there is none.
    """
    from sphereface2.evaluation.decision import share_in_words
    from sphereface2.recognition.recognizer import Recognizer

    if gallery is None:
        options.refuse_idle(context, "person", "collection", because="goes with --gallery")
        if not photos:
            raise ValueError(
                "give a photo of the person, too (verify A.jpg B.jpg), or --gallery and --person"
            )
    else:
        if photos:
            raise ValueError(f"'{photos[0]}' has no meaning beside --gallery; give --person NAME")
        if person is None:
            raise ValueError("--gallery needs --person NAME; sphereface2 identify asks who it is")
    wanted = None if false_accepts is None else share_in_words(false_accepts)
    options.checked_picture(show)
    recognizer = Recognizer(model, kind=options.kind_of_photos(crops), choose=choose, flip=flip)
    if gallery is None or person is None:
        done = recognizer.verify(photo, list(photos or []), false_accepts=wanted, prior=prior)
    else:
        done = recognizer.verify_person(
            photo,
            recognizer.open_gallery(gallery, collection=collection),
            person,
            false_accepts=wanted,
            prior=prior,
        )
    if show is not None:
        from sphereface2.reporting.figures.calibration import write_answer_picture

        write_answer_picture(show, done, recognizer.calibration)
    drawn = [] if show is None else [f"picture: {show}"]
    print_answer(done.to_mapping(), *done.sentences(), *drawn, as_json=json)
