"""One run of a sweep, as a process: `python -m sphereface2.experiments.sweep.worker RUN_FOLDER`.

It trains, or resumes, and measures. A SIGINT ends it with a checkpoint, and so does the end of its
standard input, which closes when the process that started it is gone.
"""

import os
import signal
import sys
from pathlib import Path

from sphereface2.workers import catch_unraisable, stop_with_input

# How a worker ends, besides 0: done.
FAILED = 2
TAKEN = 75  # another process works on this run
STOPPED = 130


def main(folder: Path) -> int:
    """Train and measure the run in a folder; the exit code."""
    # A sweep in the background of a script would hand down that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    catch_unraisable()
    try:
        stop_with_input()
        return _work(folder)
    except KeyboardInterrupt:
        return STOPPED
    except (ValueError, OSError) as error:
        if os.environ.get("SPHEREFACE2_TRACEBACK"):
            raise
        print(" ".join(str(error).split()), file=sys.stderr)
        return FAILED


def _work(folder: Path) -> int:
    # Only now: torch takes its time, and a signal meanwhile must find its handler.
    from sphereface2.experiments.sweep.store import PositionNote, finished
    from sphereface2.files import LockedError
    from sphereface2.runs.evaluate import measure
    from sphereface2.runs.folder import require_run, run_config, run_lock
    from sphereface2.runs.train import resume

    try:
        with run_lock(require_run(folder)) as lock:
            if finished(folder, run_config(folder)) is not None:
                return 0
            if resume(folder, events=PositionNote(lock), lock=lock).interrupted:
                return STOPPED
            measure(folder)
    except LockedError:
        return TAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
