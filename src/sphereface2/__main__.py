"""The command `sphereface2`, also as `python -m sphereface2`."""

import os
import signal
import sys


def main() -> None:
    """Load the command line and run it; Ctrl-C is quiet from the first moment to the last."""
    # OpenMP reads this when torch is loaded. By default a thread that waits for another one keeps
    # its core busy; beside other programs the other one then waits for that very core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from sphereface2.cli import main as run
        from sphereface2.workers import catch_unraisable

        catch_unraisable()
        run()
    except KeyboardInterrupt:  # while it is loaded, or in its last moment
        print("sphereface2: stopped", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # too late: the command has ended


if __name__ == "__main__":
    main()
