"""The report of a protocol: one HTML page with its numbers, curves and conventions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from sphereface2.evaluation.results import installed_versions
from sphereface2.evaluation.views import Part, ProtocolResult
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
from sphereface2.reporting.protocol_tables import measures_content, table_content
from sphereface2.reporting.tables import TableContent, interval_text, percent

_TILES = 4


@dataclass(frozen=True)
class _Figures:
    """A section of figures: what is said above them, and how a part's are drawn."""

    key: str
    title: str
    note: str
    drawn: Callable[[Part, str], Sequence[tuple[str, Figure]]]
    legend: Sequence[Mapping[str, str]] = ()


def _rocs(part: Part, colour: str) -> list[tuple[str, Figure]]:
    return [
        (f"{name}, {part.title}", figure(part.title, roc, colour=colour))
        for roc in part.rocs
        for name, figure in (("ROC", draw.roc_figure), ("DET", draw.det_figure))
    ]


_BARS = "Dots are the rates of the table, bars their 95 % intervals."
_FIGURES = (
    _Figures(
        "roc",
        "ROC and DET",
        "ROC: how many genuine trials are accepted, over how many impostor trials are accepted "
        "with them; up and to the left is better. DET: the two errors against each other on "
        "logarithmic axes; down and to the left is better. Each axis starts at one trial. Dots are "
        "the rates of the table at their targets, bars their 95 % intervals.",
        _rocs,
    ),
    _Figures(
        "ranks",
        "Ranks",
        "How often the right person is among the first k of the gallery, over k. Someone else with "
        f"the same score stands before the right person. {_BARS}",
        lambda part, colour: [
            ("Rates over ranks", draw.rate_figure(curve, colour=colour)) for curve in part.curves
        ],
    ),
    _Figures(
        "groups",
        "Groups",
        "The rate of each group at the one threshold of all, and that of all as a dashed line. "
        f"{_BARS}",
        lambda part, colour: [
            (each.title, draw.compared_figure(each, colour=colour)) for each in part.compared
        ],
    ),
    _Figures(
        "scores",
        "Scores",
        "The cosines of genuine and of impostor pairs, each as a share of its own kind, however "
        "many there are of the other. The less the two overlap, the better.",
        lambda part, _: [
            (f"Score histogram, {part.title}", draw.scores_figure(part.title, each))
            for each in part.histograms
        ],
        legend=(
            legend_entry("same person", GENUINE_COLOUR, "filled"),
            legend_entry("different people", IMPOSTOR_COLOUR, "filled"),
            legend_entry("thresholds of the table", "#828a96", "dashed"),
        ),
    ),
)


def write_protocol_report(
    path: Path,
    result: ProtocolResult,
    *,
    title: str,
    label: str,
    published: Sequence[TableContent] = (),
) -> None:
    """Write the page to `path`, all of it or nothing; the options are those of the rendering."""
    page = render_protocol_report(result, title=title, label=label, published=published)
    write_atomically(path, page)


def render_protocol_report(
    result: ProtocolResult,
    *,
    title: str,
    label: str,
    published: Sequence[TableContent] = (),
    versions: Mapping[str, str] | None = None,
) -> str:
    """The page as a string.

    label: what was judged, by which its colour is found
    published: numbers of others on the same images, beside ours
    """
    colour = method_colour(label)
    view = result.view()
    figures = [(section, _drawn(section, view.parts, colour)) for section in _FIGURES]
    figures = [(section, drawn) for section, drawn in figures if drawn]
    own = [(part.title, part.conventions) for part in view.parts if part.conventions]
    return render_page(
        "protocol_report.html.jinja",
        title=title,
        label=label,
        protocol=result.protocol,
        accent=colour,
        sections=[
            ("numbers", "Numbers"),
            *((section.key, section.title) for section, _ in figures),
            *([("published", "The paper")] if published else []),
            ("conventions", "Conventions"),
        ],
        summary=view.summary,
        tiles=_tiles(view.parts),
        tables=[
            *(measures_content(part.title, part.measures) for part in view.parts if part.measures),
            *(table_content(table) for part in view.parts for table in part.tables),
        ],
        figures_of=figures,
        published=published,
        conventions=[(result.protocol, result.conventions), *own],
        versions=list((versions or installed_versions()).items()),
    )


def _tiles(parts: Sequence[Part]) -> list[dict[str, str]]:
    """The numbers that are quoted first."""
    chosen = [(part.title, measure) for part in parts for measure in part.headline]
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


def _drawn(section: _Figures, parts: Sequence[Part], colour: str) -> list[Markup]:
    figures = [each for part in parts for each in section.drawn(part, colour)]
    return [
        # matplotlib escapes the text inside a figure, `to_svg` its description.
        Markup(to_svg(figure, name=f"{section.key}{number}", description=description))
        for number, (description, figure) in enumerate(figures)
    ]
