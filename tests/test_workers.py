"""How much of the machine this process may use, and how to add what it lacks."""

import os
from importlib.metadata import PackageNotFoundError

import pytest

from sphereface2 import workers as machine
from sphereface2.workers import install_command, usable_cores


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


def test_an_extra_is_installed_by_the_names_of_its_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = ["torch>=2.6", "pyarrow>=15; extra == 'parquet'", 'dry; extra == "dry"']
    monkeypatch.setattr(machine, "requires", lambda name: wanted)
    assert install_command("parquet") == "pip install 'pyarrow>=15'"
    assert install_command("dry") == "pip install dry"


def test_a_clone_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine, "requires", missing)
    assert install_command("align") == "pip install -e '.[align]'"
