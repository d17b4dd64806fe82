"""The report: one HTML file that holds everything it shows and loads nothing."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from sphereface2.evaluation.results import (
    COMBINED,
    RAW_PIXELS,
    UNTRAINED,
    EvaluationResult,
    VerificationResult,
)
from sphereface2.files import write_atomically
from sphereface2.reporting.figures import verification as plots
from sphereface2.reporting.history import Curve, training_curves
from sphereface2.reporting.pages.page import render_page
from sphereface2.reporting.pictures import PairPicture, ReportPictures, png_data_uri
from sphereface2.reporting.tables import (
    accuracy_content,
    decimals,
    detail_content,
    interval_text,
    percent,
    published_content,
    slices_content,
)

SECTIONS = (
    ("accuracy", "Accuracy"),
    ("roc", "ROC"),
    ("det", "DET"),
    ("scores", "Scores"),
    ("training", "Training"),
    ("hardest", "Hardest pairs"),
    ("data", "Data"),
    ("definitions", "Definitions"),
    ("configuration", "Configuration"),
)

DEFINITIONS = (
    (
        "Score",
        "The cosine of the two embeddings of a pair. A pair is accepted if its score is at least "
        "the threshold; pairs with equal scores are accepted or rejected together.",
    ),
    (
        "Accuracy",
        "The LFW protocol: for each fold the threshold is chosen on the other folds (nine of ten) "
        "and applied to this one. The number is the mean over the folds, after ± stands the "
        "population standard deviation over the folds. Candidates are the midpoints between "
        "neighbouring scores; of equally good ones the lowest is taken.",
    ),
    (
        "Interval",
        "Where the number would lie for other people of the same kind, with 95 % confidence. "
        "Where the set says who its images show, people are drawn with replacement 1,000 times: a "
        "genuine pair counts as often as its person was drawn, an impostor pair as often as the "
        "product of its two; thresholds for a FAR are chosen anew each time. Pairs that share "
        "people are no independent trials, and an interval that takes them so is too narrow. "
        "Where the people are not known, it is Wilson's interval for the pairs; for TAR at FAR "
        "the uncertainty of the threshold is added to it. An interval over people is never "
        "narrower than that. The deviation over the folds after ± is no interval.",
    ),
    (
        "Best-threshold accuracy",
        "The accuracy of the one threshold that is best for all pairs of the set. It is chosen on "
        "the pairs it is judged by, so it reads higher than the accuracy above; compare it only "
        "with numbers of the same name.",
    ),
    (
        "TAR at FAR",
        "The highest share of genuine pairs accepted (TAR) at any threshold whose share of "
        "accepted impostor pairs (FAR) does not exceed the target. The FAR reached stands with it, "
        "as impostor pairs accepted of all. A target below one impostor pair of the set is not "
        "resolved, and no number is given. With fewer than three accepted, the true threshold may "
        "lie anywhere above all impostor pairs at hand: the interval then starts at 0.",
    ),
    (
        "EER",
        "The error rate where FAR equals the share of genuine pairs rejected, interpolated "
        "linearly between the two neighbouring operating points.",
    ),
    (
        "AUC",
        "The area under the ROC: the chance that a genuine pair scores above an impostor pair, "
        "a tie counting half.",
    ),
    (
        "Combined",
        "The pairs of all sets pooled, with one threshold for all; fold i holds fold i of every "
        "set.",
    ),
    (
        "Raw pixels, untrained network",
        "Two baselines on the same pairs: the pixels as a vector, less their mean; and the same "
        "network before training.",
    ),
)


CHANGED = "changed"
"""The topic of notices that say what a resumed run was changed in."""

BAND_NOTE = " The band is the 95 % interval, from where four impostor pairs stand behind it."


def write_report(
    path: Path,
    *,
    evaluation: EvaluationResult,
    history: Sequence[Mapping[str, Any]],
    config_yaml: str,
    pictures: ReportPictures,
) -> None:
    """Write the report to `path`, all of it or nothing.

    `history` are the parsed lines of metrics.jsonl; whatever is missing from them is left out.
    """
    write_atomically(
        path,
        render_report(
            evaluation=evaluation, history=history, config_yaml=config_yaml, pictures=pictures
        ),
    )


def render_report(
    *,
    evaluation: EvaluationResult,
    history: Sequence[Mapping[str, Any]],
    config_yaml: str,
    pictures: ReportPictures,
) -> str:
    """The report as a string."""
    curves = training_curves(history)
    sheet = pictures.contact_sheet
    noticed = [line["text"] for line in history if line.get("topic") == "data"]
    return render_page(
        "report.html.jinja",
        title=evaluation.title,
        model=evaluation.model,
        accent=plots.method_colour(evaluation.model),
        sections=SECTIONS,
        tiles=_tiles(evaluation),
        notes=list(dict.fromkeys([*noticed, *evaluation.notes])),
        accuracy=accuracy_content(evaluation),
        step=evaluation.step_in_words,
        detail=detail_content(evaluation),
        slices=slices_content(evaluation),
        published=published_content(evaluation),
        roc_legend=[
            legend_entry(m, plots.method_colour(m), "dashed" if m == UNTRAINED else "")
            for m in evaluation.models
        ],
        roc=curve_figures(evaluation, plots.roc_figure, "ROC"),
        det=curve_figures(evaluation, plots.det_figure, "DET"),
        band_note=BAND_NOTE if any(row.roc_band for row in evaluation.rows) else "",
        score_legend=[
            legend_entry("same person", plots.GENUINE_COLOUR, "filled"),
            legend_entry("different people", plots.IMPOSTOR_COLOUR, "filled"),
            legend_entry("threshold", "var(--ink)", "dashed"),
        ],
        histograms=_histograms(evaluation),
        curves=_curve_figures(curves),
        missed=[_card(evaluation, pair) for pair in pictures.hardest if pair.same],
        confused=[_card(evaluation, pair) for pair in pictures.hardest if not pair.same],
        contact_sheet=png_data_uri(sheet, max_size=2200) if sheet is not None else None,
        contact_sheet_caption=pictures.contact_sheet_caption,
        no_contact_sheet=pictures.no_contact_sheet,
        definitions=DEFINITIONS,
        config_yaml=config_yaml,
        changes=list(
            dict.fromkeys(
                f"at step {line.get('step')}, {line.get('text')}"
                for line in history
                if line.get("topic") == CHANGED
            )
        ),
        versions=list(evaluation.versions.items()),
    )


def _subject_results(evaluation: EvaluationResult) -> list[VerificationResult]:
    found = (evaluation.find(evaluation.model, name) for name in evaluation.sets)
    return [result for result in found if result is not None]


def _tiles(evaluation: EvaluationResult) -> list[dict[str, str]]:
    """The model on the first set and on all of them, then the baselines on the first set."""
    results = _subject_results(evaluation)
    first = next((r for r in results if r.set_name == "plain"), results[0])
    shown = [(first, "main")]
    shown += [(r, "") for r in results if r.set_name == COMBINED and r is not first]
    for baseline in (RAW_PIXELS, UNTRAINED):
        result = evaluation.find(baseline, first.set_name)
        if result is not None and baseline != evaluation.model:
            shown.append((result, "base"))
    return [
        {
            "label": result.model,
            "value": percent(result.accuracy, digits=decimals(result.pairs)),
            "deviation": f" ± {percent(result.accuracy_std, digits=decimals(result.pairs))}",
            "interval": interval_text(result.accuracy_interval, digits=decimals(result.pairs)),
            "note": f"{result.set_name} · {result.pairs:,} pairs",
            "style": style,
        }
        for result, style in shown
    ]


def legend_entry(label: str, colour: str, style: str = "") -> dict[str, str]:
    """A line of a legend: its text, its colour, and whether it is dashed or filled."""
    return {"label": label, "colour": colour, "style": style}


def curve_figures(
    evaluation: EvaluationResult, draw: Callable[..., Figure], name: str, **options: Any
) -> list[Markup]:
    """One figure a set, with the curves of all models on it."""
    figures = []
    for number, set_name in enumerate(evaluation.sets):
        rows = [row for row in evaluation.rows if row.set_name == set_name]
        figure = draw(rows, legend=False, **options)
        label = f"{name.lower()}{number}"
        figures.append(_inline(plots.to_svg(figure, name=label, description=f"{name}, {set_name}")))
    return figures


def _histograms(evaluation: EvaluationResult) -> list[Markup]:
    results = _subject_results(evaluation)
    # One scale for all sets, so that a shift between them can be seen.
    limits = (
        min(result.histogram.edges[0] for result in results),
        max(result.histogram.edges[-1] for result in results),
    )
    return [
        _inline(
            plots.to_svg(
                plots.histogram_figure(result, limits=limits, legend=False),
                name=f"scores{number}",
                description=f"Score histogram, {result.set_name}",
            )
        )
        for number, result in enumerate(results)
    ]


def _curve_figures(curves: Sequence[Curve]) -> list[Markup]:
    return [
        _inline(
            plots.to_svg(
                plots.curve_figure(curve),
                name=f"curve{number}",
                description=f"{curve.title} over the steps of training",
            )
        )
        for number, curve in enumerate(curves)
    ]


def _card(evaluation: EvaluationResult, pair: PairPicture) -> dict[str, Any]:
    card: dict[str, Any] = {
        "left": png_data_uri(pair.left, max_size=160),
        "right": png_data_uri(pair.right, max_size=160),
        "score": f"{pair.score:.3f}".replace("-", "−"),
        "set_name": pair.set_name,
        "verdict": "",
        "wrong": False,
    }
    result = evaluation.find(evaluation.model, pair.set_name)
    if result is not None:
        accepted = pair.score >= result.threshold
        card |= {"verdict": "accepted" if accepted else "rejected", "wrong": accepted != pair.same}
    return card


def _inline(svg: str) -> Markup:
    # matplotlib escapes the text inside a figure, `to_svg` its description.
    return Markup(svg)
