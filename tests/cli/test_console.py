"""What a log file and a narrow terminal show of a command's work and of a run."""

import io
import re

import pytest
from rich.console import Console

from sphereface2.cli.console import ProgressDisplay, Watch, _duration
from sphereface2.training.events import EvaluationRecord, Notice


class Clock:
    """Time that passes only when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_a_line_comes_now_and_then() -> None:
    clock, output = Clock(), io.StringIO()
    with Watch(Console(file=output, width=40), clock=clock)("aligning photos") as progress:
        progress(100, 2_000)  # done before
        for done in range(105, 2_001, 5):
            clock.now += 1.0
            progress(done, 2_000)
    title, *lines = output.getvalue().splitlines()
    assert title == "aligning photos"
    assert len(lines) == 18  # every twenty seconds of 380, without the last, which is the end
    assert lines[0] == "aligning photos: 200 of 2,000, 5.0/s, 6 min left"
    assert lines[-1] == "aligning photos: 1,900 of 2,000, 5.0/s, 20 s left"


def test_a_slow_first_report_has_no_pace_yet() -> None:
    clock, output = Clock(), io.StringIO()
    with Watch(Console(file=output), clock=clock)("checking [3]") as progress:
        clock.now = 50
        progress(256, 10_000)
        clock.now = 75
        progress(5_256, 10_000)
    assert output.getvalue().splitlines() == [
        "checking [3]",
        "checking [3]: 256 of 10,000",
        "checking [3]: 5,256 of 10,000, 200/s, 24 s left",
    ]


def test_short_work_is_one_line() -> None:
    output = io.StringIO()
    with Watch(Console(file=output))("measuring") as progress:
        for done in range(100):
            progress(done, 100)
    assert output.getvalue() == "measuring\n"


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


def test_a_log_file_gets_a_plain_line_now_and_then() -> None:
    clock, output = Clock(), io.StringIO()
    display = ProgressDisplay(Console(file=output), seconds_between_lines=10, clock=clock)
    display.started(step=0, total_steps=100)
    for step in range(1, 41):
        clock.now += 1.0
        display.stepped(step, loss=2.0, learning_rate=0.1, rate=128.0)
    display.evaluated(EvaluationRecord(40, 4.0, {"plain": 0.9, "combined": 0.8765}))
    display.noticed(Notice("data_wait", "training.workers=3 (now 2) would help"))
    display.finished()
    lines = output.getvalue().splitlines()
    assert lines == [
        "step 10/100  loss 2  lr 0.1  128 images/s  0:01:30 left",
        "step 20/100  loss 2  lr 0.1  128 images/s  0:01:20 left",
        "step 30/100  loss 2  lr 0.1  128 images/s  0:01:10 left",
        "step 40/100  loss 2  lr 0.1  128 images/s  0:01:00 left",
        "step 40/100  accuracy 87.65%",
        "training.workers=3 (now 2) would help",
    ]


def test_lines_above_the_bar_are_plain_text() -> None:
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, force_terminal=True, color_system="standard"))
    display.noticed(
        Notice("data_wait", "training.workers=3 [now 2] reads 'faces' 1.5 times faster")
    )
    assert output.getvalue() == "training.workers=3 [now 2] reads 'faces' 1.5 times faster\n"


def test_a_terminal_gets_a_live_bar() -> None:
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, force_terminal=True, width=140))
    display.started(step=20, total_steps=100)
    display.evaluated(EvaluationRecord(20, 2.0, {"combined": 0.75}))
    display.stepped(21, loss=2.25, learning_rate=0.1, rate=128.0)
    display.noticed(Notice("data_wait", "what would help"))
    display.finished()
    display.finished()
    shown = output.getvalue()
    for part in (
        "21/100",
        "loss 2.25",
        "lr 0.1",
        "128 images/s",
        "accuracy 75.00%",
        "what would help",
    ):
        assert part in shown


@pytest.mark.parametrize("width", [60, 79, 80, 99, 100, 120])
def test_a_terminal_shows_the_whole_line_at_its_width(width: int) -> None:
    output = io.StringIO()
    display = ProgressDisplay(Console(file=output, force_terminal=True, width=width))
    display.started(step=0, total_steps=80_000)
    display.evaluated(EvaluationRecord(1, 0.1, {"plain": 0.98765}))
    display.stepped(7_000, loss=12.3456, learning_rate=0.0123, rate=1234.0)
    display.finished()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue())
    line = plain.replace("\r", "\n").strip().splitlines()[-1]
    assert len(line) <= width
    assert " 7000/80000 " in line
    assert "loss 12.35 " in line
    assert (" 1234 images/s " if width >= 80 else " 1234 img/s ") in line
    assert ("accuracy 98" if width >= 80 else "acc 98") in line
    assert ("lr 0.0123" in line) is (width >= 100)
    assert re.search(r"[-\d]+:[-\d]{2}:[-\d]{2}", line)
    assert line.rstrip().endswith("98.77%")
    assert "━" in line
