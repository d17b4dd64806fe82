"""Which figures go with which table or figure of the paper, and how they are kept."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from sphereface2.evaluation.experiment_results import (
    LearnedFeatures,
    MethodRoc,
    ParallelResult,
    SweepResult,
)
from sphereface2.evaluation.results import COMBINED, EvaluationResult
from sphereface2.files import write_atomically
from sphereface2.registry import look_up
from sphereface2.reporting.figures.features import feature_plane, feature_sphere
from sphereface2.reporting.figures.margin import margin_picture
from sphereface2.reporting.figures.measured import (
    images_per_second,
    roc_curves,
    score_distributions,
)
from sphereface2.reporting.figures.paper import loss_against_cosine, similarity_adjustment
from sphereface2.reporting.figures.sweep import ladder, method_bars, noise_curves
from sphereface2.reporting.figures.values import value_curve

_DPI = 200


@dataclass(frozen=True)
class NamedFigure:
    """A figure, what its file is called and what stands below it."""

    name: str
    caption: str
    figure: Figure


def figures_of_formulas(name: str) -> list[NamedFigure]:
    """The figures that need no training."""
    drawings: dict[str, tuple[str, Callable[[], Figure]]] = {
        "fig-loss": ("Loss over the cosine with the own class", loss_against_cosine),
        "fig-margin": ("Angular margins", margin_picture),
        "fig-adjustment": ("The similarity adjustment g", similarity_adjustment),
    }
    caption, draw = look_up("figure", drawings, name)
    return [NamedFigure(name.removeprefix("fig-"), caption, draw())]


def figures_of_sweep(result: SweepResult) -> list[NamedFigure]:
    """The picture of a table: by what it varies, or else one row a setting."""
    if not any(row.numbers(result.judged_by) for row in result.rows):
        return []
    drawings: dict[str, Callable[[], Figure]] = {
        "principles": lambda: ladder(result),
        "balance": lambda: value_curve(result, "balance"),
        "sharpness": lambda: value_curve(result, "sharpness", by="balance"),
        "hyperparameters": lambda: value_curve(result, ["radius", "margin", "sharpness"]),
        "label-noise": lambda: noise_curves(result),
    }
    draw = drawings.get(result.name, lambda: method_bars(result))
    return [NamedFigure(result.name, f"{result.title}, {result.judged_by}", draw())]


def figures_of_scores(evaluations: Sequence[EvaluationResult]) -> list[NamedFigure]:
    """The scores of all pairs, a panel an evaluation, titled by it."""
    panels = []
    for evaluation in evaluations:
        found = evaluation.find(evaluation.model, COMBINED)
        if found is not None:
            panels.append((evaluation.title, found.histogram))
    if not panels:
        return []
    return [NamedFigure("scores", "Scores of all pairs", score_distributions(panels))]


def figures_of_roc(curves: Mapping[str, Sequence[MethodRoc]]) -> list[NamedFigure]:
    """One figure a protocol, one curve a method, over its seeds."""
    return [
        NamedFigure(
            f"roc-{protocol}", f"ROC on {protocol}", roc_curves(found, title=protocol.upper())
        )
        for protocol, found in curves.items()
        if found
    ]


def figures_of_features(features: Sequence[LearnedFeatures]) -> list[NamedFigure]:
    """Features in the plane, side by side, or in space."""
    if features[0].dim == 2:
        caption = "Features in the plane and the decision boundaries"
        return [NamedFigure("features-2d", caption, feature_plane(features))]
    caption = "Features in space and the decision planes"
    return [NamedFigure("features-3d", caption, feature_sphere(features[0]))]


def figures_of_parallel(result: ParallelResult) -> list[NamedFigure]:
    """Images a second over ranks."""
    return [NamedFigure("parallel", "Images a second over ranks", images_per_second(result))]


def save_figure(folder: Path, named: NamedFigure) -> list[Path]:
    """Write a figure as PNG and SVG, each whole or not at all; the paths."""
    paths = []
    # Without a date, and with fixed names inside the SVG: the same result is the same file.
    with mpl.rc_context({"svg.hashsalt": named.name}):
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            metadata = {"Date": None} if kind == "svg" else {}
            named.figure.savefig(buffer, format=kind, dpi=_DPI, metadata=metadata)
            path = folder / f"{named.name}.{kind}"
            write_atomically(path, buffer.getvalue())
            paths.append(path)
    return paths
