"""Hostile input, the short selection: kept inputs and mutations of sound ones, without atheris."""

import ast
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from faults.fuzzing.child import CORPUS, kept_inputs
from faults.fuzzing.mutation import mutated
from faults.fuzzing.table import TABLE

ROOT = Path(__file__).parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: it limits its memory and is watched to its end.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def fed(names: Sequence[str], inputs: int, work: Path) -> dict[str, dict[str, Any]]:
    done = run(
        "faults.fuzzing.child", *names, "--blind", "--inputs", str(inputs), "--work", str(work)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {
        name: json.loads((work / name / "state.json").read_text(encoding="utf-8")) for name in names
    }


@pytest.mark.usefixtures("quick_processes")
def test_parsers_refuse_mutated_files_in_a_sentence(tmp_path: Path) -> None:
    # One process for all, with everything loaded: that takes longer than what they are fed.
    for name, state in fed(list(TABLE), 20, tmp_path).items():
        assert state["inputs"] >= 20
        crashes = {
            place: (tmp_path / name / "crashes" / f"{known['file']}.txt").read_text("utf-8")
            for place, known in state["crashes"].items()
        }
        assert not crashes, name


def test_the_table_has_what_the_rooms_feed() -> None:
    rooms = {path.stem for path in (ROOT / "faults" / "fuzzing").glob("*.py")}
    for room in {each.room for each in TABLE.values()}:
        assert room in rooms
        tree = ast.parse((ROOT / "faults" / "fuzzing" / f"{room}.py").read_text(encoding="utf-8"))
        (table,) = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARSERS"
        ]
        assert isinstance(table, ast.Dict)
        names = {key.value for key in table.keys if isinstance(key, ast.Constant)}
        assert names == {name for name, each in TABLE.items() if each.room == room}


def test_the_corpus_is_small_and_of_known_parsers() -> None:
    files = sorted(CORPUS.glob("*"))
    assert {path.stem for path in files} <= set(TABLE)
    assert sum(path.stat().st_size for path in files) < 100_000
    assert all(kept_inputs(path.stem) for path in files)


def test_the_same_seed_gives_the_same_inputs() -> None:
    sound = [b"name 1 2\n" * 5, b"other\n--8<--\nsecond part"]
    twice = [
        [mutated(sound[1], sound, random.Random(seed)) for seed in range(200)] for _ in range(2)
    ]
    assert twice[0] == twice[1]
    assert len(set(twice[0])) > 150


HOSTILE = """
import os, pickle, subprocess, sys
from pathlib import Path
from faults.fuzzing.parser import Parser
from faults.fuzzing.watch import Watch, examine, limit_memory

folder = Path(sys.argv[1])
watch = Watch(folder)

def reading(act):
    return Parser(lambda folder: [], lambda folder, parts: act())

class Canary:
    def __reduce__(self):
        return os.system, ("true",)

def swallowed():
    try:
        os.system("true")
    except Exception:
        pass

limit_memory(500_000_000)
acts = {
    "pickle": lambda: pickle.loads(pickle.dumps(Canary())),
    "swallowed": swallowed,
    "exec": lambda: exec("1"),
    "process": lambda: subprocess.run(["true"]),
    "other file": lambda: open("/etc/passwd"),
    "written elsewhere": lambda: open("/nowhere", "w"),
    "memory": lambda: bytes(10**12),
    "memory by pieces": lambda: [bytes(10**7) for _ in range(1000)],
    "type": lambda: int([]),
    "nameless": lambda: os.pread(0, 1, -1),
    "silent": lambda: (_ for _ in ()).throw(ValueError()),
}
for name, act in acts.items():
    print(name, examine(reading(act), b"", watch) is not None)
print("sound", examine(reading(lambda: None), b"", watch) is None)
print("refused", examine(reading(lambda: int("x")), b"", watch) is None)
"""


def test_what_no_file_may_do_is_noticed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    reported = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    assert len(reported) == 13
    assert all(noticed == "True" for _, noticed in reported), reported


def test_a_stopped_campaign_resumes_and_says_what_was_tried(tmp_path: Path) -> None:
    words = ["faults.fuzz", "npy", "feature", "--blind", "--work", str(tmp_path), "--record"]
    record = tmp_path / "record.json"
    for inputs in (60, 100):
        done = run(*words, str(record), "--inputs", str(inputs))
        assert done.returncode == 0, done.stdout
        rows = json.loads(record.read_text(encoding="utf-8"))
        assert [(row["parser"], row["inputs"]) for row in rows] == [
            ("npy", inputs // 2), ("feature", inputs // 2)
        ]  # fmt: skip


def test_an_unknown_parser_is_named() -> None:
    done = run("faults.fuzz", "picure")
    assert done.returncode == 2
    assert "did you mean 'picture'" in done.stderr
