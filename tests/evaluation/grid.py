"""Embeddings whose scores tie exactly: four of eight entries are ±1/2, so cosines are quarters."""

import numpy as np
import numpy.typing as npt


def grid_vectors(count: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    vectors = np.zeros((count, 8), dtype=np.float32)
    for row in vectors:
        row[rng.choice(8, 4, replace=False)] = rng.choice([-0.5, 0.5], 4)
    return vectors
