"""Durations in the units that suit them, counts with their nouns, and the first of a list."""

import re

import pytest

from sphereface2.progress import counted, first_of, in_words

SECONDS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "day": 86400, "days": 86400}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.000843, "0.84 ms"),
        (0.0843, "84 ms"),
        (0.34, "0.34 s"),
        (4.24, "4.2 s"),
        (9.97, "10 s"),
        (48.4, "48 s"),
        (59.7, "1 min"),
        (185, "3 min 5 s"),
        (599.7, "10 min"),
        (720, "12 min"),
        (3580, "1 h"),
        (12_240, "3 h 24 min"),
        (86_000, "1 day"),
        (100_000, "1 day 4 h"),
        (9.4 * 86_400, "9 days 10 h"),
        (1234.4 * 86_400, "1,234 days"),
    ],
)
def test_the_units_suit(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


def test_any_duration_is_reported_within_a_twentieth() -> None:
    seconds = 2e-6
    while seconds < 1e9:
        words = re.findall(r"([\d.,]+) (\w+)", in_words(seconds))
        reported = sum(float(number.replace(",", "")) * SECONDS[unit] for number, unit in words)
        assert reported == pytest.approx(seconds, rel=0.05), words
        assert all(
            float(number.replace(",", "")) < 1000 for number, unit in words if unit != "days"
        )
        seconds *= 1.013


def test_one_of_a_thing_is_singular() -> None:
    assert counted(1, "crop") == "1 crop"
    assert counted(0, "crop") == "0 crops"
    assert counted(2000, "crop") == "2,000 crops"
    assert [counted(count, "person", "people") for count in (1, 3)] == ["1 person", "3 people"]


def test_the_first_few_of_many() -> None:
    assert first_of([1, 2, 3, 4, 5]) == "1, 2, 3, 4, 5"
    assert first_of([1, 2, 3, 4, 5, 6]) == "1, 2, 3, 4, 5, ..."
    assert first_of("abc", shown=2) == "a, b, ..."
