"""Several runs compared: tables for the terminal, and one HTML page."""

from collections.abc import Sequence

from sphereface2.evaluation.comparison import Comparison, Difference, SetComparison
from sphereface2.evaluation.verification import EvaluationResult, installed_versions
from sphereface2.reporting.figures.verification import det_figure, roc_figure
from sphereface2.reporting.pages import LegendEntry, Page, Section, blocks, definitions
from sphereface2.reporting.pages.verification import DEFINITIONS, ROC_NOTE, curve_section
from sphereface2.reporting.style import BLUE, distinct_colours
from sphereface2.reporting.tables import Cell, TableContent, accuracy_content, signed

_DET_NOTE = (
    "The two errors against each other, both on logarithmic axes. Down and to the left is better. "
    "Bands of single runs may overlap though the difference of the runs is resolved: they stumble "
    "over the same pairs."
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
        "fold thresholds: would a fair coin split them this unevenly? It takes pairs as "
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
            Cell(_p_text(each.mcnemar), f"{each.only_model:,} : {each.only_baseline:,}"),
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
        *(
            differences_content([each for each in comparison.comparisons if each.set_name == name])
            for name in comparison.sets
        ),
    ]


def comparison_page(
    comparison: Comparison, *, title: str, steps: Sequence[str] = (), notes: Sequence[str] = ()
) -> Page:
    """The comparison as a page.

    steps: of each run, which step of its training was judged
    notes: what is odd about the comparison
    """
    block, evaluation = blocks(), _as_evaluation(comparison)
    colours = distinct_colours(comparison.models)
    legend = [LegendEntry(model, colour) for model, colour in colours.items()]
    accuracy, *differences = comparison_tables(comparison)
    between = (
        f"Each run less {comparison.models[0]}, on the same pairs. Not resolved means: these pairs "
        "cannot tell the difference from chance; it does not mean that there is none."
    )
    return Page(
        kind="comparison",
        kicker="Comparison of runs on the same pairs",
        title=title,
        accent=BLUE,
        head=[block.verdicts(comparison.comparisons)],
        sections=[
            Section(
                "accuracy",
                "Accuracy",
                [
                    block.table(accuracy),
                    *(block.note(f"{note}.", "Note:") for note in notes),
                    *(block.note(f"Checkpoint of {step}.") for step in steps),
                ],
            ),
            Section(
                "differences",
                "Differences",
                [block.note(between), *(block.table(each, heading=True) for each in differences)],
            ),
            curve_section("ROC", roc_figure, evaluation, ROC_NOTE, legend),
            curve_section("DET", det_figure, evaluation, _DET_NOTE, legend),
            definitions((*DEFINITIONS[:-1], *_OWN_DEFINITIONS)),
        ],
        versions=installed_versions(),
    )


def _as_evaluation(comparison: Comparison) -> EvaluationResult:
    return EvaluationResult(title="", rows=comparison.results)


def _difference_cell(difference: Difference) -> Cell:
    ends = difference.interval
    detail = (
        f"{signed(100 * ends.low)} to {signed(100 * ends.high)}\np {_p_text(difference.p_adjusted)}"
    )
    return Cell(
        signed(100 * difference.difference),
        detail,
        strong=difference.is_resolved,
        faint=not difference.is_resolved,
    )


def _p_text(p_value: float) -> str:
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"
