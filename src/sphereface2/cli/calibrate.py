"""The command that finds thresholds for a model: calibrate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import Watch, console, say, stdout
from sphereface2.cli.options import Device, Flip, Workers, checked_missing, readers, refuse_idle
from sphereface2.files import require_writable

if TYPE_CHECKING:
    from sphereface2.config.schema import RunConfig
    from sphereface2.data.pairs.verification_set import Missing, VerificationSet


def calibrate(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run or a model folder.")],
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET",
            help="A .bin file, a list of pairs, 'synthetic', or a set of the run's own by name; "
            "several are pooled. By default all sets of the run.",
        ),
    ] = None,
    root: Annotated[
        str | None, typer.Option(help="The folder that the images of a list lie below.")
    ] = None,
    far: Annotated[
        list[float] | None, typer.Option(help="A target FAR, such as 0.001; may be repeated.")
    ] = None,
    prior: Annotated[
        float, typer.Option(help="The share of pairs that are one person, where you will use it.")
    ] = 0.5,
    missing: Annotated[
        str | None,
        typer.Option(
            help="Images that are not there or cannot be read: 'error', or 'skip' (left out); as "
            "the set says if not given."
        ),
    ] = None,
    flip: Flip = None,
    workers: Workers = None,
    device: Device = "auto",
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Where to draw it; calibration.png in the run or model folder if not given."
        ),
    ] = None,
) -> None:
    """Find thresholds and probabilities for a model's scores, and keep them in its folder."""
    from sphereface2.config.schema import load_config
    from sphereface2.evaluation.calibration import FAR_TARGETS
    from sphereface2.models.folder import find_model, recorded_flip
    from sphereface2.reporting.figures.calibration import (
        bias_sentence,
        collapse_sentence,
        thresholds_content,
        write_calibration_picture,
    )
    from sphereface2.runs.evaluate import calibrate_model
    from sphereface2.runs.folder import CALIBRATION, CONFIG, MODEL, read_history

    if not on:
        refuse_idle(
            context,
            "root",
            because="is for the images of lists named with --on; a run's own sets know theirs",
        )
    chosen = None if missing is None else checked_missing(missing)
    folder = find_model(model)
    # Not beside a model folder: several of them often share one place.
    place = picture or (folder.parent if folder.name == MODEL else folder) / CALIBRATION
    require_writable(place, is_file=True)
    require_writable(folder)
    config = load_config(folder.parent) if (folder.parent / CONFIG).is_file() else None
    calibration = calibrate_model(
        folder,
        _sets(on or [], config, root=root, missing=chosen, folder=folder),
        far_targets=far or FAR_TARGETS,
        prior=prior,
        flip=flip,
        workers=readers(workers),
        device=device,
        history=read_history(folder.parent),
        watch=Watch(console()),
    )
    write_calibration_picture(place, calibration)
    out = stdout()
    out.print(thresholds_content(calibration))
    for said in (collapse_sentence(calibration), bias_sentence(calibration)):
        if said:
            say(out, said, wrap=True)
    if flip is not None and flip != recorded_flip(folder):
        said = "with" if flip else "without"
        say(
            out,
            f"these hold {said} the mirror image's embedding added, which is not how this model "
            f"embeds by itself: give --{'' if flip else 'no-'}flip wherever they are used, or "
            f"flip={flip} to model.embed",
            wrap=True,
        )
    probability = calibration.probability
    sign = "−" if probability.intercept < 0 else "+"
    say(
        out,
        f"P(same | cosine) = 1 / (1 + exp(-({probability.slope:.3f} · cosine "
        f"{sign} {abs(probability.intercept):.3f}))) at prior {probability.prior:g}; mean gap "
        f"{100 * calibration.calibration_error:.1f} points",
        wrap=True,
    )
    say(out, f"kept in {folder / 'config.json'}; picture: {place}")


def _sets(
    words: list[str],
    config: "RunConfig | None",
    *,
    root: str | None,
    missing: "Missing | None",
    folder: Path,
) -> "list[VerificationSet]":
    from sphereface2.data.pairs import (
        VERIFICATION_SETS,
        require_lists_for_root,
        sets_of_choice,
        sets_of_word,
    )

    def of_run() -> "list[VerificationSet]":
        choices = config.evaluation.sets if config is not None else []
        return [
            each
            for choice in choices
            for each in sets_of_choice(choice.name, choice.options, missing=missing)
        ]

    require_lists_for_root(words, root)
    if words:
        chosen: list[VerificationSet] = []
        for word in words:
            is_own = not Path(word).exists() and word not in VERIFICATION_SETS
            own = of_run() if is_own else []
            named = [each for each in own if each.name == word]
            others = [each.name for each in own]
            chosen += named or sets_of_word(word, root=root, others=others, missing=missing)
        return chosen
    own = of_run()
    if not own:
        raise ValueError(f"{folder} belongs to no run with sets: name a set with --on SET")
    return own
