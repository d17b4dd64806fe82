"""The ROC of a method over the seeds that it was trained with: their mean and their deviation."""

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from sphereface2.evaluation.results import RocBand, RocPoints


@dataclass(frozen=True)
class MethodRoc:
    """The curves of one row of a table, one a seed; all over the same impostor pairs."""

    label: str
    rocs: tuple[RocPoints, ...]
    impostors: int


def mean_roc(seeds: Sequence[RocPoints]) -> RocPoints:
    """The mean TAR at every FAR that occurs, from 0 on; its points have no thresholds."""
    places = _places(seeds)
    means = [statistics.fmean(tar_at(roc, far) for roc in seeds) for far in places]
    return RocPoints(far=tuple(places), tar=tuple(means), threshold=())


def roc_band(seeds: Sequence[RocPoints], *, impostors: int) -> RocBand | None:
    """The mean less and plus the sample deviation, from one impostor on; None for a single seed."""
    if len(seeds) < 2:
        return None
    places = [far for far in _places(seeds) if far >= 1 / impostors]
    tars = [[tar_at(roc, far) for roc in seeds] for far in places]
    spread = [(statistics.fmean(some), statistics.stdev(some)) for some in tars]
    return RocBand(
        far=tuple(places),
        low=tuple(max(0.0, mean - wide) for mean, wide in spread),
        high=tuple(min(1.0, mean + wide) for mean, wide in spread),
    )


def tar_at(roc: RocPoints, far: float) -> float:
    """The TAR of the last point that does not exceed this FAR."""
    place = bisect_right(roc.far, far)
    return roc.tar[place - 1] if place else 0.0


def _places(seeds: Sequence[RocPoints]) -> list[float]:
    places = {0.0, *(far for roc in seeds for far in roc.far)}
    # Whoever accepts every genuine pair goes on to do so; a curve that was cut off ends there.
    if all(tar_at(roc, 1.0) == 1.0 for roc in seeds):
        places.add(1.0)
    return sorted(places)
