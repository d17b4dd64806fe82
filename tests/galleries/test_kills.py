"""Enrolments with kill -9 in between; the full number: python -m faults.enrolments."""

import pytest

from faults.enrolments import run
from tests.galleries.engines import without_index


@without_index
@pytest.mark.usefixtures("quick_processes")
def test_what_was_acknowledged_is_there_once(url: str) -> None:
    outcome = run(url, enrolments=24, kills=2)  # between two, and amid one
    assert outcome.kills == 2
    assert (outcome.lost, outcome.twice, outcome.wrong) == (0, 0, 0)
