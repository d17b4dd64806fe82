"""What this process may use of the machine it runs on."""

import os


def usable_cores() -> int:
    """The processors that this process may use, which in a container are fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
