"""Figures of sweeps show the numbers of their results, computed naively here."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from sphereface2.evaluation.experiment_results import (
    SeedRun,
    SweepFigure,
    SweepResult,
    SweepRow,
)
from sphereface2.reporting.figures import sweep as sweep_plots
from sphereface2.reporting.style import METHOD_COLOURS, to_svg

# Made up.
SEEDS = ((60.0, 61.0, 65.0), (70.0, 71.5, 70.5), (69.0, 68.0, 70.0), (80.0, 81.0, 83.0))


def mean(numbers: tuple[float, ...]) -> float:
    return sum(numbers) / len(numbers)


def deviation(numbers: tuple[float, ...]) -> float:
    return math.sqrt(sum((x - mean(numbers)) ** 2 for x in numbers) / (len(numbers) - 1))


def row(label: str, numbers: tuple[float, ...], **fields: object) -> SweepRow:
    runs = tuple(
        SeedRun(seed=seed, folder="", values={"plain": 99.0, "combined": number})
        for seed, number in enumerate(numbers)
    )
    given = {"method": "sphereface2-c", "overrides": (), "command": "", "config": "", **fields}
    return SweepRow(label=label, runs=runs, **given)  # type: ignore[arg-type]  # as given


def sweep(*rows: SweepRow) -> SweepResult:
    return SweepResult(
        name="made-up", title="Made up", recipe="small", columns=("plain", "combined"), rows=rows
    )


LADDER = sweep(
    *(
        row(label, numbers, published={"combined": 74.0 + 5 * place}, drawn_as=f"+ {label}")
        for place, (label, numbers) in enumerate(
            zip(("none", "PN", "PN, EH", "PN, EH, AM"), SEEDS, strict=True)
        )
    )
)


def bars(axes: Axes) -> list[tuple[float, float, float]]:
    """Of every error bar in a plot of rows: its middle, and its two ends."""
    found = []
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            line, _, (spans,) = container.lines
            assert line is not None
            low, high = np.asarray(spans.get_segments())[0, :, 0]
            found.append((float(np.asarray(line.get_xdata())[0]), float(low), float(high)))
    return found


def dots(axes: Axes) -> list[list[float]]:
    """The places of every cloud of single seeds."""
    clouds = [c for c in axes.collections if isinstance(c, PathCollection)]
    return [[float(v) for pair in np.asarray(c.get_offsets()) for v in pair] for c in clouds]


def words(figure: Figure) -> str:
    return " | ".join(text.get_text() for axes in figure.axes for text in axes.texts)


@pytest.mark.parametrize("draw", [sweep_plots.ladder, sweep_plots.method_bars])
def test_rows_stand_at_mean_and_deviation_beside_the_paper(draw: object) -> None:
    assert callable(draw)
    figure = draw(LADDER)
    (axes,) = figure.axes
    assert bars(axes) == [
        pytest.approx((mean(s), mean(s) - deviation(s), mean(s) + deviation(s))) for s in SEEDS
    ]
    assert [cloud[::2] for cloud in dots(axes)] == [list(numbers) for numbers in SEEDS]
    hollow = [line for line in axes.lines if line.get_marker() == "D"]
    assert [float(np.asarray(line.get_xdata())[0]) for line in hollow] == [74, 79, 84, 89]
    for numbers in SEEDS:
        assert f"{mean(numbers):.2f} ± {deviation(numbers):.2f}" in words(figure)
    assert axes.get_xlabel() == "accuracy, combined (%)"


def test_the_ladder_has_a_step_a_principle() -> None:
    (axes,) = sweep_plots.ladder(LADDER).axes
    steps = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]  # type: ignore[attr-defined]  # bars
    assert steps == [pytest.approx((mean(before), mean(here))) for before, here in pairwise(SEEDS)]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["+ none", "+ PN", "+ PN, EH", "+ PN, EH, AM"]
    up, down, _ = (bar.get_facecolor()[:3] for bar in axes.patches)
    assert up != down


def test_a_setting_without_a_run_says_so_and_one_seed_has_no_bar() -> None:
    figure = sweep_plots.method_bars(sweep(row("cosface", (80.0,)), row("failed", ())))
    assert "80.00 |" in words(figure)
    assert "no run" in words(figure)
    with pytest.raises(ValueError, match="'made-up' has no rows"):
        sweep_plots.ladder(sweep())


def test_noise_curves_stand_at_the_share_of_wrong_labels() -> None:
    forty = {"head.margin": 0.35, "label_noise.rate": 0.4}
    result = sweep(
        row("much noise", SEEDS[0], method="cosface", settings=forty),
        row("clean", SEEDS[1], method="cosface", settings={"head.margin": 0.35}),
        row("sphereface2-c, 90 %", SEEDS[2]),
        row("", SEEDS[3], settings={"label_noise.rate": 0.4}),
    )
    (axes,) = sweep_plots.noise_curves(result).axes
    lines = [container.lines[0] for container in axes.containers]  # type: ignore[attr-defined]  # error bars
    assert [list(line.get_xdata()) for line in lines] == [[0, 40], [0, 40]]
    assert [list(line.get_ydata()) for line in lines] == [
        pytest.approx([mean(SEEDS[1]), mean(SEEDS[0])]),
        pytest.approx([mean(SEEDS[2]), mean(SEEDS[3])]),
    ]
    assert [line.get_color() for line in lines] == [
        METHOD_COLOURS["cosface"],
        METHOD_COLOURS["sphereface2-c"],
    ]


def over(result: SweepResult, *names: str, by: str = "") -> Figure:
    return sweep_plots.value_curves(
        replace(result, figure=SweepFigure("values", over=names, by=by))
    )


def test_value_curves_draw_ours_with_a_band_and_the_papers_beside_it() -> None:
    result = sweep(
        *(
            row("t=9", numbers, settings={"head.sharpness": t}, published={"combined": 90 + t})
            for t, numbers in zip((3, 1, 2, 5), SEEDS, strict=True)
        )
    )
    ours, papers = over(result, "head.sharpness").axes
    assert ours.get_xlabel() == "t (sharpness)"
    (line,) = ours.lines
    assert list(np.asarray(line.get_xdata())) == [1, 2, 3, 5]
    in_order = [SEEDS[1], SEEDS[2], SEEDS[0], SEEDS[3]]
    assert list(np.asarray(line.get_ydata())) == pytest.approx([mean(s) for s in in_order])
    (path,) = ours.collections[0].get_paths()
    corners = {(round(x, 6), round(y, 6)) for x, y in np.asarray(path.vertices)}
    for t, numbers in zip((1, 2, 3, 5), in_order, strict=True):
        for sign in (-1, 1):
            assert (t, round(mean(numbers) + sign * deviation(numbers), 6)) in corners
    assert list(np.asarray(papers.lines[0].get_ydata())) == [91, 92, 93, 95]
    with pytest.raises(ValueError, match=r"no row of 'made-up' says what its head\.radius is"):
        over(result, "head.radius")


def test_value_curves_of_several_settings_hold_the_others_at_their_commonest() -> None:
    values = ((20, 0.4), (30, 0.4), (30, 0.2), (30, 0.4))
    result = sweep(
        *(
            row("", numbers, settings={"head.radius": radius, "head.margin": margin})
            for (radius, margin), numbers in zip(values, SEEDS, strict=True)
        )
    )
    radius, margin = over(result, "head.radius", "head.margin").axes
    assert list(np.asarray(radius.lines[0].get_xdata())) == [20, 30]
    # The same setting twice: the first of the two.
    assert list(np.asarray(margin.lines[0].get_ydata())) == pytest.approx(
        [mean(SEEDS[2]), mean(SEEDS[1])]
    )
    (axes,) = over(result, "head.radius", by="head.margin").axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["m = 0.4", "m = 0.2"]


def test_columns_that_name_their_measure_are_not_called_accuracy() -> None:
    (axes,) = sweep_plots.method_bars(replace(LADDER, measure="")).axes
    assert axes.get_xlabel() == "combined (%)"


def test_a_sweep_is_drawn_by_the_figure_that_it_names() -> None:
    settings = [{"head.balance": value} for value in (0.3, 0.5, 0.7, 0.9)]
    rows = [replace(each, settings=s) for each, s in zip(LADDER.rows, settings, strict=True)]
    result = replace(LADDER, rows=tuple(rows), name="losses")
    axes = {}
    for figure in (
        SweepFigure(),
        SweepFigure("ladder"),
        SweepFigure("noise"),
        SweepFigure("values", over=("head.balance",)),
    ):
        (found,) = sweep_plots.sweep_figures(replace(result, figure=figure))
        assert (found.name, found.caption) == ("losses", "Made up, combined")
        axes[figure.kind] = found.figure.axes
    assert not axes["rows"][0].patches
    assert axes["ladder"][0].patches
    assert axes["noise"][0].get_xlabel() == "wrong labels (%)"
    assert [each.get_xlabel() for each in axes["values"]] == ["λ (balance)"] * 2
    failed = row("failed", ())
    assert sweep_plots.sweep_figures(sweep(failed)) == []


def test_earlier_results_load_without_settings_and_new_ones_keep_their_types() -> None:
    typed = replace(LADDER.rows[0], settings={"head.margin": 0.4, "head.bias": None, "n": [1, "a"]})
    whole = replace(LADDER, rows=(typed,), figure=SweepFigure("values", over=("head.margin",)))
    assert SweepResult.from_json(whole.to_json()) == whole
    old = json.loads(LADDER.to_json())
    for name in ("figure", "measure"):
        del old[name]
    for each in old["rows"]:
        del each["settings"], each["drawn_as"]
    loaded = SweepResult.from_json(json.dumps(old))
    assert loaded.figure == SweepFigure()
    assert loaded.measure == "accuracy"
    assert loaded.rows[0].number("head.margin") is None


def test_the_figures_can_stand_in_a_page() -> None:
    for figure in (sweep_plots.ladder(LADDER), sweep_plots.method_bars(LADDER)):
        assert "Made up" in to_svg(figure, name="ladder", description="A ladder")
