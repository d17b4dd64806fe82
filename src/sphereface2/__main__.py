"""The command `sphereface2`, also as `python -m sphereface2`."""

import sys


def main() -> None:
    """Load the command line and run it; Ctrl-C is quiet from the first moment on."""
    try:
        from sphereface2.cli import main as run
    except KeyboardInterrupt:
        print("sphereface2: stopped", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
