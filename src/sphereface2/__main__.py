"""`python -m sphereface2`: the same as the command `sphereface2`."""

from sphereface2.cli import main

if __name__ == "__main__":
    main()
