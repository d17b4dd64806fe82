"""A protocol's result to look at: its tables, its figures and its page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from sphereface2.evaluation.protocols.protocol import (
    Compared,
    MeanOverFolds,
    Part,
    ProtocolResult,
    RateCurve,
    Table,
    Value,
)
from sphereface2.evaluation.thresholds import Measure
from sphereface2.evaluation.uncertainty import Rate
from sphereface2.evaluation.verification import installed_versions
from sphereface2.reporting.figures.verification import (
    AcceptCurve,
    det_figure,
    histogram_figure,
    mark_rates,
    roc_figure,
)
from sphereface2.reporting.pages import LegendEntry, Page, Section, Tile, blocks
from sphereface2.reporting.pages.verification import SCORE_LEGEND
from sphereface2.reporting.style import DASHED, GREY, axes_of, method_colour, to_svgs
from sphereface2.reporting.tables import (
    ABSENT,
    UNRESOLVED,
    Cell,
    TableContent,
    interval_text,
    percent,
    share_cell,
)


def measures_content(title: str, measures: Sequence[Measure]) -> TableContent:
    """Every number with its interval, its trials and where it was read."""
    note = f"under each rate its {100 * measures[0].rate.interval.confidence:g}% interval"
    if any(not measure.resolved for measure in measures):
        note += f"; {UNRESOLVED}: the target is below one of so many impostor trials"
    columns = ("measure", "rate (%)", "trials", "false rate reached", "threshold")
    content = TableContent(title, columns, tuple(map(_row, measures)), note)
    at_threshold = any(measure.at is not None for measure in measures)
    return content if at_threshold else content.part([1, 2], title=title, note=note)


def table_content(table: Table) -> TableContent:
    """Any table of a view."""
    rows = tuple(tuple(value_cell(value) for value in row) for row in table.rows)
    return TableContent(table.title, table.columns, rows, table.note)


def value_cell(value: Value) -> Cell:
    """A value as it is printed: rates in percent over their interval."""
    match value:
        case None:
            return ABSENT
        case Measure(resolved=False):
            return Cell(UNRESOLVED, faint=True)
        case Measure(rate=rate) | (Rate() as rate):
            return share_cell(rate.value, rate.interval, digits=2, strong=True)
        case MeanOverFolds(mean=mean, deviation=deviation):
            return Cell(percent(mean, digits=2), deviation=percent(deviation, digits=2))
        case int():
            return Cell(f"{value:,}")
        case float():
            return Cell(f"{value:.3g}".replace("-", "−"))
        case _:
            return Cell(value)


def _row(measure: Measure) -> tuple[Cell, ...]:
    cells = (Cell(measure.name), value_cell(measure), Cell(f"{measure.rate.trials:,}"))
    at = measure.at
    if at is None:
        return (*cells, Cell(""), Cell(""))
    of = f"of {at.impostors:,}"
    if not at.resolved:
        return (*cells, Cell("", of), Cell(""))
    threshold = f"{at.threshold:.4f}".replace("-", "−")
    return (*cells, Cell(f"{at.reached:.3g}", of), Cell(threshold))


def rate_figure(curve: RateCurve, *, colour: str) -> Figure:
    """A rate over a count, such as that of the probes found among the first k, with intervals."""
    figure, axes = axes_of(curve.title, curve.x_label, curve.y_label)
    axes.plot(curve.x, [100 * rate for rate in curve.y], color=colour, linewidth=2.0)
    marks = [(float(count), measure.rate) for count, measure in curve.marks]
    mark_rates(axes, marks, colour)
    lowest = min([*curve.y, *(rate.interval.low for _, rate in marks)])
    axes.set_ylim(max(0.0, 100 * lowest - 8), 101.5)
    axes.set_xscale("log")
    axes.set_xlim(0.9 * curve.x[0], max(2 * curve.x[0], 1.1 * curve.x[-1]))
    if curve.x[-1] < 100 * curve.x[0] + 1:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    return figure


def compared_figure(compared: Compared, *, colour: str) -> Figure:
    """A rate of each group with its interval; the dashed line is that of all together."""
    figure, axes = axes_of(compared.title, "", "rate (%)")
    rates = [(float(place), rate) for place, (_, rate) in enumerate(compared.rates)]
    if compared.line is not None:
        axes.axhline(100 * compared.line, color=GREY, linewidth=0.9, linestyle=DASHED)
    mark_rates(axes, rates, colour)
    axes.set_xticks(range(len(rates)), [name for name, _ in compared.rates], parse_math=False)
    axes.set_xlim(-0.5, len(rates) - 0.5)
    axes.set_ylim(bottom=0)
    if sum(len(name) for name, _ in compared.rates) > 36:
        axes.tick_params(axis="x", rotation=30)
    return figure


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
        counts = roc.impostors, roc.genuine
        curve = AcceptCurve(part.title, roc.points, *counts, marks=at, colour=colour)
        for name, draw in (("ROC", roc_figure), ("DET", det_figure)):
            title = f"{name}, {part.title}"
            found.append((title, draw(title, [curve])))
    return found


def _histograms(part: Part, colour: str) -> list[tuple[str, Figure]]:
    found = []
    for each in part.histograms:
        marks = [m.at.threshold for m in each.measures if m.at is not None and m.at.resolved]
        figure = histogram_figure(part.title, each.counts, per="share", thresholds=marks)
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
        drawn = [figure for part in view.parts for figure in each.drawn(part, colour)]
        if drawn:
            content = [block.figures(to_svgs(each.key, drawn), each.note, each.legend)]
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
