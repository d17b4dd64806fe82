"""TinyFace (Cheng, Zhu and Gong, 2018): faces of some twenty pixels found among distractors.

On disk, below ROOT or ROOT/Testing_Set (photos or aligned crops alike): Gallery_Match/ and Probe/
with files ID_n.jpg, and Gallery_Distractor/ with images of none of these people, at any depth.

As its official evaluation: every probe is compared with every gallery image, and images are ranked,
not people. A probe is found at rank k if an image of its ID is among the first k; its average
precision takes the precision between two ranks as the mean of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sphereface2.data.sources.folder import find_images
from sphereface2.evaluation.protocols.protocol import (
    Embedded,
    Embeddings,
    ImageList,
    ListedFiles,
    Part,
    Protocol,
    ProtocolResult,
    View,
    cmc_view,
)
from sphereface2.evaluation.thresholds import Measure, rank_name
from sphereface2.evaluation.uncertainty import mean_rate, rate_of
from sphereface2.models.embedder import check_same_width, unit_rows
from sphereface2.workers import first_of

LISTS = ("Gallery_Match", "Gallery_Distractor", "Probe")
RANKS = (1, 5, 10, 20, 50)

_SCORES = 1 << 24  # scores per block: 64 MB
_CMC = 100


@dataclass(frozen=True)
class TinyFaceResult(ProtocolResult):
    """Rates over the probes; cmc[k-1] is the rate at rank k.

    people: how many the probes show; mean_precision: the mean of the probes' average precisions
    """

    probes: int
    people: int
    gallery: int
    distractors: int
    ranks: tuple[Measure, ...]
    mean_precision: Measure
    cmc: tuple[float, ...]

    def view(self) -> View:
        part = Part(
            self.protocol,
            measures=(*self.ranks, self.mean_precision),
            headline=[*self.ranks[:2], self.mean_precision],
            curves=[cmc_view(self.protocol, self.cmc, self.ranks)],
        )
        return View(
            [part],
            f"{self.probes:,} probes of {self.people:,} people, {self.gallery:,} images of them in "
            f"the gallery, {self.distractors:,} distractors",
        )


@dataclass(kw_only=True)
class TinyFace(Protocol[TinyFaceResult]):
    """Rank-k identification of TinyFace's probes; there is nothing to choose."""

    name: ClassVar[str] = "tinyface"
    saved: ClassVar[Sequence[ImageList]] = [ImageList(name) for name in LISTS]

    def read(self, root: Path) -> list[ImageList]:
        place = root / "Testing_Set" if (root / "Testing_Set").is_dir() else root
        absent = [name for name in LISTS if not (place / name).is_dir()]
        if absent:
            raise FileNotFoundError(
                f"{place} has no folder {' and no '.join(absent)}; give the folder that holds "
                f"{', '.join(LISTS)}"
            )
        lists = []
        for name in LISTS:
            names = find_images(place / name).names
            if not names:
                raise ValueError(f"{place / name} holds no images")
            lists.append(ImageList(name, names, partial(ListedFiles, place / name, names)))
        return lists

    def measure(self, embeddings: Embeddings) -> TinyFaceResult:
        match, distractors, probe = (embeddings[name] for name in LISTS)
        enrolled, wanted = _ids(match), _ids(probe)
        alone = ~np.isin(wanted, enrolled)
        if alone.all():
            raise ValueError(
                f"none of the {wanted.size:,} probes shows a person of Gallery_Match; check that "
                "both name them alike, as ID_n.jpg"
            )
        check_same_width(match.folded, distractors.folded, sources=(match.source, "distractors"))
        check_same_width(match.folded, probe.folded, sources=(match.source, "probes"))
        parts = [unit_rows(each.folded, source=each.source) for each in (match, distractors)]
        gallery = np.concatenate(parts)
        unit = unit_rows(probe.folded, source=probe.source)
        ranks = np.full(wanted.size, len(gallery) + 1)
        precisions = np.zeros(wanted.size)
        step = max(1, _SCORES // len(gallery))
        for start in range(0, wanted.size, step):
            for row, scores in enumerate(unit[start : start + step] @ gallery.T, start=start):
                own = np.flatnonzero(enrolled == wanted[row])
                if own.size:
                    ranks[row], precisions[row] = _found(scores, own)
            embeddings.progress(min(start + step, wanted.size), wanted.size)
        unfound = f"{alone.sum():,} probes of nobody in the gallery count as not found"
        return TinyFaceResult(
            protocol=self.name,
            conventions=(
                "gallery images are ranked, not people; the first image of the right ID counts",
                "an image of someone else with the same score stands before the right one",
                "average precision: by trapezoids, as the official evaluation has it",
                *([unfound] if alone.any() else []),
            ),
            probes=wanted.size,
            people=np.unique(wanted).size,
            gallery=len(match.vectors),
            distractors=len(distractors.vectors),
            ranks=tuple(Measure(rank_name(k), rate_of(ranks <= k, wanted)) for k in RANKS),
            mean_precision=Measure("mAP", mean_rate([(precisions, wanted)])),
            cmc=tuple(float(np.mean(ranks <= k)) for k in range(1, min(_CMC, len(gallery)) + 1)),
        )


def _found(scores: npt.NDArray[np.float32], own: npt.NDArray[np.intp]) -> tuple[int, float]:
    """The rank of the first image of the right person, and the average precision over them all."""
    right = np.sort(scores[own])[::-1]
    others = scores.copy()
    others[own] = -np.inf
    count = np.arange(1, right.size + 1)
    place = count + np.array([np.count_nonzero(others >= score) for score in right])
    before = np.where(place > 1, (count - 1) / np.maximum(place - 1, 1), 1.0)
    return int(place[0]), float(np.mean((before + count / place) / 2))


def _ids(given: Embedded) -> npt.NDArray[np.str_]:
    """Who each image shows, by its name."""
    names = [name.rpartition("/")[2] for name in given.names]
    wrong = [name for name in names if not name.partition("_")[0].isdigit() or "_" not in name]
    if wrong:
        raise ValueError(
            f"{given.source}: {len(wrong):,} of {len(names):,} names are not ID_n.jpg "
            f"({first_of(wrong) if any(wrong) else 'they have none'})"
        )
    return np.array([name.partition("_")[0] for name in names])
