"""The folder of a benchmark: whether it is there, and whether it is made."""

from pathlib import Path

MADE = "made.json"
"""Says that a benchmark is made, and how; its numbers stand for no real one."""
TRUTH = "truth.json"
"""The same for a generated one, with the numbers to be expected."""


def is_made(root: Path | None) -> bool:
    """Whether a benchmark was generated or rendered, so that published numbers do not apply."""
    return root is not None and any((root / name).is_file() for name in (TRUTH, MADE))


def require_root(root: Path | None, name: str) -> Path:
    """The folder of a benchmark, which must be there."""
    if root is None:
        raise ValueError(f"{name} needs --root DIR, the folder of its lists and images")
    if not root.is_dir():
        raise FileNotFoundError(f"--root: there is no folder {root}")
    return root
