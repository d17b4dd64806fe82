"""How much the scores of genuine and of impostor pairs lie over each other."""

from collections.abc import Sequence

from sphereface2.evaluation.results import ScoreHistogram


def overlap(histogram: ScoreHistogram) -> float:
    """The share that the genuine and the impostor scores have in common, from 0 to 1."""
    genuine, impostor = shares(histogram.genuine), shares(histogram.impostor)
    return sum(min(pair) for pair in zip(genuine, impostor, strict=True))


def shares(counts: Sequence[int]) -> list[float]:
    """Each count as a share of all; nothing but zeros if there are none."""
    total = max(1, sum(counts))
    return [count / total for count in counts]
