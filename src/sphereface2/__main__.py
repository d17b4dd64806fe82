"""The command `sphereface2`, also as `python -m sphereface2`."""

import signal
import sys


def main() -> None:
    """Load the command line and run it; Ctrl-C is quiet from the first moment to the last."""
    try:
        try:
            from sphereface2.cli import main as run
        except KeyboardInterrupt:
            print("sphereface2: stopped", file=sys.stderr)
            sys.exit(130)
        run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # too late: the command has ended


if __name__ == "__main__":
    main()
