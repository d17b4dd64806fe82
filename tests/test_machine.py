"""How much of the machine this process may use."""

import os

import pytest

from sphereface2.machine import usable_cores


def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert usable_cores() == 3


@pytest.mark.parametrize(("count", "said"), [(6, 6), (None, 1)])
def test_without_such_a_limit_all_cores_are(
    count: int | None, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert usable_cores() == said
