"""The command that tests whether runs differ: compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sphereface2.cli.console import Watch, console, say, stdout
from sphereface2.files import require_writable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sphereface2.evaluation.pair_scores import PairScores


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_A RUN_B ...", help="Run folders, evaluated.")
    ],
    output: Annotated[Path, typer.Option(help="Where to write the HTML report.")] = Path(
        "comparison.html"
    ),
) -> None:
    """Is the difference real? Compare runs on the same pairs, each with the first."""
    from sphereface2.evaluation.comparison import compare as compare_models
    from sphereface2.evaluation.pair_scores import SCORES, load_scores
    from sphereface2.reporting.pages.comparison import comparison_page, comparison_tables

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
    page = comparison_page(comparison, title=" · ".join(labels), steps=steps, notes=notes)
    page.write(output)
    out = stdout()
    for content in comparison_tables(comparison):
        out.print(content, "")
    for line in steps:
        say(out, f"checkpoint of {line}", wrap=True)
    for note in notes:
        say(out, note, style="yellow")
    for each in comparison.comparisons:
        say(out, each.sentence, wrap=True)
    say(out, f"report: {output}")


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
    from sphereface2.evaluation.verification import EvaluationResult
    from sphereface2.runs.folder import EVALUATION

    path = run / EVALUATION
    return EvaluationResult.load(path).step_in_words if path.is_file() else ""
