"""MegaFace: FaceScrub probes found again among up to a million strangers, and verified.

Identification: every ordered pair of two images of one person is a trial; the one is the probe, the
other its only mate in a gallery that holds the distractors besides. Verification: the same pairs
are the genuine ones, every probe with every distractor the impostor ones. A distractor with the
mate's score stands before it.

On disk: the devkit's templatelists/ and, for a model, the crops in facescrub/ and megaface/ below
the root; saved embeddings are tables or feature files of these names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.embedding_files import strip_noise_column
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.protocols.protocol import (
    Embeddings,
    ImageList,
    ListedFiles,
    Part,
    Protocol,
    ProtocolResult,
    RateCurve,
    Roc,
    View,
    cmc_view,
    strictest,
)
from sphereface2.evaluation.search import dot_products, scan
from sphereface2.evaluation.thresholds import Measure, Scores, Trials, kept_for
from sphereface2.evaluation.uncertainty import rate_of
from sphereface2.files import parse_json
from sphereface2.models.embedder import Float32, Vectors, check_same_width, check_table, unit_rows
from sphereface2.workers import Progress, first_of, unseen

Mask = npt.NDArray[np.bool_]
NoisyProbes = Literal["removed", "replaced by their identity's centre"]
REMOVED: NoisyProbes = "removed"
CENTRED: NoisyProbes = "replaced by their identity's centre"
SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
FPR_TARGETS = (1e-6, 1e-5, 1e-4)
_HEADLINE = 1e-6  # the FPR that papers quote first
_LIST = "megaface_features_list.json_"

_PAIRS = 65_536  # trials per block when ranks are counted


@dataclass(frozen=True)
class MegaFaceResult(ProtocolResult):
    """Rates of the FaceScrub trials against the distractors.

    sizes: distractors behind each of `rank_1` (without the noisy ones)
    cmc[k-1]: the rate at rank k against all distractors
    """

    probes: int
    people: int
    distractors: int
    noisy_probes: int
    noisy_distractors: int
    sizes: tuple[int, ...]
    rank_1: tuple[Measure, ...]
    cmc: tuple[float, ...]
    tpr: tuple[Measure, ...]
    roc: RocPoints

    def view(self) -> View:
        at = self.tpr[0].at if self.tpr else None
        curves = [cmc_view(self.protocol, self.cmc, ())]
        if len(self.sizes) > 1:
            growth = RateCurve(
                title=self.protocol,
                x_label="distractors",
                y_label="rank 1 (%)",
                x=self.sizes,
                y=[measure.rate.value for measure in self.rank_1],
                marks=list(zip(self.sizes, self.rank_1, strict=True)),
            )
            curves.append(growth)
        part = Part(
            self.protocol,
            measures=self.rank_1 + self.tpr,
            headline=[self.rank_1[-1], *strictest(self.tpr, target=_HEADLINE)],
            rocs=[Roc(self.roc, self.tpr, self.tpr[0].rate.trials, at.impostors)] if at else [],
            curves=curves,
        )
        return View(
            [part],
            f"{self.probes:,} probes of {self.people:,} people, {self.distractors:,} distractors",
        )


@dataclass(kw_only=True)
class MegaFace(Protocol[MegaFaceResult]):
    """MegaFace's two challenges; `refined` leaves out what the noise lists in the root name."""

    name: ClassVar[str] = "megaface"

    distractors: Annotated[int | None, "how many; by default those of the largest list"] = None
    refined: Annotated[bool, "leave out what the noise lists name"] = False
    noisy_probes: Annotated[
        Literal["removed", "centre"] | None,
        "with --refined, 'removed' or, as InsightFace, 'centre'",
    ] = None
    _lists: MegaFaceSet = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.noisy_probes is not None and not self.refined:
            raise ValueError(
                "--noisy-probes is for --protocol megaface --refined: without it no probe is known "
                "as noisy"
            )

    def read(self, root: Path) -> list[ImageList]:
        folder = root / "templatelists" if (root / "templatelists").is_dir() else root
        sizes = [
            int(words[-2])
            for path in folder.glob(f"{_LIST}*_1")
            if (words := path.name.split("_"))[-2].isdigit()
        ]
        if not sizes:
            raise FileNotFoundError(
                f"{root} has no templatelists/{_LIST}N_1; give the folder that holds templatelists/"
            )
        kinds = ("facescrub", "megaface")
        noises = [root / f"{kind}_noises.txt" if self.refined else None for kind in kinds]
        self._lists = read_megaface(
            root,
            size=max(sizes) if self.distractors is None else self.distractors,
            probe_noises=noises[0],
            distractor_noises=noises[1],
        )
        named = (self._lists.probe_names, self._lists.distractor_names)
        return [
            ImageList(kind, names, partial(ListedFiles, root / kind, names))
            for kind, names in zip(kinds, named, strict=True)
        ]

    def measure(self, embeddings: Embeddings) -> MegaFaceResult:
        probes, others = embeddings["facescrub"], embeddings["megaface"]
        listed = self._lists
        distractors, marked = strip_noise_column(others.folded)
        return megaface(
            strip_noise_column(probes.folded)[0],
            listed.people[probes.present],
            distractors,
            noisy_probes=listed.noisy_probes[probes.present] if self.refined else None,
            noisy_distractors=listed.noisy_distractors[others.present] | marked,
            noisy_probes_are=CENTRED if self.noisy_probes == "centre" else REMOVED,
            name="megaface, refined" if self.refined else "megaface",
            progress=embeddings.progress,
        )


