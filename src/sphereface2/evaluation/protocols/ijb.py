"""IJB-B and IJB-C: images aligned by the points of the list, pooled into templates; 1:1 and 1:N.

On disk: meta/ with the lists and, for a model, loose_crop/ with the images below the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from sphereface2.data.sources.image_list import AlignedFiles
from sphereface2.evaluation.metrics import RocPoints
from sphereface2.evaluation.protocols.ijb_files import IjbSet, image_folder, read_ijb
from sphereface2.evaluation.protocols.ijb_templates import (
    Ids,
    IjbIdentification,
    ImageNorm,
    Templates,
    identify_legacy,
    identify_standard,
    pair_scores,
    pool_templates,
    positions,
)
from sphereface2.evaluation.protocols.protocol import (
    Embeddings,
    Histogram,
    ImageList,
    Part,
    Protocol,
    ProtocolResult,
    Roc,
    View,
    strictest,
)
from sphereface2.evaluation.thresholds import Measure, Trials
from sphereface2.evaluation.verification import ScoreHistogram, score_histogram
from sphereface2.models.embedder import Mirror, Vectors
from sphereface2.registry import nearest
from sphereface2.workers import Progress, unseen

FAR_TARGETS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
_HEADLINE = 1e-4  # the FAR that papers quote first
PARTS = ("1:1", "1:N standard", "1:N legacy")
_PART_WORDS = {"standard": "1:N standard", "legacy": "1:N legacy", **{part: part for part in PARTS}}
_MIRRORS = {"given": "as extracted", "sum": "added to the image's", "first": "left out"}


@dataclass(frozen=True)
class IjbVerification(ProtocolResult):
    """TAR at FAR over the given template pairs."""

    templates: int
    genuine: int
    impostors: int
    tar_at_far: tuple[Measure, ...]
    roc: RocPoints
    histogram: ScoreHistogram

    def view(self) -> View:
        part = Part(
            self.protocol,
            measures=self.tar_at_far,
            headline=strictest(self.tar_at_far, target=_HEADLINE),
            rocs=[Roc(self.roc, self.tar_at_far, self.genuine, self.impostors)],
            histograms=[Histogram(self.histogram, self.tar_at_far)],
            conventions=self.conventions,
        )
        return View([part])


@dataclass(frozen=True)
class IjbResult(ProtocolResult):
    """All that was asked of one IJB set."""

    images: int
    verification: IjbVerification | None
    standard: IjbIdentification | None
    legacy: IjbIdentification | None

    def view(self) -> View:
        found = (self.verification, self.standard, self.legacy)
        parts = [part for each in found if each is not None for part in each.view().parts]
        return View(parts, f"{self.images:,} images")


@dataclass(kw_only=True)
class IjbC(Protocol[IjbResult]):
    """IJB-C."""

    name: ClassVar[str] = "ijb-c"

    part: Annotated[list[str] | None, "1:1, standard, legacy; may be repeated"] = None
    norm: Annotated[ImageNorm, "the norm of an image's embedding is 'kept' or 'unit'"] = "kept"
    detector_weights: Annotated[bool, "weigh images by the detector's score"] = False
    _lists: IjbSet = field(init=False, repr=False)

    def __post_init__(self) -> None:
        unknown = [word for word in self.part or () if word not in _PART_WORDS]
        if unknown:
            raise ValueError(
                f"unknown part '{unknown[0]}'{nearest(unknown[0], _PART_WORDS)} (known: "
                f"{', '.join(_PART_WORDS)})"
            )

    @property
    def parts(self) -> tuple[str, ...]:
        chosen = {_PART_WORDS[word] for word in self.part or PARTS}
        return tuple(part for part in PARTS if part in chosen)

    def read(self, root: Path) -> list[ImageList]:
        try:
            self._lists = read_ijb(root, name=self.name)
        except FileNotFoundError:
            # 1:1 needs no galleries, but knowing who the templates show improves its intervals.
            if self.parts != ("1:1",):
                raise
            self._lists = read_ijb(root, name=self.name, identification=False)
        ijb = self._lists
        return [
            ImageList(
                "embeddings",
                ijb.image_names,
                lambda: AlignedFiles(
                    image_folder(root, name=self.name), ijb.image_names, ijb.landmarks
                ),
            )
        ]

    def measure(self, embeddings: Embeddings) -> IjbResult:
        given, ijb = embeddings["embeddings"], self._lists
        return evaluate_ijb(
            ijb if given.present.all() else ijb.without(~given.present),
            given.vectors,
            mirror=given.mirror,
            image_norm=self.norm,
            detector_weights=self.detector_weights,
            parts=self.parts,
            progress=embeddings.progress,
        )


class IjbB(IjbC):
    """IJB-B; the options are those of IJB-C."""

    name: ClassVar[str] = "ijb-b"


def evaluate_ijb(
    ijb: IjbSet,
    embeddings: Vectors,
    *,
    mirror: Mirror = "given",
    image_norm: ImageNorm = "kept",
    detector_weights: bool = False,
    parts: Sequence[str] = PARTS,
    far_targets: Sequence[float] = FAR_TARGETS,
    progress: Progress = unseen,
) -> IjbResult:
    """Pool the embeddings of all images (in the order of the list) and run the protocols asked for.

    mirror, image_norm, detector_weights: the variants F, N and D, as in `pool_templates`
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ValueError(f"unknown part '{unknown[0]}' of {ijb.name} (known: {', '.join(PARTS)})")
    templates = pool_templates(
        embeddings,
        ijb.templates,
        ijb.media,
        weights=ijb.detector_scores if detector_weights else None,
        mirror=mirror,
        image_norm=image_norm,
        source=f"{ijb.name} embeddings",
        progress=progress,
    )
    verification = None
    if "1:1" in parts:
        verification = verify_templates(
            templates, ijb.pairs, ijb.same, name=f"{ijb.name} 1:1", far_targets=far_targets,
            people=_people_of(ijb), progress=progress,
        )  # fmt: skip
    searched: dict[str, IjbIdentification] = {}
    for part, identify in (("1:N standard", identify_standard), ("1:N legacy", identify_legacy)):
        if part not in parts:
            continue
        if not ijb.galleries or ijb.probes is None:
            raise ValueError(
                f"{ijb.name} has no gallery or probe list (*_1N_gallery_*.csv, "
                "*_1N_probe_mixed.csv); evaluate 1:1 only"
            )
        searched[part] = identify(
            templates, ijb.galleries, ijb.probes, name=f"{ijb.name} {part}", progress=progress
        )
    return IjbResult(
        protocol=ijb.name,
        conventions=(
            "template: mean within media, sum over media, unit norm",
            f"mirror image (F): {_MIRRORS[mirror]}",
            f"norm of an image's embedding (N): {image_norm}",
            f"detector score as weight (D): {'yes' if detector_weights else 'no'}",
        ),
        images=len(ijb),
        verification=verification,
        standard=searched.get("1:N standard"),
        legacy=searched.get("1:N legacy"),
    )


