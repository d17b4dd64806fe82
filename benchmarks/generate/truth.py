"""The files of generated benchmarks: embeddings streamed to disk, and the truth beside them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from sphereface2.evaluation.protocols.protocol import TRUTH
from sphereface2.files import replacing
from sphereface2.workers import Progress, unseen

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DRAWS = 1_000_000  # low-dimensional draws behind an expected rate, at least

_BLOCK = 1 << 23  # numbers per block: 32 MB


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
    progress: Progress = unseen,
) -> None:
    """Rows of direction + noise, streamed; a row of no one (-1) is noise alone."""
    dim = directions.shape[1]
    with replacing(path) as made:
        table = np.lib.format.open_memmap(
            made, mode="w+", dtype=np.float32, shape=(shown.size, dim)
        )
        step = max(1, _BLOCK // dim)
        for start in range(0, shown.size, step):
            rows = slice(start, min(start + step, shown.size))
            block = rng.standard_normal((rows.stop - start, dim), dtype=np.float32)
            block *= np.sqrt(noise[rows] / dim).astype(np.float32)[:, None]
            known = shown[rows] >= 0
            block[known] += directions[shown[rows][known]]
            table[rows] = block
            progress(rows.stop, shown.size)
        table.flush()
        del table


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_truth(root: Path, truth: Truth) -> None:
    (root / TRUTH).write_text(json.dumps(asdict(truth), indent=1) + "\n")


def read_truth(root: Path) -> Truth:
    return TypeAdapter(Truth).validate_json((root / TRUTH).read_bytes())


# What generated embeddings must score: exact laws of cosines between noisy random directions.
#
# A person is a uniformly random direction u; an image is u + e, with e Gaussian of total variance a
# (a / D in each of D dimensions). Then, without any D-dimensional vector:
#
# - the cosine of two different people's vectors is that of two random directions on the sphere;
# - the cosine of two vectors of one person is cos θ1 cos θ2 + c sin θ1 sin θ2, where θ is the angle
# of a vector to u and c the cosine of two random directions of one dimension less.


_GRID = 400_001


class SphereCosine:
    """The cosine between two independent random directions in `dim` dimensions."""

    def __init__(self, dim: int) -> None:
        if dim < 3:
            raise ValueError(f"the law is written for at least 3 dimensions, got {dim}")
        angles = np.linspace(0.0, np.pi, _GRID)
        density = np.sin(angles) ** (dim - 2)
        # Summed from the pole, so that far tails keep their relative precision.
        mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        self._above = mass / mass[-1]
        self._angles = angles

    def above(self, score: npt.ArrayLike) -> Floats:
        """The chance of a cosine of at least `score`."""
        angle = np.arccos(np.clip(np.asarray(score, dtype=np.float64), -1.0, 1.0))
        return np.asarray(np.interp(angle, self._angles, self._above), dtype=np.float64)

    def threshold(self, chance: float) -> float:
        """The score that is reached with this chance."""
        return float(np.cos(np.interp(chance, self._above, self._angles)))


def genuine_scores(left: Floats, right: Floats, *, dim: int, rng: np.random.Generator) -> Floats:
    """Cosines of pairs of one person's vectors; left, right: (n,) their noise variances a."""
    cosines = []
    for noise in (left, right):
        along = 1.0 + rng.standard_normal(noise.size) * np.sqrt(noise / dim)
        across = noise / dim * rng.chisquare(dim - 1, noise.size)
        cosines.append(along / np.sqrt(along**2 + across))
    first = rng.standard_normal(left.size)
    between = first / np.sqrt(first**2 + rng.chisquare(dim - 2, left.size))
    sines = [np.sqrt(1.0 - cosine**2) for cosine in cosines]
    scores: Floats = cosines[0] * cosines[1] + between * sines[0] * sines[1]
    return scores


@dataclass(frozen=True)
class Truth:
    """The expected numbers of one generated set; keys are the names that results print.

    thresholds, accepted: the share of genuine pairs expected at or above each threshold
    """

    dim: int
    expected: dict[str, float]
    thresholds: tuple[float, ...]
    accepted: tuple[float, ...]


def truth_of(expected: dict[str, float], scores: Floats, *, dim: int, points: int = 400) -> Truth:
    thresholds = np.linspace(-0.2, 1.0, points)
    rising = np.sort(scores)
    accepted = 1.0 - np.searchsorted(rising, thresholds, side="left") / rising.size
    return Truth(dim, expected, tuple(thresholds.tolist()), tuple(accepted.tolist()))


def accepted_at(scores: Floats, threshold: float) -> float:
    return float(np.mean(scores >= threshold))


def first_among(scores: Floats, law: SphereCosine, others: int, *, at_least: float = -1.0) -> float:
    """The share that beats `others` independent strangers and reaches a threshold."""
    wins = np.exp(others * np.log1p(-np.minimum(law.above(scores), 1.0 - 1e-12)))
    return float(np.mean(np.where(scores >= at_least, wins, 0.0)))
