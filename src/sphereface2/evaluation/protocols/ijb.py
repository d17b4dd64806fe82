"""IJB-B and IJB-C: images aligned by the points of the list, pooled into templates; 1:1 and 1:N.

On disk: meta/ with the lists and, for a model, loose_crop/ with the images below the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from sphereface2.data.sources.image_list import AlignedFiles
from sphereface2.evaluation.ijb_files import IjbSet, image_folder, read_ijb
from sphereface2.evaluation.ijb_identification import (
    IjbIdentification,
    identify_legacy,
    identify_standard,
)
from sphereface2.evaluation.ijb_verification import FAR_TARGETS, IjbVerification, verify_templates
from sphereface2.evaluation.protocols.protocol import Embeddings, ImageList, Protocol
from sphereface2.evaluation.templates import Ids, ImageNorm, pool_templates
from sphereface2.evaluation.views import ProtocolResult, View
from sphereface2.models.unit_rows import Mirror, Vectors
from sphereface2.progress import Progress
from sphereface2.registry import nearest

PARTS = ("1:1", "1:N standard", "1:N legacy")
_PART_WORDS = {"standard": "1:N standard", "legacy": "1:N legacy", **{part: part for part in PARTS}}
_MIRRORS = {"given": "as extracted", "sum": "added to the image's", "first": "left out"}


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
            # 1:1 does without galleries, though who the templates show makes its intervals better.
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
    progress: Progress | None = None,
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
    verification = standard = legacy = None
    if "1:1" in parts:
        verification = verify_templates(
            templates, ijb.pairs, ijb.same, name=f"{ijb.name} 1:1", far_targets=far_targets,
            people=_people_of(ijb), progress=progress,
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
                progress=progress,
            )  # fmt: skip
        if "1:N legacy" in parts:
            legacy = identify_legacy(
                templates, ijb.galleries, ijb.probes, name=f"{ijb.name} 1:N legacy",
                progress=progress,
            )  # fmt: skip
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
        standard=standard,
        legacy=legacy,
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
