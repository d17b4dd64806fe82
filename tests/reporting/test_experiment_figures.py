"""Every experiment's figures from made-up results: what they are called, show and are kept as."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sphereface2.evaluation.experiment_results import (
    LearnedFeatures,
    MethodRoc,
    ParallelResult,
    ParallelRun,
    plain_rows,
)
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.reporting.figures.experiments import (
    figures_of_features,
    figures_of_formulas,
    figures_of_parallel,
    figures_of_roc,
    figures_of_scores,
    figures_of_sweep,
    save_figure,
)
from tests.reporting.example import example_evaluation
from tests.reporting.sweep_example import example_sweep, made_row, made_sweep

PARALLEL = ParallelResult(
    identities=10, dim=2, batch=4, device="cpu", threads=1,
    runs=(ParallelRun("cosface", 1, (1.0,)), ParallelRun("cosface", 2, (0.5,))),
)  # fmt: skip


def roc(*tars: float) -> RocPoints:
    fars = tuple(np.geomspace(0.001, 1, len(tars)).tolist())
    return RocPoints(far=fars, tar=tars, threshold=tuple(-far for far in fars))


def features(dim: int, margin: float) -> LearnedFeatures:
    axes = np.eye(3)[:, :dim] if dim == 3 else np.array([[1.0, 0], [-1, 1], [-1, -1]])
    return LearnedFeatures(
        features=plain_rows(np.concatenate([axes + 0.1, axes])),
        labels=(0, 1, 2) * 2,
        classifiers=plain_rows(axes),
        bias=-12.0,
        radius=30.0,
        margin=margin,
    )


def test_a_roc_has_a_figure_a_protocol_from_one_impostor_on() -> None:
    methods = [
        MethodRoc("cosface", (roc(0.5, 0.7, 1.0), roc(0.4, 0.8, 1.0)), 4_000),
        MethodRoc("arcface", (roc(0.6, 0.9, 1.0),), 4_000),
    ]
    separable = RocPoints(far=(0.0,), tar=(1.0,), threshold=(0.9,))
    found = figures_of_roc(
        {"ijb-b": methods, "ijb-c": [MethodRoc("own", (separable,), 70)], "megaface": []}
    )
    assert [(each.name, each.caption) for each in found] == [
        ("roc-ijb-b", "ROC on ijb-b"),
        ("roc-ijb-c", "ROC on ijb-c"),
    ]
    first, second = (each.figure.axes[0] for each in found)
    # By the pairs that there were, not by the lowest point of a curve.
    assert first.get_xlim() == pytest.approx((1 / 4_000, 1))
    assert second.get_xlim() == pytest.approx((1 / 70, 1))
    assert [line.get_label() for line in first.lines] == ["cosface", "arcface"]
    assert set(np.asarray(second.lines[0].get_ydata())) == {100}
    assert found[0].figure.get_suptitle() == "IJB-B"


def test_scores_have_a_panel_an_evaluation() -> None:
    evaluations = [example_evaluation(title=f"t = {t}") for t in (1, 3)]
    (found,) = figures_of_scores(evaluations)
    assert (found.name, found.caption) == ("scores", "Scores of all pairs")
    assert [axes.get_title(loc="left") for axes in found.figure.axes] == ["t = 1", "t = 3"]
    plain = [row for row in evaluations[0].rows if row.set_name == "plain"]
    assert figures_of_scores([replace(evaluations[0], rows=tuple(plain))]) == []  # none combined
    assert figures_of_scores([]) == []


def test_features_lie_side_by_side_in_the_plane_or_alone_in_space() -> None:
    (plane,) = figures_of_features([features(2, 0.0), features(2, 0.2)])
    assert plane.name == "features-2d"
    assert len(plane.figure.axes) == 2
    (space,) = figures_of_features([features(3, 0.2)])
    assert space.name == "features-3d"


def test_speed_is_one_figure() -> None:
    (found,) = figures_of_parallel(PARALLEL)
    assert found.name == "parallel"
    (axes,) = found.figure.axes
    assert [int(tick) for tick in axes.get_xticks()] == [1, 2]


@pytest.mark.parametrize("name", ["fig-loss", "fig-margin", "fig-adjustment"])
def test_formulas_need_no_result(name: str) -> None:
    (found,) = figures_of_formulas(name)
    assert found.name == name.removeprefix("fig-")
    assert found.figure.axes


def test_a_formula_of_another_name_is_told() -> None:
    with pytest.raises(ValueError, match="unknown figure 'fig-los'; did you mean 'fig-loss'"):
        figures_of_formulas("fig-los")


def test_a_sweep_is_drawn_by_its_rows_unless_it_has_no_number() -> None:
    (found,) = figures_of_sweep(example_sweep())
    assert (found.name, found.caption) == ("losses", "The losses compared, combined")
    labels = [label.get_text() for label in found.figure.axes[0].get_yticklabels()]
    assert labels == ["Softmax", "ArcFace", "SphereFace2-C", "Circle | <b>"]
    failed = made_row("ArcFace", {"plain": (None,), "combined": (None,)}, error="it diverged")
    assert figures_of_sweep(made_sweep(failed)) == []


def test_the_same_figure_is_the_same_files(tmp_path: Path) -> None:
    paths = [save_figure(tmp_path / part, figures_of_parallel(PARALLEL)[0]) for part in "ab"]
    assert [path.name for path in paths[0]] == ["parallel.png", "parallel.svg"]
    for first, second in zip(*paths, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert paths[0][0].read_bytes().startswith(b"\x89PNG")
