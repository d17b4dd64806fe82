"""The report of a protocol: one HTML page with its numbers, curves and conventions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.figure import Figure

from sphereface2.evaluation.protocols.protocol import Part, ProtocolResult
from sphereface2.evaluation.results import installed_versions
from sphereface2.reporting.figures.protocols import compared_figure, rate_figure
from sphereface2.reporting.figures.verification import (
    AcceptCurve,
    det_figure,
    histogram_figure,
    roc_figure,
)
from sphereface2.reporting.pages.page import LegendEntry, Page, Section, Tile, blocks
from sphereface2.reporting.pages.verification import SCORE_LEGEND
from sphereface2.reporting.protocol_tables import measures_content, table_content
from sphereface2.reporting.style import GREY, method_colour, to_svg
from sphereface2.reporting.tables import TableContent, interval_text, percent

_TILES = 4


@dataclass(frozen=True)
class _Figures:
    """A section of figures: what is said above them, and how a part's are drawn."""

    key: str
    title: str
    note: str
    drawn: Callable[[Part, str], Sequence[tuple[str, Figure]]]
    legend: Sequence[LegendEntry] = ()


def roc_figures(part: Part, colour: str) -> list[tuple[str, Figure]]:
    found = []
    for roc in part.rocs:
        at = [(each.at.target, each.rate) for each in roc.measures if each.at and each.resolved]
        curve = AcceptCurve(part.title, roc.points, roc.impostors, roc.genuine, marks=at)
        for name, draw in (("ROC", roc_figure), ("DET", det_figure)):
            title = f"{name}, {part.title}"
            figure = draw(title, [curve], legend=False, colours={part.title: colour})
            found.append((title, figure))
    return found


def _histograms(part: Part, colour: str) -> list[tuple[str, Figure]]:
    found = []
    for each in part.histograms:
        marks = [m.at.threshold for m in each.measures if m.at is not None and m.at.resolved]
        figure = histogram_figure(
            part.title, each.counts, per="share", thresholds=marks, legend=False
        )
        found.append((f"Score histogram, {part.title}", figure))
    return found


_BARS = "Dots are the rates of the table, bars their 95 % intervals."
_FIGURES = (
    _Figures(
        "roc",
        "ROC and DET",
        "ROC: how many genuine trials are accepted, over how many impostor trials are accepted "
        "with them; up and to the left is better. DET: the two errors against each other on "
        "logarithmic axes; down and to the left is better. Each axis starts at one trial. Dots are "
        "the rates of the table at their targets, bars their 95 % intervals.",
        roc_figures,
    ),
    _Figures(
        "ranks",
        "Ranks",
        "How often the right person is among the first k of the gallery, over k. Someone else with "
        f"the same score stands before the right person. {_BARS}",
        lambda part, colour: [
            ("Rates over ranks", rate_figure(curve, colour=colour)) for curve in part.curves
        ],
    ),
    _Figures(
        "groups",
        "Groups",
        "The rate of each group at the one threshold of all, and that of all as a dashed line. "
        f"{_BARS}",
        lambda part, colour: [
            (each.title, compared_figure(each, colour=colour)) for each in part.compared
        ],
    ),
    _Figures(
        "scores",
        "Scores",
        "The cosines of genuine and of impostor pairs, each as a share of its own kind, however "
        "many there are of the other. The less the two overlap, the better.",
        _histograms,
        legend=(*SCORE_LEGEND, LegendEntry("thresholds of the table", GREY, "dashed")),
    ),
)


def protocol_page(
    result: ProtocolResult,
    *,
    title: str,
    label: str,
    published: Sequence[TableContent] = (),
) -> Page:
    """The report of a protocol's result.

    label: what was judged, by which its colour is found
    published: numbers of others on the same images, beside ours
    """
    block, colour, view = blocks(), method_colour(label), result.view()
    tables = [
        *(measures_content(part.title, part.measures) for part in view.parts if part.measures),
        *(table_content(table) for part in view.parts for table in part.tables),
    ]
    sections = [Section("numbers", "Numbers", [block.table(each, heading=True) for each in tables])]
    for each in _FIGURES:
        drawn = _drawn(each, view.parts, colour)
        if drawn:
            content = [block.figures(drawn, each.note, each.legend)]
            sections.append(Section(each.key, each.title, content))
    if published:
        beside = [block.table(each, heading=True) for each in published]
        sections.append(Section("published", "The paper", beside))
    own = [(part.title, part.conventions) for part in view.parts if part.conventions]
    conventions = [(result.protocol, result.conventions), *own]
    counted = block.note("What was counted how; numbers of other conventions are other numbers.")
    said = [(name, Markup("<br>").join(lines)) for name, lines in conventions]
    sections.append(Section("conventions", "Conventions", [counted, block.definitions(said)]))
    return Page(
        kind="protocol",
        kicker=f"Protocol report · {result.protocol} · {label}",
        title=title,
        accent=colour,
        head=[block.note(view.summary), block.tiles(_tiles(view.parts))],
        sections=sections,
        versions=installed_versions(),
    )


def _tiles(parts: Sequence[Part]) -> list[Tile]:
    """The numbers that are quoted first."""
    chosen = [(part.title, measure) for part in parts for measure in part.headline]
    return [
        Tile(
            measure.name,
            percent(measure.rate.value),
            f"{interval_text(measure.rate.interval)}\N{THIN SPACE}% · {name} · "
            f"{measure.rate.trials:,} trials",
            "" if number else "main",
            small="\N{THIN SPACE}%",
        )
        for number, (name, measure) in enumerate(chosen[:_TILES])
    ]


def _drawn(section: _Figures, parts: Sequence[Part], colour: str) -> list[Markup]:
    figures = [each for part in parts for each in section.drawn(part, colour)]
    return [
        to_svg(figure, name=f"{section.key}{number}", description=description)
        for number, (description, figure) in enumerate(figures)
    ]
