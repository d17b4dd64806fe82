"""What a log file and a narrow terminal show of a run."""

import io

import pytest
from rich.console import Console

from sphereface2.training.events import EvaluationRecord, Notice
from sphereface2.training.progress import ProgressDisplay, _duration


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0:00:00"),
        (59.6, "0:01:00"),
        (3661, "1:01:01"),
        (36000, "10:00:00"),
        (3599, "0:59:59"),
    ],
)
def test_a_duration_is_in_hours_minutes_and_seconds(seconds: float, shown: str) -> None:
    assert _duration(seconds) == shown


class Clock:
    """Time that passes only when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_every_twenty_seconds_and_at_the_last_step() -> None:
    clock, output = Clock(), io.StringIO()
    display = ProgressDisplay(Console(file=output, width=60), clock=clock)
    display.started(step=10, total_steps=20)
    for step in range(11, 21):
        clock.now += 9.0
        display.stepped(step, loss=0.123456, learning_rate=0.012345, rate=99.6)
    display.finished()
    lines = output.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["13/20", "16/20", "19/20", "20/20"]
    assert lines[0] == "step 13/20  loss 0.1235  lr 0.0123  100 images/s  0:01:03 left"
    assert lines[-1].endswith("0:00:00 left")


def test_a_step_that_was_chosen_on_sets_of_its_own_is_shown_by_them() -> None:
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output))
    display.started(step=0, total_steps=7)
    display.evaluated(EvaluationRecord(5, 1.0, {}, {"own": 0.5, "other": 0.75}))
    display.evaluated(EvaluationRecord(6, 1.2, {"plain": 0.25}, {"own": 0.5}))
    display.noticed(Notice("a", "[bold]brackets[/] stay, in a line that is longer than 80 columns, "
                                "which is not broken"))  # fmt: skip
    assert output.getvalue().splitlines() == [
        "step 5/7  accuracy 62.50%",
        "step 6/7  accuracy 25.00%",
        "[bold]brackets[/] stay, in a line that is longer than 80 columns, which is not broken",
    ]
