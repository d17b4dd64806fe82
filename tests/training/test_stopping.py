"""How a training is stopped, and how that is seen from outside."""

import os
import signal
from pathlib import Path

from sphereface2.training.stopping import StoppedError, exit_code, stop_signals


def test_a_shell_sees_which_signal_ended_the_work() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, None)
    assert [exit_code(number) for number in numbers] == [130, 143, 129, 130]
    assert StoppedError("stopped", number=signal.SIGTERM).exit_code == 143


def test_nothing_is_written_to_a_terminal_that_is_gone(tmp_path: Path) -> None:
    """A file that the output goes to is still written."""
    ours, its = os.openpty()
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    before = signal.signal(signal.SIGHUP, signal.default_int_handler)
    stopped: list[bool] = []
    are_terminals = []
    try:
        for first, second in ((its, log), (log, its)):
            os.dup2(first, 1)
            os.dup2(second, 2)
            with stop_signals(lambda: stopped.append(True)) as caught:
                os.kill(os.getpid(), signal.SIGHUP)
            are_terminals += [os.isatty(1), os.isatty(2)]
            os.write(1, b"out")
            os.write(2, b"err")
    finally:
        signal.signal(signal.SIGHUP, before)
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(log)
    assert (stopped, caught.number) == ([True, True], signal.SIGHUP)
    assert are_terminals == [False] * 4
    assert (tmp_path / "log").read_text() == "errout"
    os.close(its)
    os.set_blocking(ours, False)
    try:
        shown = os.read(ours, 100)
    except OSError:  # the other end is closed
        shown = b""
    os.close(ours)
    assert shown == b""


def test_a_second_signal_ends_at_once_or_asks_again() -> None:
    """Alone the handlers from before are back; among ranks torchrun hands signals on twice."""
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append("from before"))
    try:
        for only_first in (True, False):
            with stop_signals(lambda: heard.append("stop"), only_first=only_first):
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["stop", "from before", "from before", "stop", "stop", "from before"]


def test_unless_told_otherwise_only_the_first_signal_is_taken() -> None:
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append("from before"))
    try:
        with stop_signals(lambda: heard.append("stop")):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["stop", "from before"]
