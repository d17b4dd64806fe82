"""Training curves from the lines of metrics.jsonl."""

import math
from typing import Any

import pytest

from sphereface2.reporting.figures.training import MAX_POINTS, training_curves
from tests.reporting.example import example_history


def test_every_logged_quantity_has_its_curve() -> None:
    curves = {curve.title: curve for curve in training_curves(example_history())}
    assert list(curves) == [
        "Loss",
        "Learning rate",
        "Verification accuracy",
        "Scores of the head",
        "Bias",
        "Active negatives",
    ]
    accuracy = curves["Verification accuracy"]
    assert [series.label for series in accuracy.series] == ["plain", "combined"]
    assert accuracy.series[0].steps == (100, 200)
    assert accuracy.series[0].values == pytest.approx((0.85, 0.9))
    assert accuracy.percent
    assert [series.label for series in curves["Scores of the head"].series] == [
        "same person",
        "other people",
    ]
    assert curves["Bias"].series[0].values[0] == pytest.approx(2.1)


def test_what_a_head_adds_of_its_own_is_shown_too() -> None:
    lines = [{"kind": "train", "step": 1, "loss": 1.0, "head": {"mean_norm": 20.0}}]
    assert [curve.title for curve in training_curves(lines)] == ["Loss", "Mean norm"]


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"kind": "train"},
        {"kind": "train", "step": 1},
        {"kind": "train", "step": None, "loss": 1.0},
        {"kind": "train", "step": 1, "loss": None, "head": None},
        {"kind": "train", "step": 1, "loss": math.nan, "head": {"bias": "none"}},
        {"kind": "evaluation", "step": 1, "metrics": None},
        {"kind": "evaluation", "step": 1, "metrics": {"plain": None}},
        {"kind": "something new", "step": 1, "loss": 1.0},
    ],
)
def test_gaps_in_the_log_are_left_out(line: dict[str, Any]) -> None:
    assert training_curves([line]) == ()
    assert training_curves([line, *example_history()]) == training_curves(example_history())


def test_a_step_that_was_logged_twice_counts_once() -> None:
    lines = [
        {"kind": "train", "step": step, "loss": loss} for step, loss in [(1, 9), (2, 8), (1, 5)]
    ]
    (loss,) = training_curves(lines)
    assert loss.series[0].steps == (1, 2)
    assert loss.series[0].values == (5, 8)


def test_a_long_log_is_shortened_to_means() -> None:
    lines = [{"kind": "train", "step": step, "loss": float(step)} for step in range(1, 1001)]
    (loss,) = training_curves(lines)
    assert len(loss.series[0].steps) == 250 <= MAX_POINTS
    assert loss.series[0].values[0] == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert loss.series[0].steps == loss.series[0].values
