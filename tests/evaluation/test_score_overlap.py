"""The overlap of two distributions of scores, counted bin by bin."""

import pytest

from sphereface2.evaluation.experiment_results import overlap, shares
from sphereface2.evaluation.results import ScoreHistogram

EDGES = (-1.0, -0.5, 0.0, 0.5, 1.0)


def test_the_overlap_is_what_both_distributions_share() -> None:
    histogram = ScoreHistogram(edges=EDGES, genuine=(0, 1, 1, 2), impostor=(50, 30, 20, 0))
    shared = min(0, 0.5) + min(0.25, 0.3) + min(0.25, 0.2) + min(0.5, 0)
    assert overlap(histogram) == pytest.approx(shared)


def test_the_same_distribution_overlaps_wholly_and_an_empty_one_not_at_all() -> None:
    assert overlap(ScoreHistogram(EDGES, (1, 2, 3, 4), (10, 20, 30, 40))) == pytest.approx(1)
    assert overlap(ScoreHistogram(EDGES, (0, 0, 0, 0), (10, 20, 30, 40))) == 0
    assert shares((0, 0)) == [0, 0]
