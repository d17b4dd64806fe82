"""What every kind of experiment leaves: figures by name, caption and content, without training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sphereface2.evaluation.experiment_results import (
    LearnedFeatures,
    MethodRoc,
    ParallelResult,
    ParallelRun,
    SweepResult,
    plain_rows,
)
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.experiments.paper import reproduce
from sphereface2.experiments.paper.reproduce import Reproduced, Reproduction
from sphereface2.experiments.paper.settings import SMALL
from sphereface2.reporting.figures.sweep import images_per_second, roc_over_seeds
from sphereface2.reporting.style import NamedFigure, save_figure
from tests.experiments.sweep.tiny import pretend_done, write_recipe

pytestmark = pytest.mark.usefixtures("drawn_figures")

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


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    ground = replace(SMALL, recipe=str(write_recipe(tmp_path)))
    monkeypatch.setattr(reproduce, "SMALL", ground)
    return Reproduction(tmp_path / "reproduced", seeds=(0, 1))


def made(work: Reproduction, name: str) -> Reproduced:
    """An experiment whose runs are all there, with made-up numbers."""
    sweep = work.plan(name)
    if sweep is not None:
        pretend_done(sweep, work.runs)
    return work.reproduce(name)


def names(files: Reproduced) -> list[str]:
    return [path.name for path in files.files]


TABLE = ["index.html", "result.json", "table.md", "table.csv"]


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("losses", "rows", {"head.name": "softmax"}),
        ("balance", "values", {"head.balance": 0.3}),
        ("sharpness", "values", {"head.balance": 0.6, "head.sharpness": 2.0}),
    ],
)
def test_a_table_carries_its_settings_as_values_and_names_its_figure(
    work: Reproduction, name: str, kind: str, settings: dict[str, object]
) -> None:
    found = made(work, name)
    assert names(found) == [*TABLE, f"{name}.png", f"{name}.svg"]
    result = SweepResult.load(found.files[1])
    assert result.figure.kind == kind
    assert settings.items() <= result.rows[0].settings.items()
    assert f"{result.title}, combined" in found.files[0].read_text()  # the caption


def test_the_ladder_calls_its_rows_by_what_they_add(work: Reproduction) -> None:
    found = made(work, "principles")
    assert found.table is not None
    assert found.table.figure.kind == "ladder"
    drawn = [row.drawn_as for row in found.table.rows]
    assert drawn[:3] == ["", "none, λ = (K-1)/K", "+ PN: positives against negatives"]
    assert "+ SA: similarity adjustment" in found.files[0].read_text()


def test_wrong_labels_are_values_of_their_rows(work: Reproduction) -> None:
    table = made(work, "label-noise").table
    assert table is not None
    assert table.figure.kind == "noise"
    rates = [row.number("label_noise.rate") for row in table.rows]
    assert rates == [None, 0.2, 0.4, 0.6, 0.8] * 3


def test_scores_have_one_panel_per_setting(work: Reproduction) -> None:
    found = made(work, "fig-scores")
    assert names(found) == [*TABLE, "scores.png", "scores.svg"]
    page = found.files[0].read_text()
    assert "Scores of all pairs" in page
    assert all(f">t={t}</text>" in page for t in (1, 2, 3, 4))


def test_a_roc_has_one_figure_per_protocol_from_one_impostor_on(
    work: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = [
        MethodRoc("cosface", (roc(0.5, 0.7, 1.0), roc(0.4, 0.8, 1.0)), 4_000),
        MethodRoc("arcface", (roc(0.6, 0.9, 1.0),), 4_000),
    ]
    curves = {"ijb-b": methods, "ijb-c": []}
    monkeypatch.setattr(reproduce, "small_root", lambda *_, **__: Path())
    monkeypatch.setattr(reproduce, "protocol_roc", lambda _, protocol, **__: curves[protocol])
    found = made(work, "fig-roc")
    assert names(found) == [*TABLE, "roc-ijb-b.png", "roc-ijb-b.svg"]
    page = found.files[0].read_text()
    assert "ROC on ijb-b" in page
    assert ">IJB-B</text>" in page
    separable = RocPoints(far=(0.0,), tar=(1.0,), threshold=(0.9,))
    for drawn, impostors, labels in (
        (methods, 4_000, ["cosface", "arcface"]),
        ([MethodRoc("own", (separable,), 70)], 70, ["own"]),
    ):
        (axes,) = roc_over_seeds(drawn, title="x").axes
        # By the pairs that there were, not by the lowest point of a curve.
        assert axes.get_xlim() == pytest.approx((1 / impostors, 1))
        assert [line.get_label() for line in axes.lines] == labels
    assert set(np.asarray(axes.lines[0].get_ydata())) == {100}


@pytest.mark.parametrize(("dim", "margins"), [(2, [0.0, 0.2]), (3, [0.2])])
def test_features_are_drawn_and_kept(
    work: Reproduction, monkeypatch: pytest.MonkeyPatch, dim: int, margins: list[float]
) -> None:
    learned = lambda *, dim, margin, **_: features(dim, margin)  # noqa: E731
    monkeypatch.setattr(reproduce, "learn_features", learned)
    found = made(work, f"fig-features-{dim}d")
    kept = [f"features-{margin:g}.json" for margin in margins]
    assert names(found) == [f"features-{dim}d.png", f"features-{dim}d.svg", *kept]
    assert LearnedFeatures.load(found.files[-1]) == features(dim, margins[-1])


def test_speed_is_one_figure_and_its_result(
    work: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "measure_parallel", lambda **_: PARALLEL)
    found = made(work, "parallel")
    assert names(found) == ["parallel.png", "parallel.svg", "result.json"]
    assert ParallelResult.load(found.files[-1]) == PARALLEL
    (axes,) = images_per_second(PARALLEL).axes
    assert [int(tick) for tick in axes.get_xticks()] == [1, 2]


def test_the_same_figure_is_the_same_files(tmp_path: Path) -> None:
    paths = [
        save_figure(tmp_path / part, NamedFigure("speed", "", images_per_second(PARALLEL)))
        for part in "ab"
    ]
    assert [path.name for path in paths[0]] == ["speed.png", "speed.svg"]
    for first, second in zip(*paths, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert paths[0][0].read_bytes().startswith(b"\x89PNG")
