"""The progress of long work, how it is reported and its pace; durations, counts, lists in words."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is in all."""

Watch = Callable[[str], AbstractContextManager[Progress]]
"""Shows the progress of a named piece of work: `with watch("checking") as progress: ...`."""


def unseen(done: int, total: int) -> None:
    """Progress that nobody looks at."""


def unwatched(title: str) -> AbstractContextManager[Progress]:
    """Work that nobody watches."""
    return nullcontext(unseen)


# A unit, its seconds, the seconds from which the next one is used, and the unit below it.
_UNITS = (
    ("min", 60, 3600, "s", 1),
    ("h", 3600, 86400, "min", 60),
    ("day", 86400, math.inf, "h", 3600),
)


def in_words(seconds: float) -> str:
    """About two figures in the units that suit: "84 ms", "4.2 s", "48 s", "3 min 5 s", "12 h"."""
    if seconds < 1e-6:
        return "0 s"
    if seconds < 0.099:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    for unit, size, limit, lesser, lesser_size in _UNITS:
        # From ten of a unit on, the one below it adds nothing.
        step = lesser_size if seconds < 10 * size else size
        rounded = step * round(seconds / step)
        if rounded < limit:
            count, rest = divmod(rounded, size)
            more = f" {rest // lesser_size} {lesser}" if rest else ""
            return f"{count:,} {unit}{'s' * (unit == 'day' and count > 1)}{more}"
    raise AssertionError("days have no limit")


def counted(count: int, one: str, more: str | None = None) -> str:
    """A count with its noun: "1 crop", "2,000 crops", "3 people" where `more` is given."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def first_of(things: Sequence[object], *, shown: int = 5) -> str:
    """The first few of many, for messages."""
    listing = ", ".join(str(thing) for thing in things[:shown])
    return listing + (", ..." if len(things) > shown else "")


class Pace:
    """The pace of a long piece of work, for whatever prints a line about it now and then."""

    def __init__(
        self, *, seconds_between_lines: float = 20.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._clock = seconds_between_lines, clock
        self._last_line = clock()
        self._first: tuple[float, int] | None = None

    def line_is_due(self, done: int) -> bool:
        """Whether it is time for a line; the first call says how much was done before."""
        now = self._clock()
        if self._first is None:
            self._first = now, done
        if now - self._last_line < self._every:
            return False
        self._last_line = now
        return True

    def rate(self, done: int) -> float:
        """How much was done per second since the first call; 0 where that is not known yet."""
        if self._first is None:
            return 0.0
        began, first = self._first
        seconds = self._clock() - began
        return (done - first) / seconds if seconds > 0 else 0.0
