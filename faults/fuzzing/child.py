"""One process that feeds one parser: by coverage with atheris, or blindly where it is not there."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.fuzzing.mutation import mutated
from faults.fuzzing.parser import PARTS, Parser, emptied, joined
from faults.fuzzing.table import load
from faults.fuzzing.watch import Crash, Watch, examine, limit_memory

CORPUS = Path(__file__).parent.parent / "corpus"
STATE, CURRENT, CRASHES, GROWN = "state.json", "current", "crashes", "corpus"
_MEMORY = 2_000_000_000  # bytes that reading may take beyond what the process has at its start
_SLOW = 5.0  # seconds of processor time that one input may take
_LONGEST = 200_000  # bytes of an input
INSTALL = "coverage-guided fuzzing needs atheris: pip install 'sphereface2[faults]', or --blind"


def kept_inputs(name: str) -> list[bytes]:
    """What the repository keeps for a parser: inputs that once crashed, and some that reach far."""
    path = CORPUS / f"{name}.txt"
    lines = path.read_text(encoding="ascii").splitlines() if path.is_file() else []
    return [base64.b64decode(line.split()[0]) for line in lines if line and line[0] != "#"]


class Feeder:
    """Hands inputs to a parser and keeps count in a file, so that a killed process loses little."""

    def __init__(self, parser: Parser, watch: Watch, work: Path, wanted: int) -> None:
        self.parser, self.watch, self.work, self.wanted = parser, watch, work, wanted
        (work / CRASHES).mkdir(parents=True, exist_ok=True)
        self.state: dict[str, Any] = {"inputs": 0, "seconds": 0.0, "slowest": 0.0, "crashes": {}}
        if (work / STATE).is_file():
            self.state |= json.loads((work / STATE).read_text(encoding="utf-8"))
        self._current = os.open(work / CURRENT, os.O_WRONLY | os.O_CREAT)
        self._clock = time.monotonic()
        self._saved = 0.0

    @property
    def is_fed(self) -> bool:
        return bool(self.state["inputs"] >= self.wanted)

    def feed(self, content: bytes) -> None:
        # As a process that dies leaves it behind.
        os.ftruncate(self._current, os.pwrite(self._current, content, 0))
        begun = time.perf_counter()
        crash = examine(self.parser, content, self.watch)
        taken = time.perf_counter() - begun
        if taken > _SLOW:  # of the clock: on a busy machine that says little
            begun = time.process_time()
            crash = examine(self.parser, content, self.watch)
            taken = time.process_time() - begun
        self.state["inputs"] += 1
        self.state["slowest"] = max(self.state["slowest"], round(taken, 3))
        if taken > _SLOW and crash is None:
            crash = Crash("TooSlow", f"took {taken:.1f} s of processor time")
        if crash is not None:
            self._keep(content, crash)
        if time.monotonic() - self._saved > 1 or crash is not None:
            self.save()

    def save(self) -> None:
        now = time.monotonic()
        self.state["seconds"] = round(self.state["seconds"] + now - self._clock, 3)
        self._clock = self._saved = now
        part = self.work / f"{STATE}.part"
        part.write_text(json.dumps(self.state, indent=1), encoding="utf-8")
        part.replace(self.work / STATE)

    def _keep(self, content: bytes, crash: Crash) -> None:
        """The shortest input of each kind of crash, with how it ended."""
        name = hashlib.sha256(crash.place.encode()).hexdigest()[:12]
        first = {"file": name, "times": 0, "first": self.state["inputs"]}
        known = self.state["crashes"].setdefault(crash.place, first)
        known["times"] += 1
        path = self.work / CRASHES / name
        if not path.exists() or path.stat().st_size > len(content):
            path.write_bytes(content)
            path.with_suffix(".txt").write_text(f"{crash.place}\n\n{crash.trace}", encoding="utf-8")


def main(words: Sequence[str]) -> None:
    """Feed parsers until each has had as many inputs as wanted, those of earlier runs counted."""
    options = argparse.ArgumentParser(prog="python -m faults.fuzzing.child")
    options.add_argument("parsers", nargs="+")
    options.add_argument("--inputs", type=int, required=True)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--blind", action="store_true")
    asked = options.parse_args(words)
    atheris = None if asked.blind else _atheris()
    if atheris is None:
        parsers = {name: load(name) for name in asked.parsers}
    else:
        with atheris.instrument_imports(include=["sphereface2"]):
            parsers = {name: load(name) for name in asked.parsers}
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sphereface2-fuzz-", dir=memory) as folder:
        watch = Watch(Path(folder))
        seeds: dict[str, list[bytes]] = {}
        for name, parser in parsers.items():
            made = parser.seeds(emptied(Path(folder)))
            seeds[name] = [joined(parts) for parts in made]
            for content in seeds[name]:
                examine(parser, content, watch)  # what is imported late is there in time
        limit_memory(_MEMORY)
        for name, sound in seeds.items():
            feeder = Feeder(parsers[name], watch, asked.work / name, asked.inputs)
            start = [*sound, *kept_inputs(name)]
            if atheris is None:
                _blindly(feeder, start, asked.seed)
            elif not feeder.is_fed:
                _by_coverage(atheris, feeder, start, asked.seed)


def _atheris() -> Any:
    try:
        import atheris
    except ImportError:
        raise SystemExit(INSTALL) from None
    return atheris


def _blindly(feeder: Feeder, start: Sequence[bytes], seed: int) -> None:
    for content in start:
        feeder.feed(content)
    while not feeder.is_fed:
        generator = random.Random(f"{seed} {feeder.state['inputs']}")
        feeder.feed(mutated(generator.choice(start), start, generator))
    feeder.save()


def _by_coverage(atheris: Any, feeder: Feeder, start: Sequence[bytes], seed: int) -> None:
    grown = feeder.work / GROWN
    grown.mkdir(exist_ok=True)
    for content in start:
        (grown / hashlib.sha1(content).hexdigest()).write_bytes(content)

    def mutate(content: bytes, most: int, number: int) -> bytes:
        generator = random.Random(number)
        if generator.random() < 0.3:
            return mutated(content, start, generator)[:most]
        parts = content.split(PARTS)
        place = generator.randrange(len(parts))
        room = max(16, most - len(content))
        parts[place] = atheris.Mutate(parts[place], len(parts[place]) + room)
        return PARTS.join(parts)[:most]

    words = [
        sys.argv[0], "-runs=-1", "-timeout=86400", "-rss_limit_mb=0", "-handle_int=0",
        "-verbosity=0", f"-seed={seed + feeder.state['inputs'] + 1}", f"-max_len={_longest(start)}",
        f"-artifact_prefix={feeder.work}/", str(grown),
    ]  # fmt: skip

    def feed(content: bytes) -> None:
        feeder.feed(content)
        if feeder.is_fed:
            feeder.save()
            os._exit(0)  # a return from here only ends with libFuzzer's own count

    atheris.Setup(words, feed, custom_mutator=mutate)
    atheris.Fuzz()


def _longest(start: Sequence[bytes]) -> int:
    return min(_LONGEST, max(4_096, 2 * max(map(len, start))))


if __name__ == "__main__":
    main(sys.argv[1:])
