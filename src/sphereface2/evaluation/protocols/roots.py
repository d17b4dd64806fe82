"""The folder of a benchmark: whether it is there, whether it is made, and what to tell of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sphereface2.evaluation.protocols.subject import Subject
from sphereface2.evaluation.results import ProtocolResult

Result = TypeVar("Result", bound=ProtocolResult)


def is_made(root: Path | None) -> bool:
    """Whether a benchmark was generated or rendered, so that published numbers do not apply."""
    return root is not None and any((root / name).is_file() for name in (TRUTH, MADE))


def require_root(root: Path | None, name: str) -> Path:
    if root is None:
        raise ValueError(f"{name} needs --root DIR, the folder of its lists and images")
    if not root.is_dir():
        raise FileNotFoundError(f"--root: there is no folder {root}")
    return root


def told(
    result: Result, subject: Subject, root: Path | None, *, missing: int = 0, images: int = 0
) -> Result:
    """The result with what only this level knows among its conventions.

    missing: how many of the `images` have no embedding
    """
    flip = subject.flip_of(subject.embeddings)
    said = []
    if flip is not None:
        said.append(
            f"embedding of an image: {'with' if flip else 'without'} its mirror image's added"
        )
    if missing:
        said.append(f"{missing:,} of {images:,} images have no embedding and are left out")
    if is_made(root):
        said.append("made data: not the images of the benchmark, not comparable with its numbers")
    return replace(result, conventions=(*result.conventions, *said), missing_images=missing)


MADE = "made.json"
"""Says that a benchmark is made, and how; its numbers stand for no real one."""


TRUTH = "truth.json"
