"""Identification from folders: who of gallery/ is each face of probe/, and is it anyone at all?

On disk: ROOT/gallery/PERSON/* and ROOT/probe/PERSON/*. Saved: a folder with gallery.npy and
probe.npy, or one file whose names begin with gallery/ and probe/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.source import Faces
from sphereface2.evaluation.protocols.protocol import (
    Embedded,
    Embeddings,
    ImageList,
    Part,
    Protocol,
    ProtocolResult,
    View,
    cmc_view,
    strictest,
)
from sphereface2.evaluation.search import (
    FPIR_TARGETS,
    HEADLINE_FPIR,
    RANKS,
    GalleryPooling,
    cmc_curve,
    dir_at,
    rank_rates,
    search,
    tpir_at_fpirs,
)
from sphereface2.evaluation.thresholds import Measure
from sphereface2.models.embedder import Vectors
from sphereface2.workers import Progress, unseen

_POOLED = {
    "mean": "mean of their unit vectors, unit norm",
    "max": "the best of their scores",
}


@dataclass(frozen=True)
class IdentificationResult(ProtocolResult):
    """Rates over the probes of one gallery.

    ranks: closed set, over the mated probes; cmc[k-1] is the rate at rank k
    tpir: open set: right person first and at or above the threshold, at the false positive
    identification rate of the non-mated probes; empty if every probe is mated
    dir: detection and identification rate at rank 1 at given thresholds
    """

    pooling: str
    gallery_images: int
    gallery_people: int
    mated: int
    non_mated: int
    ranks: tuple[Measure, ...]
    tpir: tuple[Measure, ...]
    dir: tuple[Measure, ...]
    cmc: tuple[float, ...]

    def view(self) -> View:
        part = Part(
            self.protocol,
            measures=self.ranks + self.tpir + self.dir,
            headline=[self.ranks[0], *strictest(self.tpir, target=HEADLINE_FPIR)],
            curves=[cmc_view(self.protocol, self.cmc, self.ranks)],
        )
        return View(
            [part],
            f"{self.gallery_people:,} people in the gallery, {self.mated:,} mated and "
            f"{self.non_mated:,} non-mated probes",
        )


@dataclass(kw_only=True)
class Identification(Protocol[IdentificationResult]):
    """Probes of people who are not in the gallery are the non-mated ones.

    Where the model keeps calibrated thresholds that hold for such embeddings, the rates at them
    are given as well.
    """

    name: ClassVar[str] = "identification"
    saved: ClassVar[Sequence[ImageList]] = (
        ImageList("gallery", form="PERSON/IMAGE"),
        ImageList("probe", form="PERSON/IMAGE"),
    )

    pooling: Annotated[GalleryPooling, "a person's images by 'mean' or 'max'"] = "mean"

    def read(self, root: Path) -> list[ImageList]:
        return [_people_folder(root, "gallery"), _people_folder(root, "probe", "probes")]

    def measure(self, embeddings: Embeddings) -> IdentificationResult:
        gallery, probe = embeddings["gallery"], embeddings["probe"]
        calibration = embeddings.calibration
        holds = calibration is not None and calibration.flip == embeddings.flip
        result = identify(
            gallery.folded,
            _people(gallery),
            probe.folded,
            _people(probe),
            pooling=self.pooling,
            thresholds=calibration.resolved_thresholds if calibration and holds else (),
            progress=embeddings.progress,
        )
        if calibration is None or holds:
            return result
        how = "with" if calibration.flip else "without"
        left_out = f"calibrated thresholds left out: they hold {how} the mirror image's added"
        return replace(result, conventions=(*result.conventions, left_out))


def _people_folder(root: Path, *names: str) -> ImageList:
    found = [root / name for name in names if (root / name).is_dir()]
    if not found:
        raise FileNotFoundError(
            f"{root} has no folder {' or '.join(names)}; give the folder that holds gallery/PERSON/"
            " and probe/PERSON/"
        )
    source = ImageFolder(path=str(found[0]))
    numbers = range(len(source))
    return ImageList(
        names[0],
        [source.name(number) for number in numbers],
        partial(Faces, source),
        people=[source.person(number) for number in numbers],
    )


def _people(given: Embedded) -> npt.NDArray[np.str_]:
    if given.people is not None:
        return given.people
    if not all("/" in name for name in given.names):
        raise ValueError(
            f"{given.source}: it is not known whom it shows; put lines 'name person' into a .txt "
            "beside it"
        )
    return np.array([name.partition("/")[0] for name in given.names])


def identify(
    gallery: Vectors,
    gallery_people: npt.ArrayLike,
    probes: Vectors,
    probe_people: npt.ArrayLike,
    *,
    pooling: GalleryPooling = "mean",
    ranks: Sequence[int] = RANKS,
    fpir_targets: Sequence[float] = FPIR_TARGETS,
    thresholds: Sequence[float] = (),
    name: str = "identification",
    progress: Progress = unseen,
) -> IdentificationResult:
    """Every number of a gallery and its probes; people are compared by their given names."""
    found = search(
        gallery, gallery_people, probes, probe_people, pooling=pooling, progress=progress
    )
    mated = found.mated
    if not mated.any():
        raise ValueError(
            f"{name}: no one of the {mated.size:,} probes is in the gallery of "
            f"{found.gallery_people:,} people; check that both name people alike"
        )
    return IdentificationResult(
        protocol=name,
        conventions=(
            f"several gallery images of a person: {_POOLED[pooling]}",
            "a tied person stands before the right one",
            "FPIR: non-mated probes whose best score reaches the threshold",
        ),
        pooling=pooling,
        gallery_images=len(gallery),
        gallery_people=found.gallery_people,
        mated=int(np.count_nonzero(mated)),
        non_mated=int(np.count_nonzero(~mated)),
        ranks=rank_rates(found, ranks),
        tpir=tpir_at_fpirs(found, fpir_targets),
        dir=tuple(dir_at(found, threshold) for threshold in thresholds),
        cmc=cmc_curve(found),
    )
