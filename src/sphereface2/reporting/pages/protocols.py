"""The report of a protocol: one HTML page with its numbers, curves and conventions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from sphereface2.evaluation.identification import IdentificationResult
from sphereface2.evaluation.ijb import IjbResult
from sphereface2.evaluation.ijb_identification import IjbIdentification
from sphereface2.evaluation.ijb_verification import IjbVerification
from sphereface2.evaluation.megaface import MegaFaceResult
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.results import ProtocolResult, installed_versions
from sphereface2.evaluation.thresholds import Measure
from sphereface2.files import write_atomically
from sphereface2.reporting.figures import protocols as draw
from sphereface2.reporting.figures.verification import (
    GENUINE_COLOUR,
    IMPOSTOR_COLOUR,
    method_colour,
    to_svg,
)
from sphereface2.reporting.pages.page import render_page
from sphereface2.reporting.pages.verification import legend_entry
from sphereface2.reporting.protocol_tables import (
    galleries_content,
    measures_content,
    parts_of,
    published_contents,
)
from sphereface2.reporting.tables import interval_text, percent

_NAMES = {
    "numbers": "Numbers",
    "roc": "ROC and DET",
    "ranks": "Ranks",
    "scores": "Scores",
    "published": "The paper",
    "conventions": "Conventions",
}
# The strictest targets that papers quote first.
_FAR, _FPIR, _FPR = 1e-4, 1e-2, 1e-6
_TILES = 4


@dataclass(frozen=True)
class _Curve:
    """An accept curve with what its axes need."""

    title: str
    roc: RocPoints
    measures: Sequence[Measure]
    genuine: int
    impostors: int


def write_protocol_report(
    path: Path, result: ProtocolResult, *, title: str, label: str, comparable: bool = True
) -> None:
    """Write the page to `path`, all of it or nothing; the options are those of the rendering."""
    page = render_protocol_report(result, title=title, label=label, comparable=comparable)
    write_atomically(path, page)


def render_protocol_report(
    result: ProtocolResult,
    *,
    title: str,
    label: str,
    comparable: bool = True,
    versions: Mapping[str, str] | None = None,
) -> str:
    """The page as a string.

    label: what was judged, by which its colour is found
    comparable: whether the paper's numbers are of the same images, and so stand beside ours
    """
    colour = method_colour(label)
    parts = parts_of(result)
    searches = [part for part in parts if isinstance(part, IjbIdentification)]
    published = published_contents(result) if comparable else []
    roc, ranks, scores = _curves(parts, colour), _ranks(parts, colour), _scores(parts)
    filled = {"roc": roc, "ranks": ranks, "scores": scores, "published": published}
    return render_page(
        "protocol_report.html.jinja",
        title=title,
        label=label,
        protocol=result.protocol,
        accent=colour,
        sections=[(key, name) for key, name in _NAMES.items() if filled.get(key, True)],
        summary=summary(result),
        tiles=_tiles(parts),
        tables=[measures_content(part) for part in parts],
        galleries=[galleries_content(part) for part in searches if len(part.galleries) > 1],
        roc=roc,
        ranks=ranks,
        scores=scores,
        score_legend=[
            legend_entry("same person", GENUINE_COLOUR, "filled"),
            legend_entry("different people", IMPOSTOR_COLOUR, "filled"),
            legend_entry("thresholds of the table", "#828a96", "dashed"),
        ],
        published=published,
        conventions=_conventions(result, parts),
        versions=list((versions or installed_versions()).items()),
    )


def _conventions(
    result: ProtocolResult, parts: Sequence[ProtocolResult]
) -> list[tuple[str, tuple[str, ...]]]:
    own = [(part.protocol, part.conventions) for part in parts if part is not result]
    return [(result.protocol, result.conventions), *own]


def _tiles(parts: Sequence[ProtocolResult]) -> list[dict[str, str]]:
    """The numbers that are quoted first."""
    chosen: list[tuple[str, Measure]] = []
    for part in parts:
        if isinstance(part, IjbVerification):
            chosen += [(part.protocol, m) for m in _headline(part.tar_at_far, _FAR)]
        elif isinstance(part, MegaFaceResult):
            chosen += [(part.protocol, part.rank_1[-1])]
            chosen += [(part.protocol, m) for m in _headline(part.tpr, _FPR)]
        elif isinstance(part, IjbIdentification | IdentificationResult):
            chosen += [(part.protocol, part.ranks[0])]
            chosen += [(part.protocol, m) for m in _headline(part.tpir, _FPIR)]
    return [
        {
            "label": measure.name,
            "value": percent(measure.rate.value),
            "interval": interval_text(measure.rate.interval),
            "note": f"{name} · {measure.rate.trials:,} trials",
            "style": "" if number else "main",
        }
        for number, (name, measure) in enumerate(chosen[:_TILES])
    ]


def _headline(measures: Sequence[Measure], strictest: float) -> list[Measure]:
    """The one at the strictest target that is resolved, but none stricter than `strictest`."""
    found = [
        (measure.at.target, measure)
        for measure in measures
        if measure.at is not None and measure.at.resolved and measure.at.target >= strictest
    ]
    return [min(found, key=lambda each: each[0])[1]] if found else []


def _curves(parts: Sequence[ProtocolResult], colour: str) -> list[Markup]:
    figures = []
    for number, curve in enumerate(_accept_curves(parts)):
        roc = draw.roc_figure(
            curve.title, curve.roc, curve.measures, impostors=curve.impostors, colour=colour
        )
        det = draw.det_figure(
            curve.title,
            curve.roc,
            curve.measures,
            impostors=curve.impostors,
            genuine=curve.genuine,
            colour=colour,
        )
        figures.append(_inline(roc, f"roc{number}", f"ROC, {curve.title}"))
        figures.append(_inline(det, f"det{number}", f"DET, {curve.title}"))
    return figures


def _accept_curves(parts: Sequence[ProtocolResult]) -> list[_Curve]:
    found = []
    for part in parts:
        if isinstance(part, IjbVerification):
            found.append(
                _Curve(part.protocol, part.roc, part.tar_at_far, part.genuine, part.impostors)
            )
        elif isinstance(part, MegaFaceResult) and part.tpr:
            at = part.tpr[0].at
            assert at is not None
            found.append(
                _Curve(part.protocol, part.roc, part.tpr, part.tpr[0].rate.trials, at.impostors)
            )
    return found


def _ranks(parts: Sequence[ProtocolResult], colour: str) -> list[Markup]:
    figures = []
    for number, part in enumerate(parts):
        if isinstance(part, MegaFaceResult):
            cmc = draw.cmc_figure(part.protocol, part.cmc, (), colour=colour)
            figures.append((cmc, f"cmc{number}"))
            if len(part.sizes) > 1:
                growth = draw.distractors_figure(
                    part.protocol, part.sizes, part.rank_1, colour=colour
                )
                figures.append((growth, f"sizes{number}"))
        elif isinstance(part, IjbIdentification | IdentificationResult):
            cmc = draw.cmc_figure(part.protocol, part.cmc, part.ranks, colour=colour)
            figures.append((cmc, f"cmc{number}"))
    return [_inline(figure, name, "Rates over ranks") for figure, name in figures]


def _scores(parts: Sequence[ProtocolResult]) -> list[Markup]:
    return [
        _inline(
            draw.scores_figure(part.protocol, part.histogram, part.tar_at_far),
            f"scores{number}",
            f"Score histogram, {part.protocol}",
        )
        for number, part in enumerate(parts)
        if isinstance(part, IjbVerification)
    ]


def _inline(figure: Figure, name: str, description: str) -> Markup:
    # matplotlib escapes the text inside a figure, `to_svg` its description.
    return Markup(to_svg(figure, name=name, description=description))


def summary(result: ProtocolResult) -> str:
    """What was judged, in one line."""
    if isinstance(result, IjbResult):
        return f"{result.images:,} images"
    if isinstance(result, MegaFaceResult):
        return (
            f"{result.probes:,} probes of {result.people:,} people, {result.distractors:,} "
            "distractors"
        )
    if isinstance(result, IdentificationResult):
        return (
            f"{result.gallery_people:,} people in the gallery, {result.mated:,} mated and "
            f"{result.non_mated:,} non-mated probes"
        )
    return ""
