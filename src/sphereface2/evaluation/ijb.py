"""IJB-B and IJB-C: from the embeddings of the images to 1:1 and 1:N results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sphereface2.evaluation.ijb_identification import (
    IjbIdentification,
    TemplateList,
    identify_legacy,
    identify_standard,
)
from sphereface2.evaluation.ijb_verification import FAR_TARGETS, IjbVerification, verify_templates
from sphereface2.evaluation.results import ProtocolResult
from sphereface2.evaluation.templates import Ids, ImageNorm, pool_templates
from sphereface2.evaluation.thresholds import Measure
from sphereface2.models.unit_rows import Mirror, Vectors

Stage = Callable[[str, int, int], None]  # what is being done, done, total
PARTS = ("1:1", "1:N standard", "1:N legacy")


@dataclass(frozen=True, eq=False)
class IjbSet:
    """The lists of IJB-B or IJB-C; images are numbered as in the list of names.

    landmarks: (n, 5, 2); detector_scores: (n,); templates, media: (n,) ids of each image
    pairs: (m, 2) template ids; same: (m,)
    """

    name: str
    image_names: Sequence[str]
    landmarks: npt.NDArray[np.float32]
    detector_scores: npt.NDArray[np.float32]
    templates: Ids
    media: Ids
    pairs: Ids
    same: npt.NDArray[np.bool_]
    galleries: tuple[TemplateList, ...]
    probes: TemplateList | None

    def __len__(self) -> int:
        return len(self.templates)

    def without(self, absent: npt.NDArray[np.bool_]) -> IjbSet:
        """The lists without these images, and without the templates that then have none."""
        left = self.templates[~absent]

        def listed(part: TemplateList) -> TemplateList:
            there = np.isin(part.templates, left)
            return TemplateList(part.name, part.templates[there], part.people[there])

        both = np.isin(self.pairs, left).all(axis=1)
        return replace(
            self,
            image_names=[
                name for name, out in zip(self.image_names, absent, strict=True) if not out
            ],
            landmarks=self.landmarks[~absent],
            detector_scores=self.detector_scores[~absent],
            templates=left,
            media=self.media[~absent],
            pairs=self.pairs[both],
            same=self.same[both],
            galleries=tuple(listed(gallery) for gallery in self.galleries),
            probes=None if self.probes is None else listed(self.probes),
        )


@dataclass(frozen=True)
class IjbResult(ProtocolResult):
    """All that was asked of one IJB set."""

    images: int
    verification: IjbVerification | None
    standard: IjbIdentification | None
    legacy: IjbIdentification | None

    @property
    def parts(self) -> tuple[ProtocolResult, ...]:
        found = (self.verification, self.standard, self.legacy)
        return tuple(part for part in found if part is not None)

    @property
    def measures(self) -> tuple[Measure, ...]:
        return tuple(measure for part in self.parts for measure in part.measures)


def evaluate_ijb(
    ijb: IjbSet,
    embeddings: Vectors,
    *,
    mirror: Mirror = "given",
    image_norm: ImageNorm = "kept",
    detector_weights: bool = False,
    parts: Sequence[str] = PARTS,
    far_targets: Sequence[float] = FAR_TARGETS,
    progress: Stage | None = None,
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
        progress=_stage(progress, "templates"),
    )
    conventions = (
        "template: mean within media, sum over media, unit norm",
        f"mirror image (F): {_MIRRORS[mirror]}",
        f"norm of an image's embedding (N): {image_norm}",
        f"detector score as weight (D): {'yes' if detector_weights else 'no'}",
    )
    verification = standard = legacy = None
    if "1:1" in parts:
        verification = verify_templates(
            templates, ijb.pairs, ijb.same, name=f"{ijb.name} 1:1", far_targets=far_targets,
            people=_people_of(ijb), progress=_stage(progress, "1:1"),
        )  # fmt: skip
    if "1:N standard" in parts or "1:N legacy" in parts:
        if not ijb.galleries or ijb.probes is None:
            raise ValueError(
                f"{ijb.name} has no gallery or probe list (*_1N_gallery_*.csv, "
                "*_1N_probe_mixed.csv); evaluate 1:1 only"
            )
        if "1:N standard" in parts:
            standard = identify_standard(
                templates, ijb.galleries, ijb.probes, name=f"{ijb.name} 1:N standard",
                progress=_stage(progress, "1:N standard"),
            )  # fmt: skip
        if "1:N legacy" in parts:
            legacy = identify_legacy(
                templates, ijb.galleries, ijb.probes, name=f"{ijb.name} 1:N legacy",
                progress=_stage(progress, "1:N legacy"),
            )  # fmt: skip
    return IjbResult(
        protocol=ijb.name,
        conventions=conventions,
        images=len(ijb),
        verification=verification,
        standard=standard,
        legacy=legacy,
    )


_MIRRORS = {
    "given": "as extracted",
    "sum": "added to the image's",
    "first": "left out",
}


def _people_of(ijb: IjbSet) -> tuple[Ids, Ids] | None:
    """Template ids and their people, from the lists that name people; None if there are none."""
    lists = [*ijb.galleries, *([ijb.probes] if ijb.probes is not None else [])]
    if not lists:
        return None
    return (
        np.concatenate([part.templates for part in lists]),
        np.concatenate([part.people for part in lists]),
    )


def _stage(progress: Stage | None, name: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    told = progress
    return lambda done, total: told(name, done, total)
