"""What a program has tried and what came of it: kept in a JSON file, so that it can resume."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sphereface2.files import write_atomically

WORK = Path(".faults")
"""Where the programs keep outcomes and scratch files."""


@dataclass(frozen=True)
class Row:
    """lost: cases after which something was lost, wrong, twice, left behind, or hung"""

    fault: str
    tried: int
    lost: int
    command: str

    @property
    def recovered(self) -> int:
        return self.tried - self.lost


class Outcomes:
    """Cases of faults, each with how often it was tried and a sentence for each time that lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cases: dict[str, dict[str, dict[str, Any]]] = {}
        self._commands: dict[str, str] = {}
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self._cases, self._commands = kept["cases"], kept["commands"]

    def has(self, fault: str, case: object) -> bool:
        """Whether this case has been tried, now or by a program that was interrupted."""
        return str(case) in self._cases.get(fault, {})

    def add(
        self, fault: str, case: object, *lost: str, tried: int = 1, command: str = "", **facts: Any
    ) -> None:
        """Keep what came of a case; `command` is what repeats the row, `facts` are kept beside."""
        kept = {"tried": tried, "lost": [each for each in lost if each], **facts}
        self._cases.setdefault(fault, {})[str(case)] = kept
        if command:
            self._commands[fault] = command
        text = json.dumps({"cases": self._cases, "commands": self._commands}, indent=1)
        write_atomically(self.path, text)

    def rows(self) -> list[Row]:
        return [
            Row(
                fault,
                sum(case["tried"] for case in cases.values()),
                sum(len(case["lost"]) for case in cases.values()),
                self._commands.get(fault, ""),
            )
            for fault, cases in self._cases.items()
        ]

    def losses(self) -> list[str]:
        """A line for each time that lost something."""
        return [
            f"{fault}, {name}: {lost}"
            for fault, cases in self._cases.items()
            for name, case in cases.items()
            for lost in case["lost"]
        ]


def table(rows: list[Row]) -> str:
    """Fault, times tried, recovered, lost, command; in Markdown, for docs/reliability.md."""
    lines = ["| fault | tried | recovered | lost | command |", "| --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        lines.append(
            f"| {row.fault} | {row.tried:,} | {row.recovered:,} | {row.lost:,} | `{row.command}` |"
        )
    return "\n".join(lines)


def arguments(
    description: str | None, names: Iterable[str] = (), *, metavar: str = "CASE"
) -> argparse.ArgumentParser:
    """The options that every program takes, and the names of its parts, of which some may do.

    A program that is asked to end leaves none of its processes behind.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    known = list(names)
    if known:

        def one(name: str) -> str:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown: {name} (known: {', '.join(known)})")
            return name

        parser.add_argument("names", nargs="*", type=one, metavar=metavar, help=", ".join(known))
    parser.add_argument("--work", type=Path, default=WORK, help="folder of outcomes and scratch")
    parser.add_argument("--quick", action="store_true", help="a short selection")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn at random")
    return parser


def finish(outcomes: Outcomes) -> NoReturn:
    """Print the table and what was lost; exit code 1 if anything was."""
    print(table(outcomes.rows()))
    losses = outcomes.losses()
    for line in losses:
        print(line)
    raise SystemExit(1 if losses else 0)
