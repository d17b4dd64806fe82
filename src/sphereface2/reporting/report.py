"""The report: one HTML file that holds everything it shows and loads nothing."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from sphereface2.evaluation import (
    COMBINED,
    RAW_PIXELS,
    UNTRAINED,
    EvaluationResult,
    VerificationResult,
    write_atomically,
)
from sphereface2.reporting import plots
from sphereface2.reporting.history import Curve, training_curves
from sphereface2.reporting.pictures import PairPicture, ReportPictures, png_data_uri
from sphereface2.reporting.tables import accuracy_content, detail_content, percent

SECTIONS = (
    ("accuracy", "Accuracy"),
    ("roc", "ROC"),
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
        "Best-threshold accuracy",
        "The accuracy of the one threshold that is best for all pairs of the set. It is chosen on "
        "the pairs it is judged by, so it reads higher than the accuracy above; compare it only "
        "with numbers of the same name.",
    ),
    (
        "TAR at FAR",
        "The highest share of genuine pairs accepted (TAR) at any threshold whose share of "
        "accepted impostor pairs (FAR) does not exceed the target. The FAR reached stands with it. "
        "A target below one impostor pair of the set is marked as not resolved.",
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
    source = resources.files("sphereface2.reporting").joinpath("report.html.jinja")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    template = environment.from_string(source.read_text(encoding="utf-8"))
    curves = training_curves(history)
    sheet = pictures.contact_sheet
    return template.render(
        title=evaluation.title,
        model=evaluation.model,
        accent=plots.method_colour(evaluation.model),
        sections=SECTIONS,
        tiles=_tiles(evaluation),
        accuracy=accuracy_content(evaluation),
        detail=detail_content(evaluation),
        roc_legend=[
            _entry(m, plots.method_colour(m), "dashed" if m == UNTRAINED else "")
            for m in evaluation.models
        ],
        roc=_roc_figures(evaluation),
        score_legend=[
            _entry("same person", plots.GENUINE_COLOUR, "filled"),
            _entry("different people", plots.IMPOSTOR_COLOUR, "filled"),
            _entry("threshold", "var(--ink)", "dashed"),
        ],
        histograms=_histograms(evaluation),
        curves=_curve_figures(curves),
        missed=[_card(evaluation, pair) for pair in pictures.hardest if pair.same],
        confused=[_card(evaluation, pair) for pair in pictures.hardest if not pair.same],
        contact_sheet=png_data_uri(sheet, max_size=2200) if sheet is not None else None,
        contact_sheet_caption=pictures.contact_sheet_caption,
        definitions=DEFINITIONS,
        config_yaml=config_yaml,
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
            "value": percent(result.accuracy),
            "deviation": f" ± {percent(result.accuracy_std)}",
            "note": f"{result.set_name} · {result.pairs:,} pairs",
            "style": style,
        }
        for result, style in shown
    ]


def _entry(label: str, colour: str, style: str = "") -> dict[str, str]:
    return {"label": label, "colour": colour, "style": style}


def _roc_figures(evaluation: EvaluationResult) -> list[Markup]:
    figures = []
    for number, name in enumerate(evaluation.sets):
        rows = [row for row in evaluation.rows if row.set_name == name]
        figure = plots.roc_figure(rows, legend=False)
        figures.append(
            _inline(plots.to_svg(figure, name=f"roc{number}", description=f"ROC, {name}"))
        )
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
