"""Figures of a protocol's view besides its ROC and scores: rates over ranks, and of groups."""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sphereface2.evaluation.protocols.protocol import Compared, RateCurve
from sphereface2.reporting.figures.verification import mark_rates
from sphereface2.reporting.style import DASHED, GREY, axes_of


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
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    return figure


def compared_figure(compared: Compared, *, colour: str) -> Figure:
    """A rate of each group with its interval; the dashed line is that of all together."""
    figure, axes = axes_of(compared.title, "", "rate (%)")
    rates = [(float(place), rate) for place, (_, rate) in enumerate(compared.rates)]
    if compared.line is not None:
        axes.axhline(100 * compared.line, color=GREY, linewidth=0.9, linestyle=DASHED)
    mark_rates(axes, rates, colour)
    axes.set_xticks(range(len(rates)), [name for name, _ in compared.rates])
    axes.set_xlim(-0.5, len(rates) - 0.5)
    axes.set_ylim(bottom=0)
    if sum(len(name) for name, _ in compared.rates) > 36:
        axes.tick_params(axis="x", rotation=30)
    return figure
