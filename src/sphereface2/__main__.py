"""The command `sphereface2`, also as `python -m sphereface2`."""

import signal
import sys


def main() -> None:
    """Load the command line and run it; Ctrl-C is quiet from the first moment to the last."""
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
