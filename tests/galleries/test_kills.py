"""Enrolments with kill -9 in between; the full number: python -m faults.enrolments."""

from faults.enrolments import run


def test_what_was_acknowledged_is_there_once(url: str) -> None:
    outcome = run(url, enrolments=40, kills=4)
    assert outcome.kills == 4
    assert (outcome.lost, outcome.twice, outcome.wrong) == (0, 0, 0)
