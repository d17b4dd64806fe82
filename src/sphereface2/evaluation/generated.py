"""The files of generated benchmarks: embeddings streamed to disk, and the truth beside them."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from sphereface2.evaluation.known_truth import Truth

Progress = Callable[[int, int], None]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TRUTH = "truth.json"
DRAWS = 1_000_000  # low-dimensional draws behind an expected rate, at least

_BLOCK = 1 << 23  # numbers a block: 32 MB


def random_directions(count: int, dim: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    table = rng.standard_normal((count, dim), dtype=np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return table


def write_vectors(
    path: Path,
    shown: Ints,
    noise: Floats,
    *,
    directions: npt.NDArray[np.float32],
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> None:
    """Rows of direction + noise, streamed; a row of no one (-1) is noise alone."""
    dim = directions.shape[1]
    part = path.with_name(path.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    table = np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=(shown.size, dim))
    step = max(1, _BLOCK // dim)
    for start in range(0, shown.size, step):
        rows = slice(start, min(start + step, shown.size))
        block = rng.standard_normal((rows.stop - start, dim), dtype=np.float32)
        block *= np.sqrt(noise[rows] / dim).astype(np.float32)[:, None]
        known = shown[rows] >= 0
        block[known] += directions[shown[rows][known]]
        table[rows] = block
        if progress is not None:
            progress(rows.stop, shown.size)
    table.flush()
    del table
    part.replace(path)


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_truth(root: Path, truth: Truth) -> None:
    (root / TRUTH).write_text(json.dumps(asdict(truth), indent=1) + "\n")


def read_truth(root: Path) -> Truth:
    return TypeAdapter(Truth).validate_json((root / TRUTH).read_bytes())
