"""A training that ends before its time: by a signal from outside, or a loss that is not finite."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class DivergedError(ValueError):
    """The loss or its gradient is no longer a number; the parameters were not touched by it.

    Only class weights that move inside the loss (optimizer.fused_head) have moved by then.
    """


class StoppedError(KeyboardInterrupt):
    """A signal has ended the work, and what was done is kept."""

    def __init__(self, message: str, *, number: int | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code(number)


def exit_code(number: int | None) -> int:
    """How a shell sees a process that a signal has ended; Ctrl-C if the signal is not known."""
    return 128 + (number or signal.SIGINT)


@dataclass
class Caught:
    """The signal that came, once one has."""

    number: int | None = None


@contextmanager
def stop_signals(stop: Callable[[], None], *, only_first: bool = True) -> Iterator[Caught]:
    """The first Ctrl-C, SIGTERM or SIGHUP inside calls `stop`; a second one acts as it always does.

    A SIGHUP says that the terminal is gone; under nohup, which ignores it, it stays ignored.

    Unless `only_first`, all of them call `stop`: torchrun hands a Ctrl-C on to processes that have
    had it from the terminal already, and has its own way to end those that do not obey.

    Only the main thread may handle signals; elsewhere this does nothing.
    """
    caught = Caught()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]  # one that is gone says no

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        if only_first:
            restore()
        caught.number = number
        if number == signal.SIGHUP:
            _silence(terminals)
        stop()

    for number in before:
        signal.signal(number, handle)
    try:
        yield caught
    finally:
        restore()


def _silence(streams: Iterable[int]) -> None:
    """Lead nowhere what is written to a terminal that is gone, which would be an error."""
    for stream in streams:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream)
        os.close(nowhere)