def megaface(
    probes: Vectors,
    people: npt.ArrayLike,
    distractors: Vectors,
    *,
    sizes: Sequence[int] = SIZES,
    fpr_targets: Sequence[float] = FPR_TARGETS,
    longest_rank: int = 100,
    noisy_probes: Mask | None = None,
    noisy_distractors: Mask | None = None,
    noisy_probes_are: NoisyProbes = REMOVED,
    name: str = "megaface",
    progress: Progress = unseen,
) -> MegaFaceResult:
    """Identification and verification in one pass over the distractors.

    distractors: (n, D), in the order of the list, best memory-mapped: they are read block by block
    sizes: numbers of distractors, each the first so many of the list; larger ones than there are
    count as all
    noisy_probes, noisy_distractors: what a clean list says is mislabelled; distractors are left out
    noisy_probes_are: "removed", or InsightFace's "replaced by their identity's centre", which makes
    the trial easy and so flatters the result
    """
    names = np.asarray(people)
    check_table(probes, source=f"{name} probes", rows=names.size)
    check_table(distractors, source=f"{name} distractors")
    check_same_width(probes, distractors, sources=("probes", "distractors"))
    dirty = _mask(noisy_probes, names.size, what=f"{name} probes")
    skipped = _mask(noisy_distractors, len(distractors), what=f"{name} distractors")
    unit = unit_rows(probes, source=f"{name} probes")
    if noisy_probes_are == CENTRED:
        unit = _centred(unit, names, dirty)
    elif noisy_probes_are == REMOVED:
        unit, names = unit[~dirty], names[~dirty]
    else:
        raise ValueError(
            f"noisy_probes_are must be '{REMOVED}' or '{CENTRED}', got '{noisy_probes_are}'"
        )
    left, right = same_person_pairs(names)
    if not left.size:
        raise ValueError(f"{name}: no person has two probe images; there is nothing to find again")
    reach = sorted({min(size, len(distractors)) for size in sizes} | {len(distractors)})
    impostors = unit.shape[0] * int(np.count_nonzero(~skipped))
    if not impostors:
        raise ValueError(f"{name}: no distractor is left")
    strangers = scan(
        unit,
        distractors,
        reach=reach,
        skipped=skipped,
        keep=longest_rank,
        keep_all=kept_for(fpr_targets, impostors),
        source=f"{name} distractors",
        progress=progress,
    )
    genuine = dot_products(unit, left, right)
    trials = Trials(genuine, strangers.highest, impostors)
    whose = names[left]
    clean = [int(np.count_nonzero(~skipped[:size])) for size in reach]
    shown = [number for number, size in enumerate(clean) if size]
    return MegaFaceResult(
        protocol=name,
        conventions=(
            "a trial: a probe, one other image of its person, and the distractors",
            "sizes: the first so many distractors of the list",
            "a tied distractor stands before the mate",
            "FPR: probe and distractor pairs at or above the threshold",
            f"noisy probes: {noisy_probes_are if dirty.any() else 'none listed'}",
            f"noisy distractors: {'left out' if skipped.any() else 'none listed'}",
        ),
        probes=len(unit),
        people=len(np.unique(names)),
        distractors=clean[-1],
        noisy_probes=int(np.count_nonzero(dirty)),
        noisy_distractors=int(np.count_nonzero(skipped)),
        sizes=tuple(clean[number] for number in shown),
        rank_1=tuple(
            Measure(
                f"rank 1, {clean[number]:,} distractors",
                rate_of(genuine > strangers.best[number][left], whose),
            )
            for number in shown
        ),
        cmc=_cmc(genuine, strangers.top, left),
        tpr=trials.rates_at(fpr_targets, name="TPR@FPR", people=whose),
        roc=trials.thin_roc(),
    )


