"""The engines under test, and the addresses at which each keeps its galleries."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sphereface2.galleries.gallery import NewPhoto

DIM = 16
MODEL = "0123456789abcdef" * 4


@contextmanager
def embedded(folder: Path) -> Iterator[str]:
    yield str(folder / "gallery")


ENGINES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {"embedded": embedded}


def unit(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    rows = rng.standard_normal((*shape, DIM)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows


def photo(rng: np.random.Generator, *, crop: int = 300, source: str = "") -> NewPhoto:
    return NewPhoto(unit(rng), rng.bytes(crop), source, {"blur": 0.5})
