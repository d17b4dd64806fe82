"""Kills conversions at many moments, resumes each, and reports what came of it, as JSON.

Run as a script with one thread, so that it may fork: a child is killed without warning, the next
child does the same conversion to its end.
"""

import gc
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Once, and not in every child, for which it would take longer than its conversion.
import filelock  # noqa: F401
import numpy.ma  # noqa: F401
import pyarrow.parquet  # noqa: F401

from sphereface2.data.pairs.bin_set import BinWriter
from sphereface2.datatools.convert import convert, looks_like_pairs
from sphereface2.datatools.convert import targets as convert_targets
from sphereface2.datatools.convert.conversion import Job

PART = 8  # images in a part of a Parquet file


def count_events(kill_at: int | None) -> Callable[[], int]:
    """Kill this process at the given moment; moments are calls that change files or read images."""
    seen = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            return function(*arguments, **options)

        return wrapper

    for owner, name in [
        (os, "replace"),
        (os, "fsync"),
        (os, "mkdir"),
        (Path, "replace"),
        (Path, "unlink"),
        (Path, "rename"),
        (Path, "rmdir"),
        (shutil, "rmtree"),
        (Job, "encoded"),
        (BinWriter, "write"),
    ]:
        setattr(owner, name, counted(getattr(owner, name)))
    return lambda: seen


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` gives in a process of its own; None if that was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, "the conversion failed; see above"
    return json.loads(answer) if answer else None


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its bytes."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def run(source: Path, target: Path, kill_at: int | None = None, *, over: bool = False) -> list[int]:
    """Images written again, and how many moments there were."""
    convert_targets.IMAGES_PER_PART = PART
    events = count_events(kill_at)
    try:
        workers = None if looks_like_pairs(source) else 1
        done = convert(source, target, workers=workers, overwrite=over).written
    except ValueError as error:
        if "already exists" not in str(error):
            raise
        done = -1  # killed after everything was done
    return [done, events()]


def kill_and_resume(
    source: Path, scratch: Path, name: str, *, step: int, replaced: Path | None
) -> dict[str, Any]:
    """Kill at every `step`-th moment and at the last ones, when everything gets its name.

    Where something is `replaced`, its conversion is there before.
    """
    over = replaced is not None
    old = make_old(replaced, scratch / "old", name) if replaced else {}
    whole = scratch / "whole"
    make_old(replaced, whole, name)
    images, moments = in_child(lambda: run(source, whole / name, over=over))
    expected = tree(whole)
    again = []
    for moment in sorted({*range(0, moments, step), *range(moments - 9, moments)}):
        folder = scratch / str(moment)
        make_old(replaced, folder, name)
        target = folder / name
        killed = in_child(lambda: run(source, target, moment, over=over))  # noqa: B023 - at once
        assert killed is None, f"moment {moment} never came"
        if target.exists():
            # What is there under its name is whole, whenever the process ended.
            before = {each: mark for each, mark in tree(folder).items() if ".partial/" not in each}
            assert before in (expected, old), moment
        done, _ = in_child(lambda: run(source, target, over=over))  # noqa: B023 - at once
        found = tree(folder)
        assert found == expected, f"moment {moment}: {sorted(set(found) ^ set(expected))}"
        again.append(done)
        shutil.rmtree(folder)
    return {"images": images, "moments": moments, "again": again}


def make_old(source: Path | None, folder: Path, name: str) -> dict[str, str]:
    """The conversion that is to be replaced, in a folder of its own."""
    folder.mkdir(parents=True)
    if source is not None:
        in_child(lambda: run(source, folder / name))
    return tree(folder)


def main() -> None:
    scratch, *cases = sys.argv[1:]
    reported: list[dict[str, Any]] = []
    gc.freeze()  # else each child copies what it looks through
    for case in cases:
        source, name, step, old = case.split("|")
        folder = Path(scratch, str(len(reported)))
        replaced = Path(old) if old else None
        reported.append(
            kill_and_resume(Path(source), folder, name, step=int(step), replaced=replaced)
        )
    print(json.dumps(reported))


if __name__ == "__main__":
    main()