def same_person_pairs(
    people: npt.NDArray[Any],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Every ordered pair of two different images of one person."""
    order = np.argsort(people, kind="stable")
    _, counts = np.unique(people, return_counts=True)
    left, right = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
    for images in np.split(order, np.cumsum(counts)[:-1]):
        first, second = np.nonzero(~np.eye(images.size, dtype=np.bool_))
        left.append(images[first])
        right.append(images[second])
    return np.concatenate(left), np.concatenate(right)


def _cmc(genuine: Scores, top: Scores, left: npt.NDArray[np.intp]) -> tuple[float, ...]:
    """The share of trials with fewer than k distractors at or above the mate, for k = 1, 2, ..."""
    longest = top.shape[1]
    counts = np.zeros(longest + 1, dtype=np.int64)
    for start in range(0, genuine.size, _PAIRS):
        part = slice(start, start + _PAIRS)
        ahead = np.count_nonzero(top[left[part]] >= genuine[part, None], axis=1)
        counts += np.bincount(ahead, minlength=longest + 1)
    return tuple((np.cumsum(counts)[:longest] / genuine.size).tolist())


def _centred(unit: Float32, people: npt.NDArray[Any], dirty: Mask) -> Float32:
    lost = np.setdiff1d(people[dirty], people[~dirty])
    if lost.size:
        raise ValueError(
            f"{lost.size:,} people have noisy probes only, so they have no centre "
            f"({first_of(lost.tolist())}); use noisy_probes_are='{REMOVED}'"
        )
    centred = unit.copy()
    for person in np.unique(people[dirty]):
        centre = unit[(people == person) & ~dirty].sum(axis=0)
        centred[(people == person) & dirty] = centre / np.linalg.norm(centre)
    return centred


def _mask(mask: Mask | None, count: int, *, what: str) -> Mask:
    if mask is None:
        return np.zeros(count, dtype=np.bool_)
    if mask.shape != (count,) or mask.dtype != np.bool_:
        raise ValueError(f"{what}: the mask of noisy ones must be {count:,} bools")
    return mask


@dataclass(frozen=True, eq=False)
class MegaFaceSet:
    """The images of the protocol in the order of its lists, and which of them are mislabelled."""

    probe_names: Sequence[str]
    people: npt.NDArray[np.str_]
    distractor_names: Sequence[str]
    noisy_probes: npt.NDArray[np.bool_]
    noisy_distractors: npt.NDArray[np.bool_]


def read_megaface(
    lists: Path,
    *,
    size: int = 1_000_000,
    probe_noises: Path | None = None,
    distractor_noises: Path | None = None,
) -> MegaFaceSet:
    """The devkit's `templatelists` folder; the noise lists only if given (a refined protocol)."""
    folder = lists / "templatelists" if (lists / "templatelists").is_dir() else lists
    probe_path = folder / "facescrub_features_list.json"
    distractor_path = folder / f"megaface_features_list.json_{size}_1"
    names, people = _list(probe_path), _list(probe_path, key="id")
    if len(people) != len(names):
        raise ValueError(f"{probe_path} has {len(names):,} paths but {len(people):,} ids")
    distractors = _list(distractor_path)
    return MegaFaceSet(
        probe_names=names,
        people=np.array(people),
        distractor_names=distractors,
        noisy_probes=noisy(names, read_noises(probe_noises)),
        noisy_distractors=noisy(distractors, read_noises(distractor_noises)),
    )


def read_noises(path: Path | None) -> frozenset[str]:
    """The names in a noise list, one per line (behind its tab, if any); `#` starts a comment."""
    if path is None:
        return frozenset()
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; it should list the noisy images")
    text = path.read_text(encoding="utf-8", errors="surrogateescape")  # a name keeps its bytes
    lines = (line.strip() for line in text.splitlines())
    columns = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return frozenset(parts[1] if len(parts) > 1 else parts[0] for parts in columns)


def noisy(names: Sequence[str], noises: frozenset[str]) -> npt.NDArray[np.bool_]:
    """Which names a noise list holds: by the whole path or, as for FaceScrub, by the file name."""
    return np.array(
        [name in noises or name.rsplit("/", 1)[-1] in noises for name in names], dtype=np.bool_
    )


def _list(path: Path, *, key: str = "path") -> list[str]:
    if not path.is_file():
        near = sorted(each.name for each in path.parent.glob("*features_list*"))
        raise FileNotFoundError(
            f"{path} does not exist; the folder's lists are: {first_of(near) if near else 'none'}"
        )
    try:
        content = parse_json(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error.msg} in line {error.lineno}") from None
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, list) or not found:
        raise ValueError(f"{path} has no list '{key}'")
    return [str(each) for each in found]
