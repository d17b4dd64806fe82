"""Whether the training waits for images, and what would help: said once, in a sentence."""

from __future__ import annotations

import math
import os

from sphereface2.training.events import Notice
from sphereface2.workers import usable_cores

WORTH_SAYING = 0.05  # the share of the time from which waiting is more than chance
# A judgement on less would be on chance, and a shorter training needs no advice.
STEPS, SECONDS = 10, 1.0


class WaitingAdvice:
    """Adds up the waiting of a training and says what would shorten it, once.

    While the training waits, the workers that read images are busy. If they leave processors free
    in that time, or wait themselves (for a disk, for a network), more workers help; else only less
    work for each image does. `cores` are the processors that this process may use.

    The first batch of a process is left out: nothing can have been read before it.
    """

    def __init__(self, *, workers: int, cores: float | None = None) -> None:
        self.workers = workers
        self.cores = own_cores() if cores is None else cores
        self._is_first = True
        self._is_said = False
        self._clear()

    def _clear(self) -> None:
        self.steps, self.seconds, self.wait_seconds, self.cpu_seconds = 0, 0.0, 0.0, 0.0

    def add(self, *, seconds: float, wait_seconds: float, wait_cpu_seconds: float) -> None:
        """Count one step in: its time, the waiting in it and the work of processors meanwhile."""
        if self._is_first:
            self._is_first = False
            return
        self.steps += 1
        self.seconds += seconds
        self.wait_seconds += wait_seconds
        self.cpu_seconds += wait_cpu_seconds

    def notice(self, step: int) -> Notice | None:
        """What there is to say after a window of steps, if it is worth saying and new."""
        if self._is_said or self.steps < STEPS or self.seconds < SECONDS:
            return None
        share = self.wait_seconds / self.seconds
        busy = self.cpu_seconds / max(self.wait_seconds, 1e-9)
        self._clear()
        if share <= WORTH_SAYING:
            return None
        self._is_said = True
        values = {"data_wait": share, "workers": float(self.workers)}
        text = f"the training waited {share:.0%} of the time for images; "
        workers = workers_wanted(share, busy=busy, workers=self.workers, cores=self.cores)
        if workers is None:
            text += (
                f"all {self.cores:g} processors are busy with that, so more workers would not "
                "help, but smaller files would: 'sphereface2 convert' writes a .rec, and aligned "
                "crops of the network's input size need no resizing"
            )
        else:
            values["workers_wanted"] = float(workers)
            text += f"training.workers={workers} (now {self.workers}) would help"
        return Notice("data_wait", text, values, step)


def workers_wanted(share: float, *, busy: float, workers: int, cores: float) -> int | None:
    """How many workers would read as fast as the training takes; None if no more of them can.

    `share` of the time the training waits, and `busy` processors work meanwhile.
    """
    each = busy / max(workers, 1)  # what one worker takes of a processor
    free = cores - busy
    if free < 0.5 * max(each, 0.1):
        return None
    # Reading is what takes all the time when somebody waits: `workers` of them together take the
    # time of a step, which is 1 / (1 - share) of what it could be. With none at all, reading
    # alone takes `share`.
    work = workers if workers else share
    needed = math.ceil(round(work / max(1 - share, 0.01), 6))
    possible = workers + math.floor(free / max(each, 0.1))
    return max(workers + 1, min(needed, possible))


def own_cores() -> float:
    """This rank's share of the processors that all ranks on this machine may use."""
    return usable_cores() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
