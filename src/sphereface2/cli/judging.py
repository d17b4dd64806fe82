"""Commands that judge models: compare runs, calibrate a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.options import (
    Device,
    Flip,
    Workers,
    checked_missing,
    readers,
    refuse_idle,
)
from sphereface2.cli.showing import Watch, console
from sphereface2.files import require_writable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sphereface2.config import RunConfig
    from sphereface2.data.verification_sets import Missing, VerificationSet
    from sphereface2.evaluation.pair_scores import PairScores


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_A RUN_B ...", help="Run folders, evaluated.")
    ],
    output: Annotated[Path, typer.Option(help="Where to write the HTML report.")] = Path(
        "comparison.html"
    ),
) -> None:
    """Is the difference real? Compare runs on the same pairs, all with the first."""
    from rich.console import Console

    from sphereface2.evaluation.comparison import compare as compare_models
    from sphereface2.evaluation.pair_scores import SCORES, load_scores
    from sphereface2.reporting.comparison import comparison_tables, write_comparison

    if len(runs) < 2:
        raise ValueError("compare needs at least two run folders")
    labels = _labels(runs)
    require_writable(output, is_file=True)
    scored = [load_scores(run / SCORES)[1] for run in runs]
    with Watch(console())("comparing"):
        comparison = compare_models(list(zip(labels, scored, strict=True)))
    steps = [
        f"{name}: {step}" for name, run in zip(labels, runs, strict=True) if (step := _step(run))
    ]
    notes = _note_on_flips(dict(zip(labels, scored, strict=True)))
    write_comparison(output, comparison, title=" · ".join(labels), steps=steps, notes=notes)
    out = Console()
    for content in comparison_tables(comparison):
        out.print(content.to_rich(), "")
    for line in steps:
        out.print(f"checkpoint of {line}", highlight=False, markup=False)
    for note in notes:
        out.print(note, style="yellow", highlight=False, markup=False, soft_wrap=True)
    for each in comparison.comparisons:
        out.print(each.sentence, highlight=False, markup=False)
    out.print(f"report: {output}", highlight=False, markup=False, soft_wrap=True)


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
        typer.Option(help="Where to draw it; calibration.png beside the model if not given."),
    ] = None,
) -> None:
    """Find thresholds and probabilities for a model's scores, and keep them in its folder."""
    from rich.console import Console

    from sphereface2.backbones.model_folder import recorded_flip
    from sphereface2.evaluation.calibration import FAR_TARGETS
    from sphereface2.evaluation.model_calibration import calibrate_model
    from sphereface2.reporting.calibration import (
        bias_sentence,
        thresholds_content,
        write_calibration_picture,
    )
    from sphereface2.run_folder import MODEL, read_history
    from sphereface2.training.devices import choose_device

    if not on:
        refuse_idle(
            context,
            "root",
            because="is for the images of lists named with --on; a run's own sets know theirs",
        )
    chosen = None if missing is None else checked_missing(missing)
    if not model.is_dir():
        raise FileNotFoundError(f"there is no run or model folder {model}")
    folder = model / MODEL if (model / MODEL).is_dir() else model
    place = picture or folder.parent / "calibration.png"
    require_writable(place, is_file=True)
    require_writable(folder)
    config = _run_config(folder.parent)
    calibration = calibrate_model(
        folder,
        _sets(on or [], config, root=root, missing=chosen, folder=folder),
        far_targets=far or FAR_TARGETS,
        prior=prior,
        flip=flip,
        workers=readers(workers),
        device=choose_device(device),
        history=read_history(folder.parent),
        watch=Watch(console()),
    )
    write_calibration_picture(place, calibration)
    out = Console()
    out.print(thresholds_content(calibration).to_rich())
    said = bias_sentence(calibration)
    if said:
        out.print(said, highlight=False, markup=False)
    if flip is not None and flip != recorded_flip(folder):
        said = "with" if flip else "without"
        out.print(
            f"these hold {said} the mirror image's embedding added, which is not how this model "
            f"embeds by itself: give --{'' if flip else 'no-'}flip wherever they are used, or "
            f"flip={flip} to model.embed",
            highlight=False,
            markup=False,
        )
    probability = calibration.probability
    sign = "−" if probability.intercept < 0 else "+"
    out.print(
        f"P(same | cosine) = 1 / (1 + exp(-({probability.slope:.3f} · cosine "
        f"{sign} {abs(probability.intercept):.3f}))) at prior {probability.prior:g}; mean gap "
        f"{100 * calibration.calibration_error:.1f} points",
        highlight=False,
        markup=False,
    )
    out.print(
        f"kept in {folder / 'config.json'}; picture: {place}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _labels(runs: list[Path]) -> list[str]:
    """The names of the folders, with as many of the folders above as tell them apart."""
    paths = [run.resolve() for run in runs]
    if len(set(paths)) < len(paths):
        raise ValueError("compare needs different run folders; one is given twice")
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            break
    return labels


def _note_on_flips(scored: "Mapping[str, Sequence[PairScores]]") -> list[str]:
    """That some runs were scored with mirror images and others without, where it is so."""
    by_flip = {
        flip: [name for name, sets in scored.items() if any(each.flip is flip for each in sets)]
        for flip in (True, False)
    }
    if not all(by_flip.values()):
        return []
    mirrored, plain = (", ".join(names) for names in by_flip.values())
    return [
        f"{mirrored} scored with mirror images, {plain} without: part of the difference may come "
        "from that; evaluate them alike, with --flip or --no-flip"
    ]


def _step(run: Path) -> str:
    """Which step of its training a run's scores are of; nothing where that is not known."""
    from sphereface2.evaluation.results import EvaluationResult
    from sphereface2.run_folder import EVALUATION

    path = run / EVALUATION
    return EvaluationResult.load(path).step_in_words if path.is_file() else ""


def _run_config(folder: Path) -> "RunConfig | None":
    from sphereface2.config import load_config
    from sphereface2.run_folder import CONFIG

    return load_config(folder) if (folder / CONFIG).is_file() else None


def _sets(
    words: list[str],
    config: "RunConfig | None",
    *,
    root: str | None,
    missing: "Missing | None",
    folder: Path,
) -> "list[VerificationSet]":
    from sphereface2.data import VERIFICATION_SETS
    from sphereface2.data.set_words import require_lists_for_root, sets_of_choice, sets_of_word

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
