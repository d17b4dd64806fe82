"""A disk that fills up: one sentence that says what is kept and how to go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sphereface2.data.image_file import printable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def telling_how_to_go_on(path: Path, *, kept: str) -> Iterator[None]:
    """Turn a full disk into a sentence; `kept` is what of the work at `path` is not lost."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        reason = os.strerror(error.errno or errno.ENOSPC).lower()
        raise OSError(
            f"cannot write to {printable(path)}: {reason}; {kept}: make room and run the same "
            "command again to go on"
        ) from None
