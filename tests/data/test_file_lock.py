"""A lock that whoever comes second waits for."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sphereface2.data.file_lock import file_lock


def is_free(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_is_held_inside_and_free_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"

    def work() -> None:
        with file_lock(path, while_waiting=lambda: pytest.fail("waited")):
            assert not is_free(path)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert is_free(path)


def test_says_that_it_waits_and_then_goes_on(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    steps = []
    other = path.open("w")
    fcntl.flock(other, fcntl.LOCK_EX)

    @contextmanager
    def waiting() -> Iterator[None]:
        steps.append("waits")
        other.close()
        yield
        steps.append("goes on")

    with file_lock(path, while_waiting=waiting):
        steps.append("works")
    assert steps == ["waits", "goes on", "works"]
