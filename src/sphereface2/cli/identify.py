"""The command that searches a gallery: identify."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sphereface2.cli import options
from sphereface2.cli.console import print_answer


def identify(
    photos: Annotated[
        list[Path], typer.Argument(metavar="PHOTO...", help="Photos, or aligned crops.")
    ],
    gallery: options.InGallery,
    model: options.Model,
    collection: options.Collection = "default",
    people: Annotated[int, typer.Option(min=1, help="How many candidates to name.")] = 3,
    false_alarms: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="How many searches for a stranger may find somebody: '1 in 1000 searches', 0.1%; "
            "1 in 100 if not given, or the fewest that the calibration resolves.",
        ),
    ] = None,
    false_accepts: options.FalseAccepts = None,
    prior: Annotated[
        float | None,
        typer.Option(
            help="The share of those you search for who are enrolled; the calibration's if not "
            "given."
        ),
    ] = None,
    choose: options.Choose = "prominent",
    crops: options.Crops = None,
    flip: options.Flip = None,
    show: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the face, the candidates and the words."),
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Who is this? sphereface2 identify photo.jpg --gallery people --model MODEL

    Exit code 0 whatever the answer is; 2 if a photo has none.
    """
    from sphereface2.evaluation.decision import share_in_words
    from sphereface2.recognition.answers import faces_of
    from sphereface2.recognition.recognizer import Recognizer

    if false_alarms is not None and false_accepts is not None:
        raise ValueError("--false-alarms and --false-accepts exclude each other; give one of them")
    alarms = None if false_alarms is None else share_in_words(false_alarms)
    accepts = None if false_accepts is None else share_in_words(false_accepts)
    if show is not None and len(photos) > 1:
        raise ValueError(f"--show draws one photo; {len(photos)} are given")
    options.checked_picture(show)
    recognizer = Recognizer(model, kind=options.kind_of_photos(crops), choose=choose, flip=flip)
    opened = recognizer.open_gallery(gallery, collection=collection)
    answers: list[dict[str, Any]] = []
    failed = False
    for photo in photos:
        try:
            done = recognizer.identify(
                photo,
                opened,
                false_alarms=alarms,
                false_accepts=accepts,
                people=people,
                prior=prior,
            )
        except (ValueError, OSError) as error:
            if len(photos) == 1:
                raise
            failed = True
            answers.append({"photo": {"photo": str(photo)}, "error": str(error)})
            print(f"sphereface2: {error}", file=sys.stderr)
            continue
        answers.append(done.to_mapping())
        if show is not None:
            from sphereface2.reporting.figures.calibration import write_search_picture

            faces = {
                each.person: face
                for each in done.candidates
                for face in faces_of(opened, each.person, most=1)
            }
            write_search_picture(show, done, faces, recognizer.calibration)
        if not json:
            if len(photos) > 1:
                print(f"{done.photo.photo}")
            for sentence in done.sentences():
                print(f"  {sentence}" if len(photos) > 1 else sentence)
    print_answer(answers, *([] if show is None else [f"picture: {show}"]), as_json=json)
    if failed:
        raise typer.Exit(2)
