"""The command that compares photos: verify."""

from pathlib import Path
from typing import Annotated

import typer

from sphereface2.cli.options import Flip, Model
from sphereface2.files import require_writable

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
        help="The pictures are aligned crops, or photos to find the face in; found out for each if "
        "not given.",
    ),
]


def verify(
    photo: Annotated[Path, typer.Argument(metavar="A.jpg", help="A photo, or an aligned crop.")],
    person: Annotated[
        list[Path],
        typer.Argument(metavar="B.jpg...", help="One photo of the person, or several."),
    ],
    model: Model,
    false_accepts: FalseAccepts = None,
    prior: Prior = None,
    choose: Choose = "prominent",
    crops: Crops = None,
    flip: Flip = None,
    show: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the faces, the score and the words."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Are these the same person? sphereface2 verify a.jpg b.jpg --model MODEL

    With several photos of the person, the score is the mean over them. Exit code 0 whatever the
    answer is; 2 if there is none.
    """
    from sphereface2.evaluation.decision import share_in_words
    from sphereface2.recognition.recognizer import Recognizer

    wanted = None if false_accepts is None else share_in_words(false_accepts)
    if show is not None:
        require_writable(show, is_file=True)
        if show.suffix.lower() != ".png":
            raise ValueError(f"--show writes a PNG picture; give a name that ends in .png: {show}")
    recognizer = Recognizer(
        model,
        kind="auto" if crops is None else "crop" if crops else "photo",
        choose=choose,
        flip=flip,
    )
    done = recognizer.verify(photo, person, false_accepts=wanted, prior=prior)
    if show is not None:
        from sphereface2.reporting.figures.answer import write_answer_picture

        write_answer_picture(show, done, recognizer.calibration)
    if json:
        from json import dumps

        print(dumps(done.to_mapping(), indent=1))
        return
    for sentence in done.sentences():
        print(sentence)
    if show is not None:
        print(f"picture: {show}")
