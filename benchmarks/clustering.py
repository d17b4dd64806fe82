"""How well groups of images match people: pairwise and BCubed precision, recall and F1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Agreement:
    """Precision: what lies together belongs together; recall: what belongs together lies so."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean; 0 where both are."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(frozen=True)
class ClusteringScores:
    """pairwise: over pairs of images, so that large people count most.

    bcubed: over images, each judged within its own group (Bagga and Baldwin 1998).
    """

    pairwise: Agreement
    bcubed: Agreement


def judge_groups(groups: npt.ArrayLike, people: npt.ArrayLike) -> ClusteringScores:
    """Compare the group of each of n images with the person that it shows.

    Without a pair in one group nothing can be wrong: the precision is 1; likewise the recall.
    """
    found, true = np.asarray(groups), np.asarray(people)
    if found.ndim != 1 or found.shape != true.shape or not found.size:
        raise ValueError(
            f"groups and people must be two lists of one length, got {found.shape} and {true.shape}"
        )
    _, group = np.unique(found, return_inverse=True)
    _, person = np.unique(true, return_inverse=True)
    cells, shared = np.unique(np.stack([group, person]), axis=1, return_counts=True)
    in_group, of_person = np.bincount(group)[cells[0]], np.bincount(person)[cells[1]]
    right = _pairs(shared)
    return ClusteringScores(
        pairwise=Agreement(
            _share(right, _pairs(np.bincount(group))), _share(right, _pairs(np.bincount(person)))
        ),
        bcubed=Agreement(
            float(np.sum(shared / in_group * shared)) / found.size,
            float(np.sum(shared / of_person * shared)) / found.size,
        ),
    )


def _pairs(counts: npt.NDArray[np.int64]) -> int:
    return int(np.sum(counts * (counts - 1)) // 2)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
