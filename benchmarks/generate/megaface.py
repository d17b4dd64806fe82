"""A MegaFace of full size with known truth, laid out on disk as the devkit wants it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.generate.truth import (
    DRAWS,
    Floats,
    Ints,
    SphereCosine,
    Truth,
    accepted_at,
    first_among,
    genuine_scores,
    random_directions,
    truth_of,
    write_lines,
    write_truth,
    write_vectors,
)
from sphereface2.datatools.rendered_benchmarks import write_list
from sphereface2.evaluation.embedding_files import HEADER
from sphereface2.evaluation.protocols.megaface import same_person_pairs
from sphereface2.workers import Progress, unseen

FEATURE_ENDING = "_generated.bin"


@dataclass(frozen=True)
class MegaFaceSizes:
    """How large MegaFace is, and how many of its images a clean list calls noisy."""

    people: int = 530
    probes: int = 3_530
    distractors: int = 1_000_000
    noisy_probes: int = 25
    noisy_distractors: int = 686

    def scaled(self, scale: float) -> "MegaFaceSizes":
        people = max(8, round(self.people * scale))
        return MegaFaceSizes(
            people=people,
            probes=max(4 * people, round(self.probes * scale)),
            distractors=max(100, round(self.distractors * scale)),
            noisy_probes=max(2, round(self.noisy_probes * scale)),
            noisy_distractors=max(2, round(self.noisy_distractors * scale)),
        )


MEGAFACE = MegaFaceSizes()


def write_feature(path: Path, feature: npt.NDArray[np.float32]) -> None:
    """One feature file, as `read_feature` reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = HEADER.pack(feature.size, 1, 4, 5)
    path.write_bytes(head + np.ascontiguousarray(feature, dtype="<f4").tobytes())


def generate_megaface(
    root: Path,
    *,
    sizes: MegaFaceSizes = MEGAFACE,
    scale: float = 1.0,
    dim: int = 512,
    seed: int = 0,
    feature_files: bool = False,
    progress: Progress = unseen,
) -> Truth:
    """Write templatelists/, noise lists and features to `root`; the truth is that of clean lists.

    Features are tables (facescrub.npy, megaface.npy), or with `feature_files` a file per image as
    the devkit wants them, which is for small scales: a million files take longer than all the rest.
    Noisy probes show someone else than they say, noisy distractors one of the probes' people.
    """
    if scale != 1.0:
        sizes = sizes.scaled(scale)
    rng = np.random.default_rng(seed)
    person = np.sort(
        np.concatenate(
            [
                np.tile(np.arange(sizes.people), 2),
                rng.integers(0, sizes.people, sizes.probes - 2 * sizes.people),
            ]
        )
    )
    noise = np.exp(rng.normal(0.7, 0.6, sizes.probes))
    noisy_probes = np.sort(rng.choice(sizes.probes, sizes.noisy_probes, replace=False))
    noisy_distractors = np.sort(
        rng.choice(sizes.distractors, sizes.noisy_distractors, replace=False)
    )
    shown = person.copy()
    shown[noisy_probes] = sizes.people + np.arange(noisy_probes.size)  # strangers
    # A distractor is alone of its kind: a direction of its own, so plain noise.
    of_distractor = np.full(sizes.distractors, -1)
    of_distractor[noisy_distractors] = rng.integers(0, sizes.people, noisy_distractors.size)
    names = [f"Person_{p:04d}/Person_{p:04d}_{i}.png" for i, p in enumerate(person)]
    strangers = [f"{i % 1000:03d}/{i:08d}@N00/{i}_0.jpg" for i in range(sizes.distractors)]
    lists = root / "templatelists"
    write_list(
        lists / "facescrub_features_list.json",
        names,
        people=[name.split("/")[0] for name in names],
    )
    write_list(lists / f"megaface_features_list.json_{sizes.distractors}_1", strangers)
    write_lines(root / "facescrub_noises.txt", [names[i].split("/")[1] for i in noisy_probes])
    write_lines(root / "megaface_noises.txt", [strangers[i] for i in noisy_distractors])
    directions = random_directions(sizes.people + noisy_probes.size, dim, rng)
    write_vectors(root / "facescrub.npy", shown, noise, directions=directions, rng=rng)
    write_vectors(
        root / "megaface.npy", of_distractor, np.ones(sizes.distractors), directions=directions,
        rng=rng, progress=progress,
    )  # fmt: skip
    if feature_files:
        for kind, listed in (("facescrub", names), ("megaface", strangers)):
            table = np.load(root / f"{kind}.npy")
            for name, vector in zip(listed, table, strict=True):
                write_feature(root / kind / (name + FEATURE_ENDING), vector)
            (root / f"{kind}.npy").unlink()
    clean = np.setdiff1d(np.arange(sizes.probes), noisy_probes)
    strangers_left = sizes.distractors - noisy_distractors.size
    truth = _megaface_truth(person[clean], noise[clean], strangers_left, dim=dim, rng=rng)
    write_truth(root, truth)
    return truth


def _megaface_truth(
    person: Ints, noise: Floats, distractors: int, *, dim: int, rng: np.random.Generator
) -> Truth:
    law = SphereCosine(dim)
    left, right = same_person_pairs(person)
    repeats = -(-DRAWS // left.size)
    scores = np.concatenate(
        [genuine_scores(noise[left], noise[right], dim=dim, rng=rng) for _ in range(repeats)]
    )
    expected = {f"TPR@FPR={f:g}": accepted_at(scores, law.threshold(f)) for f in (1e-6, 1e-5, 1e-4)}
    expected["rank 1"] = first_among(scores, law, distractors)
    for size in (10, 100, 1_000, 10_000, 100_000):
        if size < distractors:
            expected[f"rank 1, first {size}"] = first_among(scores, law, size)
    return truth_of(expected, scores, dim=dim)
