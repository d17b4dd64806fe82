"""One process at a time, by a lock of the operating system, which ends with its process."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path


@contextmanager
def file_lock(
    path: Path, *, while_waiting: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be and stays; whoever comes second waits.

    while_waiting: entered only if another process has the lock, and left when it is free
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with while_waiting():
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
