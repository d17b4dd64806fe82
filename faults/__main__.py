"""Run the programs of this package one after the other: python -m faults [--quick] [NAME ...]"""

from __future__ import annotations

import subprocess
import sys

from faults.outcomes import Outcomes, arguments, table

PROGRAMS = [
    "system_calls", "surroundings", "numbers", "heads", "kills", "elastic", "growth", "fuzz",
]  # fmt: skip
FUZZ = ["--inputs", "1000000"]
# To begin a parser takes longer than its inputs do: one of each kind of file.
QUICK_FUZZ = [
    "recordio", "picture", "bin", "pairs", "ijb", "npz-members", "config", "model-folder",
    "onnx-import", "checkpoint", "gallery-rows", "request", "--each", "1000",
]  # fmt: skip


def main() -> None:
    given = arguments(__doc__, PROGRAMS, metavar="NAME").parse_args()
    names = given.names or PROGRAMS
    failed = []
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] python -m faults.{name}", flush=True)
        words = ["--seed", str(given.seed)]
        if name == "fuzz":  # which keeps a folder for each parser, and prints a table of its own
            words += ["--work", str(given.work / name), *(QUICK_FUZZ if given.quick else FUZZ)]
        else:
            words += ["--work", str(given.work), *(["--quick"] if given.quick else [])]
        if subprocess.run([sys.executable, "-m", f"faults.{name}", *words]).returncode:
            failed.append(name)
    found = [Outcomes(given.work / f"{name}.json") for name in names if name != "fuzz"]
    print(table([row for each in found for row in each.rows()]))
    for line in [line for each in found for line in each.losses()]:
        print(line)
    if failed:
        print(f"lost something or did not end: {', '.join(failed)}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
