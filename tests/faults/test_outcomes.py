"""Outcomes survive the program that tried them; a loss shows in the table and the exit code."""

import signal
from pathlib import Path

import pytest

from faults.outcomes import Outcomes, Row, arguments, finish, table


def test_outcomes_are_kept_and_losses_end_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "work" / "kills.json"
    outcomes = Outcomes(path)
    assert not outcomes.has("kill -9", 1)
    outcomes.add("kill -9", 1, command="python -m faults.kills")
    outcomes.add("kill -9", 2, "one photo is lost", "", tried=3)
    again = Outcomes(path)
    assert again.has("kill -9", 1)
    assert not again.has("SIGTERM", 1)
    assert again.rows() == [Row("kill -9", 4, 1, "python -m faults.kills")]
    assert again.rows()[0].recovered == 3
    assert "| kill -9 | 4 | 3 | 1 | `python -m faults.kills` |" in table(again.rows())
    with pytest.raises(SystemExit) as ended:
        finish(again)
    assert ended.value.code == 1
    assert "kill -9, 2: one photo is lost" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        finish(Outcomes(tmp_path / "none.json"))
    assert ended.value.code == 0


def test_a_program_takes_all_its_parts_or_some_and_names_those_that_it_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        parser = arguments("Tries.", ["one", "two"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert parser.parse_args([]).names == []
    assert parser.parse_args(["two", "--quick"]).names == ["two"]
    with pytest.raises(SystemExit):
        parser.parse_args(["three"])
    assert "unknown: three (known: one, two)" in capsys.readouterr().err
