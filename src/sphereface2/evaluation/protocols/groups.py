"""Error rates by group (RFW, or any attribute): how far one threshold treats groups alike.

On disk, as RFW has it below ROOT or ROOT/test: txts/GROUP/GROUP_pairs.txt, lists in LFW's form, and
data/GROUP/PERSON/PERSON_0001.jpg. Or any list of pairs with a csv of image,group lines.

In the manner of ISO/IEC 19795-10: FNMR and FMR of each group at one global threshold, the one that
keeps to a stated FMR over all impostor pairs, and the spread of both between groups.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs import is_pair_list, named_pairs, sets_of_word
from sphereface2.data.pairs.verification_set import ImageFiles, NamedPairs, without_ending
from sphereface2.evaluation.metrics import RocPoints, fold_accuracy
from sphereface2.evaluation.pair_scores import PairScores, score_pairs
from sphereface2.evaluation.protocols.protocol import (
    Compared,
    Embeddings,
    ImageList,
    ListedFiles,
    MeanOverFolds,
    Part,
    Protocol,
    ProtocolResult,
    Roc,
    Table,
    View,
)
from sphereface2.evaluation.thresholds import Measure, Trials, resolves
from sphereface2.evaluation.uncertainty import REPLICATES, Rate
from sphereface2.evaluation.verification import slices
from sphereface2.files import printable
from sphereface2.workers import first_of

ACROSS = "across groups"


@dataclass(frozen=True)
class GroupRates:
    """One group at the global threshold; rates are None where it has no such pairs.

    accuracy: at its own thresholds, mean and deviation over the folds, as RFW gives it
    """

    group: str
    genuine: int
    impostors: int
    fnmr: Rate | None
    fmr: Measure | None
    accuracy: tuple[float, float] | None


@dataclass(frozen=True)
class Spread:
    """How far a rate differs between groups; ratios are None where a group has no errors."""

    rate: str
    highest: str
    lowest: str
    ratio: float | None
    to_geometric_mean: float | None
    difference: float


@dataclass(frozen=True)
class GroupsResult(ProtocolResult):
    """FNMR and FMR by group; `overall` is the FNMR of all genuine pairs at the global threshold."""

    genuine: int
    impostors: int
    overall: Measure
    groups: tuple[GroupRates, ...]
    spreads: tuple[Spread, ...]
    roc: RocPoints

    @property
    def _over(self) -> str:
        """What the intervals are over: people, where they are known."""
        return "people" if "people" in self.overall.rate.interval.method else "pairs"

    def view(self) -> View:
        at = self.overall.at
        assert at is not None
        by_group = Table(
            title="error rates by group at one threshold (%)",
            columns=("group", "genuine", "impostor", "FNMR", "FMR", "accuracy, own threshold"),
            rows=tuple(
                (
                    each.group,
                    each.genuine,
                    each.impostors,
                    each.fnmr if at.resolved else replace(self.overall, name=each.group),
                    each.fmr,
                    None if each.accuracy is None else MeanOverFolds(*each.accuracy),
                )
                for each in self.groups
            ),
            note=f"under each rate its interval over {self._over}; "
            "the accuracy is that of ten folds",
        )
        spread = Table(
            title="spread between groups",
            columns=("rate", "highest", "lowest", "ratio", "to geometric mean", "difference (%)"),
            rows=tuple(
                (
                    each.rate,
                    each.highest,
                    each.lowest,
                    each.ratio,
                    each.to_geometric_mean,
                    100 * each.difference,
                )
                for each in self.spreads
            ),
            note="highest over lowest rate, highest over the geometric mean of all groups, highest "
            "less lowest; –: a group has no errors",
        )
        lines = {"FNMR": self.overall.rate.value, "FMR": at.reached}
        part = Part(
            self.protocol,
            measures=(self.overall,),
            headline=[self.overall] if at.resolved else [],
            tables=[by_group, *([spread] if self.spreads else [])],
            rocs=[Roc(self.roc, (), self.genuine, self.impostors)],
            compared=[
                Compared(f"{name} by group", list(rates.items()), lines[name])
                for name, rates in _rates(self.groups).items()
                if rates and at.resolved
            ],
        )
        return View(
            [part],
            f"{self.genuine:,} genuine and {self.impostors:,} impostor pairs of "
            f"{sum(each.group != ACROSS for each in self.groups)} groups",
        )


@dataclass(kw_only=True)
class Groups(Protocol[GroupsResult]):
    """Error rates by group at one threshold."""

    name: ClassVar[str] = "groups"

    fmr: Annotated[float, "the FMR over all impostor pairs that sets the threshold"] = 1e-3
    pairs: Annotated[Path | None, "a list of pairs below the root, in place of RFW's txts/"] = None
    groups: Annotated[Path | None, "with --pairs, a csv of image,group"] = None
    _listed: NamedPairs = field(init=False, repr=False)
    _group_of: npt.NDArray[np.str_] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.fmr < 1:
            raise ValueError(f"--fmr must lie between 0 and 1, got {self.fmr:g}")
        if (self.pairs is None) != (self.groups is None):
            raise ValueError(
                "--pairs LIST and --groups CSV go together: the csv says the group of each image "
                "of the list; leave both out for RFW's own layout"
            )

    def read(self, root: Path) -> list[ImageList]:
        place = root / "test" if (root / "test" / "txts").is_dir() else root
        if self.pairs is not None and self.groups is not None:
            if not is_pair_list(self.pairs):
                raise ValueError(f"--pairs: {self.pairs} is not a list of pairs")
            sources = {self.pairs: place}
            self._listed = named_pairs(self.pairs)
            self._group_of = _groups_of_csv(self.groups, self._listed.images)
        else:
            lists = sorted(place.glob("txts/*/*_pairs.txt"))
            if not lists:
                raise FileNotFoundError(
                    f"{root} has no txts/GROUP/GROUP_pairs.txt; give RFW's folder, or any list of "
                    "pairs with --pairs LIST --groups CSV"
                )
            sources = {path: place / "data" / path.parent.name for path in lists}
            self._listed, self._group_of = _joined(lists)
        return [ImageList("embeddings", self._listed.images, lambda: _open(sources, place))]

    def measure(self, embeddings: Embeddings) -> GroupsResult:
        given, listed = embeddings["embeddings"], self._listed
        there = given.present[listed.pairs].all(axis=1)
        left, right = self._group_of[listed.pairs[there]].T
        row_of = np.cumsum(given.present) - 1
        scored = score_pairs(
            self.name,
            np.asarray(given.folded),
            row_of[listed.pairs[there]],
            listed.same[there],
            listed.folds[there],
            people=None if listed.people is None else listed.people[given.present],
            attributes={"group": np.where(left == right, left, ACROSS)},
        )
        torn = np.flatnonzero(scored.same & (left != right))
        if torn.size:
            raise ValueError(
                f"{torn.size:,} genuine pairs have images of two groups (pair "
                f"{first_of((torn + 1).tolist())}); a person belongs to one"
            )
        return measure_groups(scored, fmr=self.fmr)


def measure_groups(scored: PairScores, *, fmr: float) -> GroupsResult:
    """FNMR and FMR by "group", the one attribute of scored pairs, at the global threshold."""
    same, values = scored.same, scored.attributes["group"]
    scores = scored.scores.astype(np.float32)
    trials = Trials.of(scores[same], scores[~same])
    people = None if scored.people is None else scored.people[same][:, 0]
    (accepted,) = trials.rates_at((fmr,), name="FNMR@FMR", people=people)
    at = accepted.at
    assert at is not None
    right = (scores >= np.float32(at.threshold)) == same
    found = slices(scored, right, replicates=REPLICATES)
    rows = []
    for each in sorted(found, key=lambda each: (each.value == ACROSS, each.value)):
        here = values == each.value
        impostors = int(np.count_nonzero(here & ~same))
        rate = each.false_accepts
        rows.append(
            GroupRates(
                group=each.value,
                genuine=int(np.count_nonzero(here & same)),
                impostors=impostors,
                fnmr=None if each.true_accepts is None else _complement(each.true_accepts),
                fmr=None
                if rate is None
                else Measure(
                    f"FMR, {each.value}",
                    rate,
                    # A group with fewer pairs cannot show a rate as low as the target.
                    replace(
                        at,
                        reached=rate.value,
                        impostors=impostors,
                        resolved=at.resolved and resolves(fmr, impostors),
                    ),
                ),
                accuracy=_accuracy(scored, here),
            )
        )
    return GroupsResult(
        protocol="groups",
        conventions=(
            f"one threshold for all: the FMR over all impostor pairs does not exceed {fmr:g}",
            "a pair is accepted if its cosine reaches the threshold",
            "FNMR: genuine pairs rejected; FMR: impostor pairs accepted; both of a group's own "
            "pairs",
            "intervals of groups: Wilson's, over pairs, for the people are not known"
            if scored.people is None
            else "intervals of groups: people drawn with replacement, the threshold held fixed, "
            "never narrower than Wilson's",
        ),
        genuine=trials.genuine.size,
        impostors=trials.impostors,
        overall=replace(accepted, rate=_complement(accepted.rate)),
        groups=tuple(rows),
        spreads=_spreads(rows) if at.resolved else (),
        roc=trials.thin_roc(),
    )


def _rates(rows: Sequence[GroupRates]) -> dict[str, dict[str, Rate]]:
    """FNMR and FMR of the groups that have such pairs, and for the FMR enough of them."""
    fmr = {row.group: row.fmr for row in rows if row.fmr is not None}
    return {
        "FNMR": {row.group: row.fnmr for row in rows if row.fnmr is not None},
        "FMR": {group: each.rate for group, each in fmr.items() if each.resolved},
    }


def _spreads(rows: Sequence[GroupRates]) -> tuple[Spread, ...]:
    found = []
    for name, rates in _rates([row for row in rows if row.group != ACROSS]).items():
        values = {group: rate.value for group, rate in rates.items()}
        if len(values) < 2:
            continue
        highest, lowest = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
        top, bottom = values[highest], values[lowest]
        mean = float(np.exp(np.mean(np.log(list(values.values()))))) if bottom > 0 else None
        found.append(
            Spread(
                rate=name,
                highest=highest,
                lowest=lowest,
                ratio=top / bottom if bottom > 0 else None,
                to_geometric_mean=None if mean is None else top / mean,
                difference=top - bottom,
            )
        )
    return tuple(found)


def _accuracy(scored: PairScores, here: npt.NDArray[np.bool_]) -> tuple[float, float] | None:
    same, folds = scored.same[here], scored.folds[here]
    if not (same.any() and not same.all() and np.unique(folds).size > 1):
        return None
    found = fold_accuracy(scored.scores[here], same, folds)
    return found.mean, found.std


def _complement(rate: Rate) -> Rate:
    interval = rate.interval
    return Rate(
        1 - rate.value,
        rate.trials - rate.successes,
        rate.trials,
        replace(interval, low=1 - interval.high, high=1 - interval.low),
    )


def _joined(lists: Sequence[Path]) -> tuple[NamedPairs, npt.NDArray[np.str_]]:
    """The lists of all groups as one, images named GROUP/PERSON/PERSON_0001, and their groups."""
    read = {path.parent.name: named_pairs(path) for path in lists}
    images = [f"{group}/{name}" for group, each in read.items() for name in each.images]
    counts = [len(each.images) for each in read.values()]
    starts = np.cumsum([0, *counts[:-1]])
    people = [name.rpartition("/")[0] for name in images]
    joined = NamedPairs(
        name="groups",
        images=images,
        pairs=np.concatenate([e.pairs + s for e, s in zip(read.values(), starts, strict=True)]),
        same=np.concatenate([each.same for each in read.values()]),
        folds=np.concatenate([each.folds for each in read.values()]),
        people=np.unique(people, return_inverse=True)[1].astype(np.int64),
    )
    return joined, np.repeat(list(read), counts)


def _open(sources: Mapping[Path, Path], root: Path) -> ImageFiles:
    """The image files of each list in its folder, all of which must be there."""
    paths: list[Path] = []
    for path, folder in sources.items():
        (found,) = sets_of_word(str(path), root=str(folder), missing="skip")
        assert isinstance(found.images, ImageFiles)
        paths += found.images.paths
    return ListedFiles(root, [os.path.relpath(path, root) for path in paths])


def _groups_of_csv(path: Path, images: Sequence[str]) -> npt.NDArray[np.str_]:
    """The group of each image of a list."""
    if not path.is_file():
        raise FileNotFoundError(f"--groups: there is no file {path}")
    # A name that is not UTF-8 keeps its bytes, as in the list of pairs.
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        try:
            rows = [[field.strip() for field in row] for row in csv.reader(file) if row]
        except csv.Error as error:
            raise ValueError(f"{path}: {error}; is a quotation mark not closed?") from None
    wrong = [number for number, row in enumerate(rows, start=1) if len(row) != 2 or not all(row)]
    if wrong:
        raise ValueError(f"{path}: expected image,group in each line, not so in {first_of(wrong)}")
    group_of = dict(rows)
    group_of |= {without_ending(name): group for name, group in rows}  # as LFW's lists name them
    lacking = [name for name in images if name not in group_of]
    if lacking:
        raise ValueError(
            f"{path}: {len(lacking):,} of {len(images):,} images of the list have no group "
            f"({first_of(lacking)})"
        )
    return np.array([printable(group_of[name]) for name in images])
