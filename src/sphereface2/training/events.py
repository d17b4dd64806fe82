"""What happens in a training run, and where it is written: JSON lines and TensorBoard.

Among it whether the training waits for images, and what would help: said once, in a sentence.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphereface2.files import JsonLines, naming, write_atomically
from sphereface2.workers import install_command, usable_cores

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


@dataclass(frozen=True)
class TrainingRecord:
    """The training since the record before."""

    step: int
    """Updates done so far."""
    epoch: float
    loss: float
    """Mean over the steps since the record before."""
    learning_rate: float
    images_per_second: float
    data_wait: float
    """Share of the time that was spent waiting for images."""
    gradient_norm: float
    """Of the last step, before clipping."""
    head: Mapping[str, float] = field(default_factory=dict)
    """What the head says of the last step."""
    bad_images: int = 0
    """Images that could not be read and were passed over, so far."""


@dataclass(frozen=True)
class EvaluationRecord:
    """An evaluation during the training."""

    step: int
    epoch: float
    metrics: Mapping[str, float]
    """On the sets that are reported."""
    choice: Mapping[str, float] = field(default_factory=dict)
    """On the sets that serve only to choose a step; they may have the same names."""


def headline(metrics: Mapping[str, float]) -> float:
    """The one number a run is judged by: `combined` if it is there, else the mean."""
    if "combined" in metrics:
        return metrics["combined"]
    return sum(metrics.values()) / len(metrics) if metrics else math.nan


@dataclass(frozen=True)
class Notice:
    """Something that the user should know of, in a sentence and in numbers."""

    topic: str
    """A word by which to find it: bad_images, label_noise, data_wait."""
    text: str
    values: Mapping[str, float] = field(default_factory=dict)
    step: int = 0


class Events:
    """A listener to a run; this one does nothing with what it hears."""

    def started(self, *, step: int, total_steps: int) -> None:
        """The run starts, or continues, after `step` updates."""

    def stepped(self, step: int, *, loss: float, learning_rate: float, rate: float) -> None:
        """An update is done; `rate` is in images per second."""

    def trained(self, record: TrainingRecord) -> None:
        """Some steps are done."""

    def evaluated(self, record: EvaluationRecord) -> None:
        """The network was evaluated."""

    def noticed(self, notice: Notice) -> None:
        """There is something that the user should know of."""

    def finished(self) -> None:
        """The run is over, by success, by a stop or by an error."""


class EventGroup(Events):
    """Passes every event on to each of its members."""

    def __init__(self, members: Sequence[Events]) -> None:
        self.members = list(members)
        for name in vars(Events):
            if not name.startswith("_"):
                setattr(self, name, partial(self._pass_on, name))

    def _pass_on(self, name: str, *arguments: Any, **options: Any) -> None:
        for member in self.members:
            getattr(member, name)(*arguments, **options)


class MetricsFile(Events):
    """Writes every record as a line of JSON, each step once, also over interruptions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: JsonLines | None = None

    def started(self, *, step: int, total_steps: int) -> None:
        with naming(self.path):
            text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        # What an interrupted run wrote after its last checkpoint will be done and written again.
        kept = [line for line in text.splitlines() if _step_of(line) <= step]
        write_atomically(self.path, "".join(f"{line}\n" for line in kept))
        self._file = JsonLines(self.path, remedy="remove it")

    def trained(self, record: TrainingRecord) -> None:
        self._write("train", record)

    def evaluated(self, record: EvaluationRecord) -> None:
        self._write("evaluation", record)

    def noticed(self, notice: Notice) -> None:
        self._write("notice", notice)

    def finished(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, kind: str, record: TrainingRecord | EvaluationRecord | Notice) -> None:
        assert self._file is not None
        self._file.add(_plain({"kind": kind, **asdict(record)}))


class TensorBoard(Events):
    """Writes every record for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise ValueError(
                "training.tensorboard needs a package that is not installed: "
                f"{install_command('tensorboard')}"
            ) from None
        self.folder = folder
        self._open = SummaryWriter
        self._writer: SummaryWriter | None = None

    def started(self, *, step: int, total_steps: int) -> None:
        self._writer = self._open(str(self.folder), purge_step=step + 1)

    def trained(self, record: TrainingRecord) -> None:
        names = ("loss", "learning_rate", "images_per_second", "data_wait", "gradient_norm")
        self._add("train", {name: getattr(record, name) for name in names}, record.step)
        self._add("head", record.head, record.step)

    def evaluated(self, record: EvaluationRecord) -> None:
        self._add("evaluation", record.metrics, record.step)
        self._add("choice", record.choice, record.step)

    def noticed(self, notice: Notice) -> None:
        assert self._writer is not None
        self._writer.add_text(f"notice/{notice.topic}", notice.text, notice.step)

    def finished(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, group: str, values: Mapping[str, float], step: int) -> None:
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)


def _plain(value: Any) -> Any:
    """The value with null for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _step_of(line: str) -> float:
    """The step of a line; infinite for a line that was cut short as the process was killed."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf
    return step if isinstance(step, int) else math.inf


# The steps between two records of a training, summed up.


@dataclass
class Window:
    """Sums over the steps since the last record.

    After a resume `loss` and `steps` continue as they were, since they belong to the run; time and
    images start again, since they belong to the process.
    """

    loss: float = 0.0
    steps: int = 0
    images: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0

    def add(self, loss: float, *, images: int, seconds: float, wait_seconds: float) -> None:
        """Count one step in."""
        self.loss += loss
        self.steps += 1
        self.images += images
        self.seconds += seconds
        self.wait_seconds += wait_seconds

    @property
    def mean_loss(self) -> float:
        return self.loss / self.steps

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds

    @property
    def data_wait(self) -> float:
        return self.wait_seconds / self.seconds


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
