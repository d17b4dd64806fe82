"""Several runs compared: tables for the terminal, and one HTML page."""

from collections.abc import Sequence
from pathlib import Path

from sphereface2.evaluation.comparison import Comparison, Difference, SetComparison
from sphereface2.evaluation.results import EvaluationResult, installed_versions
from sphereface2.files import write_atomically
from sphereface2.reporting.figures import verification as plots
from sphereface2.reporting.pages.page import render_page
from sphereface2.reporting.pages.verification import (
    BAND_NOTE,
    DEFINITIONS,
    curve_figures,
    legend_entry,
)
from sphereface2.reporting.tables import Cell, TableContent, accuracy_content, percent

SECTIONS = (
    ("accuracy", "Accuracy"),
    ("differences", "Differences"),
    ("roc", "ROC"),
    ("det", "DET"),
    ("definitions", "Definitions"),
)
_OWN_DEFINITIONS = (
    (
        "Difference",
        "A run's number less the baseline's, in points of a percent. Its interval and p value come "
        "from drawing people (pairs, where the people are not known) with replacement, the same "
        "for both runs. Resolved means p below 0.05 after the correction.",
    ),
    (
        "McNemar",
        "The exact test on the pairs that only one of two runs decides right, each at its own "
        "fold thresholds: would a fair coin part them this unevenly? It takes pairs as "
        "independent. The p value of the accuracy is the larger of the two tests.",
    ),
    (
        "Holm",
        "Several runs against one baseline give several chances of a false alarm; the p values of "
        "each measure on each set are corrected for the number of runs.",
    ),
)


def differences_content(comparisons: Sequence[SetComparison]) -> TableContent:
    """All runs less the baseline on one set: every measure with interval and p value."""
    first = comparisons[0]
    rows = [
        (
            Cell(each.model),
            *(_difference_cell(difference) for difference in each.differences),
            Cell(
                _p_text(each.mcnemar),
                f"{each.only_model:,} : {each.only_baseline:,}",
            ),
        )
        for each in comparisons
    ]
    several = len(comparisons) > 1
    people = "" if first.people is None else f" of {first.people:,} people"
    return TableContent(
        title=f"{first.set_name}: difference to {first.baseline} (points)",
        columns=("run", *(d.measure for d in first.differences), "McNemar"),
        rows=tuple(rows),
        note=f"{first.pairs:,} pairs{people}; under each difference its 95% interval and p value"
        + (" (Holm)" if several else "")
        + "; of the EER, lower is better; faint: not resolved; under McNemar: pairs that only the "
        f"run : only {first.baseline} decides right",
    )


def comparison_tables(comparison: Comparison) -> list[TableContent]:
    """The accuracies of all runs, then the differences set by set."""
    return [
        accuracy_content(_as_evaluation(comparison)),
        *(differences_content(_on_set(comparison, name)) for name in comparison.sets),
    ]


def write_comparison(
    path: Path,
    comparison: Comparison,
    *,
    title: str,
    steps: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write the page to `path`, all of it or nothing."""
    page = render_comparison(comparison, title=title, steps=steps, notes=notes)
    write_atomically(path, page)


def render_comparison(
    comparison: Comparison, *, title: str, steps: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """The page as a string.

    steps: of each run, which step of its training was judged
    notes: what is odd about the comparison
    """
    evaluation = _as_evaluation(comparison)
    colours = plots.distinct_colours(comparison.models)
    accuracy, *differences = comparison_tables(comparison)
    return render_page(
        "comparison.html.jinja",
        title=title,
        baseline=comparison.models[0],
        accent=plots.METHOD_COLOURS["sphereface2"],
        sections=SECTIONS,
        verdicts=[
            {"text": each.sentence, "resolved": each.accuracy.is_resolved}
            for each in comparison.comparisons
        ],
        accuracy=accuracy,
        steps=steps,
        notes=notes,
        differences=differences,
        roc_legend=[legend_entry(model, colour) for model, colour in colours.items()],
        roc=curve_figures(evaluation, plots.roc_figure, "ROC", colours=colours),
        det=curve_figures(evaluation, plots.det_figure, "DET", colours=colours),
        band_note=BAND_NOTE if any(row.roc_band for row in comparison.results) else "",
        definitions=(*DEFINITIONS[:-1], *_OWN_DEFINITIONS),
        versions=list(installed_versions().items()),
    )


def _as_evaluation(comparison: Comparison) -> EvaluationResult:
    return EvaluationResult(title="", rows=comparison.results)


def _on_set(comparison: Comparison, name: str) -> list[SetComparison]:
    return [each for each in comparison.comparisons if each.set_name == name]


def _difference_cell(difference: Difference) -> Cell:
    ends = difference.interval
    detail = f"{_signed(ends.low)} to {_signed(ends.high)}\np {_p_text(difference.p_adjusted)}"
    return Cell(
        _signed(difference.difference),
        detail,
        strong=difference.is_resolved,
        faint=not difference.is_resolved,
    )


def _signed(share: float) -> str:
    text = percent(abs(share), digits=2)
    sign = "" if float(text) == 0 else "+" if share > 0 else "−"
    return sign + text


def _p_text(p_value: float) -> str:
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"