def _people_of(ijb: IjbSet) -> tuple[Ids, Ids] | None:
    """Template ids and their people, from the lists that name people; None if there are none."""
    lists = [*ijb.galleries, *([ijb.probes] if ijb.probes is not None else [])]
    if not lists:
        return None
    return (
        np.concatenate([part.templates for part in lists]),
        np.concatenate([part.people for part in lists]),
    )


def verify_templates(
    templates: Templates,
    pairs: Ids,
    same: npt.NDArray[np.bool_],
    *,
    name: str,
    far_targets: Sequence[float] = FAR_TARGETS,
    people: tuple[Ids, Ids] | None = None,
    progress: Progress = unseen,
) -> IjbVerification:
    """1:1 over (m, 2) template ids; `people` is (template ids, their people) where known."""
    genuine_count = int(np.count_nonzero(same))
    impostors = len(same) - genuine_count
    if len(pairs) != len(same) or not genuine_count or not impostors:
        raise ValueError(
            f"{name}: {len(pairs):,} pairs with {genuine_count:,} genuine and {impostors:,} "
            "impostor labels; verification needs a label each, and both kinds"
        )
    left, right = (templates.where(pairs[:, side], source=name) for side in (0, 1))
    scores = pair_scores(templates, left, right, progress=progress)
    whose = _whose(templates, left[same], people)
    trials = Trials.of(scores[same], scores[~same])
    return IjbVerification(
        protocol=name,
        conventions=("accepted if cosine >= threshold", "TAR where FAR does not exceed the target"),
        templates=len(templates.ids),
        genuine=genuine_count,
        impostors=impostors,
        tar_at_far=trials.rates_at(far_targets, name="TAR@FAR", people=whose),
        roc=trials.thin_roc(),
        histogram=score_histogram(trials.genuine, trials.highest),
    )


def _whose(
    templates: Templates, rows: npt.NDArray[np.int32], people: tuple[Ids, Ids] | None
) -> Ids | None:
    """The person of each genuine pair; None if that of any is unknown."""
    if people is None:
        return None
    ids, names = people
    order = np.argsort(ids, kind="stable")
    places = positions(ids[order], templates.ids[rows])
    return None if (places < 0).any() else names[order][places]
