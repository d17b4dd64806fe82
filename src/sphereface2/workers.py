"""What this process may use of the machine it runs on, and how to add what it lacks."""

import os
import shlex
from importlib.metadata import PackageNotFoundError, requires


def usable_cores() -> int:
    """The processors that this process may use, which in a container are fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def install_command(extra: str) -> str:
    """The command that installs what an extra of this package needs.

    It names the packages themselves, so it holds for a clone and for a wheel alike.
    """
    try:
        wanted = requires("sphereface2") or []
    except PackageNotFoundError:  # run from a clone without being installed
        return f"pip install -e '.[{extra}]'"
    marks = (f"extra == '{extra}'", f'extra == "{extra}"')
    packages = [each.partition(";")[0].strip() for each in wanted if each.endswith(marks)]
    return shlex.join(["pip", "install", *packages])
