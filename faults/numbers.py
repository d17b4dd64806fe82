"""The same seed gives the same bits: repeated, with any readers, and on two ranks within rounding.

python -m faults.numbers [--repetitions 20]
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from faults.elastic import difference
from faults.kills import Bench
from faults.outcomes import Outcomes, arguments, finish
from faults.tasks import TASKS, Result, make_materials, of_run

READERS = {
    "1 reading thread": ("training.workers=1", "training.worker_kind=threads"),
    "2 reading threads": ("training.workers=2", "training.worker_kind=threads"),
    "1 reading process": ("training.workers=1", "training.worker_kind=processes"),
    "2 reading processes": ("training.workers=2", "training.worker_kind=processes"),
}
_ROUNDING = 1e-4


def train(work: Path, materials: Path, name: str, *overrides: str, ranks: int = 1) -> Path:
    """Train the smallest task with some overrides; its folder."""
    task = TASKS["train"]
    task = replace(task, command=(*task.command[:2], *overrides, *task.command[2:]))
    bench = Bench(task, work / name.replace(" ", "-"), materials, ranks)
    if "torch.distributed.checkpoint" not in sys.modules:
        bench.rehearse()  # so that what a training imports is loaded once
    bench.once()
    return bench.folder


def same_bits(folder: Path, expected: Result) -> str:
    found = of_run(folder, "run")
    # The config is kept with the checkpoint, and readers are part of it.
    other = [name for name in expected if found[name] != expected[name]]
    return f"other bits: {', '.join(other)}" if other else ""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    given = parser.parse_args()
    repetitions = 3 if given.quick else given.repetitions
    outcomes = Outcomes(given.work / "numbers.json")
    work = given.work.resolve() / "numbers"
    materials = make_materials((given.work / "materials").resolve())
    steps = "training.steps=12"
    expected = of_run(train(work, materials, "reference", steps), "run")
    without_config = {name: each for name, each in expected.items() if "checkpoint" not in name}

    def note(fault: str, case: object, lost: str) -> None:
        print(f"{fault}, {case}: {lost or 'the same'}", flush=True)
        outcomes.add(fault, case, lost, command="python -m faults.numbers")

    fault = "same seed, repeated"
    for number in range(repetitions):
        if not outcomes.has(fault, number):
            folder = train(work, materials, "repeated", steps)
            note(fault, number, same_bits(folder, expected))
    fault = "same seed, other readers"
    for name, overrides in READERS.items():
        if not outcomes.has(fault, name):
            folder = train(work, materials, "readers", steps, *overrides)
            note(fault, name, same_bits(folder, without_config))
    fault = "1 and 2 ranks, within rounding"
    heads = ["sphereface2-c", "cosface"] if given.quick else [
        "sphereface2-c", "sphereface2-a", "sphereface2-m", "softmax", "cosface", "arcface",
        "curricularface", "magface", "adaface", "simple", "ring", "unitsface",
    ]  # fmt: skip
    for head in heads:
        if not outcomes.has(fault, head):
            options = (steps, "backbone.batch_norm=false", f"head.name={head}")
            one, two = (
                train(work, materials, f"ranks {ranks}", *options, ranks=ranks) / "run"
                for ranks in (1, 2)
            )
            off = difference(one, two)
            note(fault, head, "" if off < _ROUNDING else f"off by {off:.1e}")
    finish(outcomes)


if __name__ == "__main__":
    main()
