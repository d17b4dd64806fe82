"""The mutation tool: which faults it makes, where, and how it reads its list of equivalent ones."""

import ast
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutants import (
    EQUIVALENT,
    Recorder,
    exchange,
    loaded_functions,
    read_equivalent,
)
from benchmarks.mutations import Mutant, mutants_of
from tests import __file__ as tests_file

SOURCE = '''
"""Numbers such as 3 stay as they are in a docstring."""
LIMIT = 0.5  # θ and other letters of two bytes

def share(part: int, whole: int = 1, *, cut: bool = False) -> float:
    assert whole > 0
    if part < 0:
        raise ValueError(f"{part + 1} is below 0")
    def inner(value):
        return min(value, LIMIT)
    θ = part / whole
    return inner(θ) if cut and part else θ
'''.encode()


def changes(source: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for mutant in mutants_of("a.py", source):
        ast.parse(mutant.applied(source))
        found.setdefault(mutant.function, []).append(mutant.after)
    return found


def test_every_kind_of_fault_is_put_where_it_fits_and_nowhere_else() -> None:
    found = changes(SOURCE)
    assert set(found) == {"", "share", "share.<locals>.inner"}
    assert found["share.<locals>.inner"] == ["return None", "return (max(value, LIMIT))"]
    assert "LIMIT = (1.0) # θ and other letters of two bytes" in found[""]
    wholes = {text for text in found[""] if "def share" in text}
    assert {text.split("whole: int = ")[1].split(",")[0] for text in wholes} == {"1", "(2)", "(0)"}
    inside = " ".join(found["share"])
    for text in (
        "if (part <= 0):",
        "if part < (1):",
        "pass",
        "θ = (part * whole)",
        "(cut or part)",
    ):
        assert text in inside
    assert "if (not (cut and part)) else θ" in inside or "(not (cut and part))" in inside
    # Messages, docstrings and assertions are not program.
    assert not any(
        "4 stay" in text or "part - 1" in text for texts in found.values() for text in texts
    )
    assert "assert" not in inside


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a += b", {"a -= b", "pass"}),
        ("self.a = b", {"pass"}),
        ("a = b", set()),
        ("f(a, key=b)", {"pass", "(f(a))"}),
        ("f(a, strict=True)", {"pass"}),
        ("a = 'x' + b", set()),
        ("a = not b", {"a = (b)"}),
        ("a = b.argmin(0)", {"a = (b.argmax(0))", "a = b.argmin((1))"}),
        ("a = b not in c", {"a = (b in c)"}),
        ("a: b | c = -1", {"a: b | c = (1)", "a: b | c = -(2)", "a: b | c = -(0)"}),
        ("@d(1)\ndef f(): pass", set()),
    ],
)  # fmt: skip
def test_the_faults_of_a_line(line: str, expected: set[str]) -> None:
    assert {text for texts in changes(line.encode()).values() for text in texts} == expected


def test_a_mutant_replaces_its_place_only() -> None:
    source = "a = 'θθ'; b = c < d  # < is the sign\n".encode()
    (mutant,) = mutants_of("a.py", source)
    assert mutant.applied(source).decode() == "a = 'θθ'; b = (c <= d)  # < is the sign\n"


def test_every_listed_equivalent_mutant_has_a_reason() -> None:
    listed = read_equivalent(EQUIVALENT)
    assert len(listed) > 10
    for key, reason in listed.items():
        assert " => " in key
        assert len(reason) > 10


def test_a_list_of_equivalent_mutants_is_read(tmp_path: Path) -> None:
    mutant = Mutant("a.py", "", 1, "x = 1", "x = (2)", 4, 5, "(2)")
    path = tmp_path / "list.txt"
    path.write_text(f"# why\n{mutant.key}\n  nobody reads x\n")
    assert read_equivalent(path) == {"a.py (import): x = 1 => x = (2)": "nobody reads x"}


def test_the_recorder_notes_the_functions_that_a_test_calls() -> None:
    recorder = Recorder(Path(tests_file).parent)

    class Item:
        nodeid = "test_a.py::test_b"

    around = recorder.pytest_runtest_protocol(Item())  # type: ignore[arg-type]  # all that it reads
    next(around)
    changes(b"a = 1")
    with pytest.raises(StopIteration):
        next(around)
    assert recorder.calls["test_a.py::test_b"]["functions"] == ["test_mutants.py changes"]


def test_a_function_that_is_loaded_gets_the_code_with_the_fault(tmp_path: Path) -> None:
    path = tmp_path / "shares.py"
    names: dict[str, Any] = {}
    exec(compile(SOURCE, str(path), "exec"), names)
    taken = names["share"]
    assert taken(1, 2, cut=True) == 0.5
    (fault,) = (m for m in mutants_of("shares.py", SOURCE) if m.text == "(part * whole)")
    among = loaded_functions(tmp_path)
    assert exchange(path, fault.function, fault.applied(SOURCE), among=among)
    assert taken(3, 2) == 6
    (inner,) = (m for m in mutants_of("shares.py", SOURCE) if m.text == "(max(value, LIMIT))")
    assert exchange(path, inner.function, inner.applied(SOURCE), among=among)
    assert taken(3, 2, cut=True) == 1.5
    assert not exchange(path, "nobody", SOURCE, among=among)
    assert not exchange(tmp_path / "other.py", "share", SOURCE, among=among)
