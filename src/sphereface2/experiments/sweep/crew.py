"""The processes of a sweep: one for each run, each with its share of the cores or with a GPU."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sphereface2.data.sources.synthetic import FOLDER_VARIABLE
from sphereface2.experiments.sweep.board import RunState
from sphereface2.experiments.sweep.store import LOG
from sphereface2.experiments.sweep.worker import STOPPED
from sphereface2.training.devices import choose_device
from sphereface2.workers import usable_cores


@dataclass
class Child:
    """A worker at its run; `log_start` is where its own part of the log begins."""

    state: RunState
    process: subprocess.Popen[bytes]
    slot: int
    log_start: int

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


class Crew:
    """Starts, stops and collects the workers; at most `jobs` at once.

    The cores are shared out among `jobs`, also when fewer runs are left: sums round differently
    with another number of threads, and a run is to come out the same whenever it is run.
    """

    def __init__(self, *, jobs: int, gpus: list[str], runs: Path) -> None:
        self.jobs = jobs
        self.gpus = gpus
        self.runs = runs
        self.children: list[Child] = []

    @property
    def has_room(self) -> bool:
        return len(self.children) < self.jobs

    def start(self, state: RunState) -> None:
        slot = min(set(range(self.jobs)) - {child.slot for child in self.children})
        with (state.folder / LOG).open("ab") as log:
            begin = log.tell()
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "sphereface2.experiments.sweep.worker",
                    str(state.folder),
                    "--tied",
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment(slot)},
                # A group of its own: a Ctrl-C in the terminal comes from us, and only once.
                start_new_session=True,
            )
        self.children.append(Child(state, process, slot, begin))

    def environment(self, slot: int) -> Mapping[str, str]:
        """What the worker in a slot gets besides the environment of this process."""
        threads = str(max(1, usable_cores() // self.jobs))
        words = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            # Runs over the same people render them once.
            FOLDER_VARIABLE: str((self.runs / "rendered").resolve()),
        }
        if self.gpus:
            words["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        return words

    def ended(self) -> list[Child]:
        """The workers that have come to their end, each once."""
        over = [child for child in self.children if child.process.poll() is not None]
        for child in over:
            self.children.remove(child)
            child.close_input()
        return over

    def interrupt(self) -> None:
        """Ask all workers to stop, with a checkpoint where they are in a training."""
        # Not by a signal from here: it could come before a new worker can handle it. A worker
        # whose input closes sends itself a SIGINT as soon as that is of use.
        for child in self.children:
            child.close_input()

    def kill(self) -> None:
        """End what is still there; such a run resumes from its last checkpoint."""
        for child in self.children:
            if child.process.poll() is None:
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
            child.close_input()
        self.children = []


def was_stopped(code: int) -> bool:
    """Whether a worker ended because it was asked to."""
    return code in (STOPPED, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)


def last_words(child: Child) -> str:
    """The last line of what a failed worker wrote, or what is known of its end."""
    with (child.state.folder / LOG).open("rb") as log:
        log.seek(child.log_start)
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
    said = [line for line in lines if line]
    code = child.process.returncode
    if code == -signal.SIGKILL:
        return "the process was killed (out of memory?)"
    if code < 0:
        return f"the process ended by signal {-code} ({signal.Signals(-code).name})"
    return said[-1] if said else f"the process ended with exit code {code} and without a word"


def gpus_for(devices: set[str]) -> list[str]:
    """The GPUs to hand out, as CUDA_VISIBLE_DEVICES names them; none if not all runs want one."""
    if not devices <= {"auto", "cuda"} or not torch.cuda.is_available():
        return []
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return numbers if visible is None else visible.split(",")[: len(numbers)]


def usual_jobs(devices: set[str], *, gpus: list[str]) -> int:
    """Runs at once where nobody says how many: one a GPU, one a core, or one on cuda:0 or mps."""
    if gpus:
        return len(gpus)
    return usable_cores() if all(_is_cpu(device) for device in devices) else 1


def _is_cpu(device: str) -> bool:
    return choose_device(device).type == "cpu" if device == "auto" else device.startswith("cpu")
