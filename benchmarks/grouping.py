"""Groups of faces against the people they show: ours beside the methods of other tools.

    python -m benchmarks.grouping MODEL CROPS.npy     # of people it is not calibrated on
    python -m benchmarks.grouping --faces 100000      # how long, and in how much memory

The file is one of `sphereface2 extract`, with the people beside it. All methods get the thresholds
of the model's calibration: connected components and DBSCAN as photo tools use them, Chinese
whispers as dlib has it.
"""

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from benchmarks.clustering import judge_groups
from sphereface2.datatools.group import default_false_accepts
from sphereface2.datatools.group.clusters import Apart, cluster
from sphereface2.evaluation.calibration import Calibration
from sphereface2.evaluation.decision import one_in, threshold_for
from sphereface2.evaluation.scoring import Subject
from sphereface2.models.embedder import Float32, unit_rows
from sphereface2.models.folder import find_model, stored_calibration

RATES = (1e-2, 1e-3, 1e-4)
_ROUNDS = 20
Groups = npt.NDArray[np.int64]


def average_linkage(unit: Float32, threshold: float) -> Groups:
    """Ours."""
    groups = np.empty(len(unit), np.int64)
    for number, faces in enumerate(cluster(unit, threshold, Apart(np.arange(len(unit))))):
        groups[faces] = number
    return groups


def single_linkage(unit: Float32, threshold: float) -> Groups:
    return np.asarray(connected_components(csr_matrix(unit @ unit.T >= threshold))[1], np.int64)


def dbscan(unit: Float32, threshold: float, *, fewest: int = 3) -> Groups:
    """Core faces have `fewest` near ones, themselves included; others join their nearest core."""
    scores = unit @ unit.T
    near = scores >= threshold
    core = near.sum(axis=1) >= fewest
    groups = np.asarray(connected_components(csr_matrix(near & core & core[:, None]))[1], np.int64)
    for face in np.flatnonzero(~core):
        cores = np.flatnonzero(near[face] & core)
        if len(cores):
            groups[face] = groups[cores[np.argmax(scores[face, cores])]]
    return groups


def chinese_whispers(unit: Float32, threshold: float) -> Groups:
    """Each face takes the group that its near faces have most, in random order, again and again."""
    scores = unit @ unit.T
    np.fill_diagonal(scores, -1)
    near = [np.flatnonzero(line >= threshold) for line in scores]
    groups = np.arange(len(unit))
    generator = np.random.default_rng(0)
    for _ in range(_ROUNDS):
        before = groups.copy()
        for face in generator.permutation(len(unit)).tolist():
            if len(near[face]):
                votes = np.bincount(groups[near[face]], scores[face, near[face]])
                groups[face] = int(votes.argmax())
        if np.array_equal(groups, before):
            break
    return groups


METHODS: dict[str, Callable[[Float32, float], Groups]] = {
    "average linkage (ours)": average_linkage,
    "connected components": single_linkage,
    "DBSCAN, 3": dbscan,
    "Chinese whispers": chinese_whispers,
}


def compare(model: Path, embeddings: Path) -> None:
    """Print pairwise and BCubed F1 (precision/recall) of each method, in percent."""
    stored = stored_calibration(find_model(model))
    if stored is None:
        raise SystemExit(f"{model} is not calibrated")
    calibration = Calibration.from_mapping(stored)
    saved = Subject(None, embeddings, Path()).read(embeddings)
    if saved.people is None:
        raise SystemExit(f"{embeddings} has no people beside it")
    unit = unit_rows(np.asarray(saved.vectors), source=str(embeddings))
    default = default_false_accepts(len(unit), calibration)
    people = len(set(saved.people.tolist()))
    print(f"{len(unit):,} faces of {people:,} people; our default rate: {one_in(default)}")
    for rate in sorted({*RATES, default}, reverse=True):
        threshold = threshold_for(calibration, rate)
        print(f"\nfalse accepts {one_in(rate)}, threshold {threshold:.3f}")
        for name, method in METHODS.items():
            found = judge_groups(method(unit, threshold), saved.people)
            shown = "   ".join(
                f"{what} {100 * each.f1:5.1f} ({100 * each.precision:.0f}/{100 * each.recall:.0f})"
                for what, each in (("pairwise", found.pairwise), ("BCubed", found.bcubed))
            )
            print(f"  {name:24}{shown}")


def measure(faces: int, dim: int, *, each: int = 10) -> None:
    """Print the time and the memory of grouping generated faces, `each` of a person."""
    generator = np.random.default_rng(0)
    unit = np.empty((faces, dim), np.float32)
    people = np.arange(faces) // each
    for first in range(0, faces, each):
        centre = generator.normal(size=dim)
        rows = centre + 0.8 * generator.normal(size=(min(each, faces - first), dim))
        unit[first : first + each] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    before = _memory()
    wall, processor = time.perf_counter(), time.process_time()
    groups = average_linkage(unit, 0.4)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    score = judge_groups(groups, people).bcubed.f1
    print(
        f"{faces:,} faces of {dim} dimensions: {processor:.0f} s of processor time ({wall:.0f} s "
        f"by the clock), {_memory() - before:.0f} MB beyond the embeddings' "
        f"{unit.nbytes / 1e6:.0f} MB; BCubed F1 {score:.4f}"
    )


def _memory() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main(arguments: Any = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("embeddings", type=Path, nargs="?")
    parser.add_argument("--faces", type=int, help="instead: measure on so many generated faces")
    parser.add_argument("--dim", type=int, default=512)
    given = parser.parse_args(arguments)
    if given.faces:
        measure(given.faces, given.dim)
    elif given.embeddings is None:
        parser.error("give MODEL and CROPS.npy, or --faces")
    else:
        compare(given.model, given.embeddings)


if __name__ == "__main__":
    main()
