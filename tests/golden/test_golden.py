"""The golden numbers: what users see stays the same to the last digit, whatever moves inside.

A number that is meant to change is written again with `make record-golden CASES=CASE`, and the
commit says why.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.cases import Case, cases
from tests.golden.record import NUMBERS, machine, vendor

CASES = dict(cases())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums are added in the order in which the recorded ones were."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_before(name: str, tmp_path: Path) -> None:
    case: Case = CASES[name]
    recorded = json.loads((NUMBERS / f"{name}.json").read_text(encoding="utf-8"))
    if recorded["machine"] != machine():
        # Other instructions round their sums in another way, and ten steps later it shows.
        pytest.skip(f"recorded on {recorded['machine']}, this is {machine()}; run `make golden`")
    # On an AMD a few cases differ from Intel's by some 1e-6 after ten steps: it seems that
    # MKL's elementary functions are other code there, whatever instructions it is told to use.
    tolerance = 0.0 if recorded["vendor"] == vendor() else 1e-5
    found = json.loads(json.dumps(case(tmp_path)))
    assert list(differences(recorded["numbers"], found, tolerance)) == []


def test_every_recorded_file_is_of_a_case() -> None:
    assert {path.stem for path in NUMBERS.glob("*.json")} == set(CASES)


def differences(was: Any, now: Any, tolerance: float = 0.0, place: str = "") -> Iterator[str]:
    """Where two nested values differ, by path."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in was.keys() | now.keys():
            yield from differences(was.get(key), now.get(key), tolerance, f"{place}/{key}")
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (a, b) in enumerate(zip(was, now, strict=True)):
            yield from differences(a, b, tolerance, f"{place}/{index}")
    elif isinstance(was, float) and isinstance(now, float):
        if not math.isclose(was, now, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{place}: was {was!r}, is {now!r}"
    elif was != now:
        yield f"{place}: was {was!r}, is {now!r}"
