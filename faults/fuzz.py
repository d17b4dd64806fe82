"""Fuzz the parsers: `python -m faults.fuzz [PARSER...] --inputs N`.

Every parser is fed in a process of its own, by coverage with atheris or, with --blind, by mutations
alone. --inputs is shared among the parsers that are named, by default all; inputs of earlier runs
in the same --work folder count, so a stopped run resumes. The exit code is 1 if an input crashed
one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.fuzzing.child import CRASHES, CURRENT, INSTALL, STATE
from faults.fuzzing.table import TABLE
from sphereface2.registry import look_up
from sphereface2.workers import in_words

_HANGS = 60.0  # seconds of its processor time, or ten times as long by the clock, for one input
_ENDED = 25  # processes of one parser that may end by themselves before it is given up
_PAUSE = 0.2


@dataclass(frozen=True)
class Fed:
    """What one parser has had so far."""

    name: str
    reads: str
    inputs: int
    seconds: float
    slowest: float
    crashes: Mapping[str, Any]


def main(words: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m faults.fuzz", description=__doc__)
    options.add_argument("parsers", nargs="*", metavar="PARSER", help=", ".join(TABLE))
    options.add_argument("--inputs", type=int, default=100_000, help="of all parsers together")
    options.add_argument("--each", type=int, help="as many for every parser, in place of --inputs")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--blind", action="store_true", help="without atheris")
    options.add_argument("--work", type=Path, default=Path(".faults/fuzz"))
    options.add_argument("--record", type=Path, help="write what was tried as JSON")
    asked = options.parse_args(words)
    try:
        chosen = {name: look_up("parser", TABLE, name) for name in asked.parsers} or TABLE
    except ValueError as error:
        options.error(str(error))
    if not asked.blind and importlib.util.find_spec("atheris") is None:
        options.error(INSTALL)
    shares = sum(entry.share for entry in chosen.values())
    done = []
    for name, entry in chosen.items():
        wanted = asked.each or round(asked.inputs * entry.share / shares)
        _feed(name, wanted, asked.work.absolute(), seed=asked.seed, blind=asked.blind)
        done.append(_fed(name, entry.reads, asked.work / name))
        print(_line(done[-1]), flush=True)
        if asked.record:
            _write(asked.record, done)
    total, crashes = sum(each.inputs for each in done), sum(len(each.crashes) for each in done)
    print(f"{total:,} inputs of {len(done)} parsers, {crashes} kinds of crashes")
    return 1 if crashes else 0


def _feed(name: str, wanted: int, folder: Path, *, seed: int, blind: bool) -> None:
    """Start processes until the parser has had its inputs; one that dies is a crash, too."""
    command = [sys.executable, "-m", "faults.fuzzing.child", name, "--inputs", str(wanted)]
    command += ["--work", str(folder), "--seed", str(seed), *(["--blind"] if blind else [])]
    work = folder / name
    work.mkdir(parents=True, exist_ok=True)
    shown = time.monotonic()
    for _ in range(_ENDED):
        if _state(work)["inputs"] >= wanted:
            return
        with (work / "log.txt").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            fed, since, used = 0.0, time.monotonic(), 0.0
            while process.poll() is None:
                time.sleep(_PAUSE)
                if time.monotonic() - shown > 20:
                    shown = time.monotonic()
                    print(f"  {name}: {_state(work)['inputs']:,} of {wanted:,}", flush=True)
                if _stamp(work / CURRENT) != fed:
                    fed = _stamp(work / CURRENT)
                    since, used = time.monotonic(), _processor_time(process.pid)
                waited, worked = time.monotonic() - since, _processor_time(process.pid) - used
                if waited > 10 * _HANGS or worked > _HANGS:
                    process.kill()
                    process.wait()
                    _note_end(work, "Hang")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode not in (0, -9):
            _note_end(work, f"ended with {process.returncode}")
    raise SystemExit(f"{name} ended {_ENDED} processes by itself; see {work / 'log.txt'}")


def _note_end(work: Path, how: str) -> None:
    """Keep the input that a process ended with."""
    state, name = _state(work), f"end-{how.replace(' ', '-')}"
    state["inputs"] += 1
    known = state["crashes"].setdefault(how, {"file": name, "times": 0, "first": state["inputs"]})
    known["times"] += 1
    (work / CRASHES).mkdir(exist_ok=True)
    if (work / CURRENT).is_file():
        (work / CURRENT).replace(work / CRASHES / f"{name}-{known['times']}")
    (work / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")


def _state(work: Path) -> dict[str, Any]:
    if not (work / STATE).is_file():
        return {"inputs": 0, "seconds": 0.0, "slowest": 0.0, "crashes": {}}
    found: dict[str, Any] = json.loads((work / STATE).read_text(encoding="utf-8"))
    return found


def _processor_time(process: int) -> float:
    """The seconds that a process has worked, which on a busy machine are few."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except OSError:
        return 0.0
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _stamp(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _fed(name: str, reads: str, work: Path) -> Fed:
    state = _state(work)
    return Fed(name, reads, state["inputs"], state["seconds"], state["slowest"], state["crashes"])


def _line(fed: Fed) -> str:
    said = f"{fed.name:14} {fed.inputs:>9,} inputs in {in_words(fed.seconds)}"
    return f"{said}, slowest {in_words(fed.slowest)}" + "".join(
        f"\n    {place} ({known['times']} times, first by input {known['first']:,})"
        for place, known in fed.crashes.items()
    )


def _write(path: Path, done: Sequence[Fed]) -> None:
    rows = [
        {"parser": each.name, "reads": each.reads, "inputs": each.inputs,
         "seconds": round(each.seconds), "slowest": each.slowest, "crashes": sorted(each.crashes)}
        for each in done
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
