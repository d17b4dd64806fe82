"""Sharded over 1, 2 and 3 real processes, every head gives one and the same answer."""

import itertools
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sphereface2.heads import build_head
from sphereface2.heads.sharding import class_range, class_shards
from tests.distributed.ranks import run_ranks
from tests.distributed.sharding_worker import CASES, VARIANTS, WORLDS, results

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    run_ranks("tests.distributed.sharding_worker", folder, ranks=3, meetings=len(WORLDS))
    return folder


@cache
def loaded(path: Path) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = torch.load(path)
    return found


def whole(folder: Path, world: int, dtype: str, key: str) -> dict[str, Tensor]:
    """The ranks' results put together: rows and weights in order, the rest equal on all."""
    ranks = [loaded(folder / f"{world}-{rank}-{dtype}.pt")[key] for rank in range(world)]
    joined = {}
    for name in ranks[0]:
        parts = [rank[name] for rank in ranks]
        is_cut = name in ("x", "weight") or name.startswith(("pairs.weight", "pairs.filled"))
        if is_cut or (name == "bias" and parts[0].ndim):
            joined[name] = torch.cat(parts)
        else:
            assert all(torch.equal(part, parts[0]) for part in parts), f"{key}: ranks differ"
            joined[name] = parts[0]
    return joined


@pytest.mark.parametrize(("world", "dtype"), CASES)
def test_loss_and_gradients_do_not_depend_on_the_ranks(
    folder: Path, world: int, dtype: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        alone = results(0, 1, getattr(torch, dtype), CASES[world, dtype])
    assert len(alone) == len(CASES[world, dtype]) * len(VARIANTS)
    for key, expected in alone.items():
        found = whole(folder, world, dtype, key)
        for name, value in expected.items():
            # Relative to the tensor's own size: single entries may cancel to almost nothing.
            scale = max(float(torch.linalg.vector_norm(value)), 1e-6)
            error = float(torch.linalg.vector_norm(found[name] - value))
            limit = TOLERANCE[dtype]
            if name.endswith("seen"):  # means of cosines, summed in float32, of order one
                scale, limit = max(scale, 1.0), TOLERANCE["float32"]
            assert error <= limit * scale, f"{key}: {name} is off by {error / scale:.1e}"


def test_more_ranks_than_classes_are_refused() -> None:
    with (
        pytest.raises(ValueError, match="3 classes cannot be spread over 4 ranks: use at most 3"),
        class_shards(0, 4),
    ):
        build_head("sphereface2-c", 8, 3)


@pytest.mark.parametrize("classes", [4, 9, 10, 100_003])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_class_is_held_once(classes: int, world: int) -> None:
    ranges = []
    for rank in range(world):
        with class_shards(rank, world):
            ranges.append(class_range(classes))
    assert ranges[0][0] == 0
    assert ranges[-1][1] == classes
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
