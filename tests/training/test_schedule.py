"""The learning rate as a function of the step."""

import math
from typing import Any

import pytest

from sphereface2.config.schema import ScheduleConfig
from sphereface2.training.optimizer import Schedule


def rates(total: int = 40, *, peak: float = 0.5, **options: Any) -> list[float]:
    config = ScheduleConfig(**options)
    schedule = Schedule(config, peak=peak, total_steps=total, steps_per_epoch=10)
    return [schedule.learning_rate(step) for step in range(total)]


def test_warm_up_rises_in_a_line_to_the_peak() -> None:
    found = rates(name="constant", warmup=0.5)
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found[5:] == [0.5] * 35


def test_step_drops_at_its_milestones() -> None:
    found = rates(name="step", milestones=(1, 2.5), decay=0.1)
    assert found[:10] == [0.5] * 10
    assert found[10:25] == pytest.approx([0.05] * 15)
    assert found[25:] == pytest.approx([0.005] * 15)


def test_units_may_be_steps() -> None:
    assert rates(name="step", unit="steps", milestones=(10, 25), warmup=5) == rates(
        name="step", milestones=(1, 2.5), warmup=0.5
    )


def test_cosine_goes_from_the_peak_towards_the_final_share() -> None:
    found = rates(name="cosine", warmup=1, final=0.2)
    expected = [0.5 * (0.2 + 0.8 * (1 + math.cos(math.pi * step / 30)) / 2) for step in range(30)]
    assert found[10:] == pytest.approx(expected)
    assert found[10] == 0.5
    assert found[25] == pytest.approx(0.5 * 0.6)


def test_polynomial_goes_to_zero_by_its_power() -> None:
    found = rates(name="polynomial", power=2)
    assert found == pytest.approx([0.5 * (1 - step / 40) ** 2 for step in range(40)])
    assert rates(name="polynomial", power=1, final=0.5)[20] == pytest.approx(0.5 * 0.75)


def test_a_warm_up_as_long_as_the_training_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be shorter .*; schedule.warmup=0 leaves it out"):
        rates(name="cosine", warmup=4)
