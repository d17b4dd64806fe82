"""Ends of a training before its time: a signal from outside, or a loss that is no number."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class DivergedError(ValueError):
    """The loss or its gradient is no longer a number; the parameters were not touched by it.

    Only class weights that move inside the loss (optimizer.fused_head) have moved by then.
    """

    def __init__(
        self,
        quantity: str,
        *,
        value: float,
        step: int,
        learning_rate: float,
        checkpoint: Path | None,
    ) -> None:
        kept = "there is no checkpoint yet"
        if checkpoint is not None:
            kept = f"the last good checkpoint is {checkpoint}"
        super().__init__(
            f"the {quantity} turned {value} at step {step} with learning rate {learning_rate:.4g}; "
            f"{kept}; lower optimizer.learning_rate, set training.clip_norm or lengthen "
            "schedule.warmup"
        )
        self.step = step
        self.learning_rate = learning_rate
        self.checkpoint = checkpoint


@contextmanager
def stop_signals(stop: Callable[[], None], *, only_first: bool = True) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM inside calls `stop`; a second one acts as it always does.

    Unless `only_first`, all of them call `stop`: torchrun hands a Ctrl-C on to processes that have
    had it from the terminal already, and has its own way to end those that do not obey.

    Only the main thread may handle signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        if only_first:
            restore()
        stop()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
