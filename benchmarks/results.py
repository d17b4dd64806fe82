"""The tables of docs/results.md, written from the results in docs/results/.

    python -m benchmarks.results

docs/results/NAME.json holds the result of `sphereface2 reproduce NAME`. If that is a table, it
replaces what is in the page between `<!-- table NAME -->` and `<!-- end NAME -->`. The rest of
the page is left as it is, and so are results of other kinds.
"""

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path

from sphereface2.evaluation.experiment_results import SweepResult
from sphereface2.files import write_atomically
from sphereface2.registry import nearest
from sphereface2.reporting.pages.sweep import markdown_table, run_seconds

PAGE, RESULTS = Path("docs/results.md"), Path("docs/results")
_MARKER = re.compile(r"<!-- (table|end) (\S+) -->")


def read_results(folder: Path) -> dict[str, SweepResult]:
    """Every table of the folder under the name of its file; results of other kinds are left out."""
    paths = [path for path in sorted(folder.glob("*.json")) if _is_table(path)]
    return {path.stem: SweepResult.load(path) for path in paths}


def refreshed(text: str, results: Mapping[str, SweepResult]) -> str:
    """The page with every block filled from its result."""
    lines: list[str] = []
    name = None  # of the block that we are in
    for number, line in enumerate(text.splitlines(), start=1):
        marker = _MARKER.fullmatch(line.strip())
        if marker is None:
            if name is None:
                lines.append(line)
        elif marker[1] == "table" and name is None:
            name = marker[2]
            if name not in results:
                raise ValueError(
                    f"line {number} asks for the table '{name}', but there is no table in "
                    f"{RESULTS}/{name}.json{nearest(name, results)}; put it there or remove the "
                    "block"
                )
            lines += [line, *block(name, results[name]).splitlines()]
        elif marker[1] == "end" and marker[2] == name:
            lines.append(line)
            name = None
        else:
            inside = "outside a block" if name is None else f"inside the block '{name}'"
            raise ValueError(
                f"line {number} has {line.strip()} {inside}; every <!-- table NAME --> needs its "
                "<!-- end NAME --> before the next"
            )
    if name is not None:
        raise ValueError(f"the block '{name}' has no end; add <!-- end {name} --> after its table")
    return "\n".join(lines) + "\n"


def block(name: str, result: SweepResult) -> str:
    """What stands between the markers: how it was made, then the table."""
    seeds = len(result.seeds)
    minutes = max(1, round(run_seconds(result.rows) / 60))
    command = result.command or f"sphereface2 reproduce {name}"
    return (
        f"`{command}`, {_count(seeds, 'seed')}, {_count(minutes, 'minute')} of training\n\n"
        f"{markdown_table(result)}"
    )


def without_block(text: str, results: Mapping[str, SweepResult]) -> list[str]:
    """The results that the page does not show."""
    markers = (_MARKER.fullmatch(line.strip()) for line in text.splitlines())
    shown = {marker[2] for marker in markers if marker is not None}
    return [name for name in results if name not in shown]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.parse_args()
    try:
        if not PAGE.is_file():
            raise FileNotFoundError(f"{PAGE} does not exist; start this in the project's folder")
        results = read_results(RESULTS)
        old = PAGE.read_text(encoding="utf-8")
        new = refreshed(old, results)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if new != old:
        write_atomically(PAGE, new)
    print(f"{PAGE}: {'written' if new != old else 'is up to date'}")
    for name in without_block(new, results):
        print(f"{RESULTS}/{name}.json has no block in {PAGE}: <!-- table {name} -->")


def _is_table(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        raise ValueError(f"{path} is not JSON; make it again or remove it") from None
    return isinstance(content, dict) and {"rows", "columns"} <= content.keys()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


if __name__ == "__main__":
    main()
