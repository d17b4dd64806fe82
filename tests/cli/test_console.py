"""What a command shows of its progress where there is no terminal: a log file, say."""

import io

from rich.console import Console

from sphereface2.cli.console import Watch


class Clock:
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
