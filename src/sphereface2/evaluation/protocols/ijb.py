"""IJB-B and IJB-C from their folder: images aligned by the points of the list, then templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sphereface2.data.sources.aligned_files import AlignedFiles
from sphereface2.evaluation.ijb import PARTS, IjbResult, IjbSet, evaluate_ijb
from sphereface2.evaluation.ijb_files import image_folder, read_ijb
from sphereface2.evaluation.protocols.roots import require_root, told
from sphereface2.evaluation.protocols.subject import Subject, rows_of
from sphereface2.evaluation.templates import ImageNorm
from sphereface2.models.unit_rows import Mirror, Vectors
from sphereface2.progress import Progress
from sphereface2.registry import nearest
from sphereface2.training.distributed import current_team

_PART_WORDS = {"standard": "1:N standard", "legacy": "1:N legacy", **{part: part for part in PARTS}}


def ijb_b(
    subject: Subject,
    root: Path | None,
    *,
    part: list[str] | None = None,
    norm: ImageNorm = "kept",
    detector_weights: bool = False,
    mirrored: bool | None = None,
) -> IjbResult | None:
    """IJB-B; the options are those of `ijb_c`."""
    return _ijb("ijb-b", subject, root, part, norm, detector_weights, mirrored)


def ijb_c(
    subject: Subject,
    root: Path | None,
    *,
    part: list[str] | None = None,
    norm: ImageNorm = "kept",
    detector_weights: bool = False,
    mirrored: bool | None = None,
) -> IjbResult | None:
    """IJB-C: meta/ and, for a model, loose_crop/ below `root`, aligned by the list's five points.

    part: some of "1:1", "1:N standard" and "1:N legacy"; all of them by default
    norm, detector_weights: the variants N and D of the template
    mirrored: whether a row of saved embeddings is [image | mirror image]
    """
    return _ijb("ijb-c", subject, root, part, norm, detector_weights, mirrored)


def _ijb(
    name: str,
    subject: Subject,
    root: Path | None,
    part: list[str] | None,
    norm: ImageNorm,
    detector_weights: bool,
    mirrored: bool | None,
) -> IjbResult | None:
    team = current_team()
    with team.together():
        place = require_root(root, name)
        parts = _parts(part)
        with subject.watch(f"reading the lists of {name}"):
            ijb = _read_ijb(place, name, parts)
    vectors: Vectors
    mirror: Mirror = "given"
    if subject.embeddings is not None:
        vectors, mirror = rows_of(
            subject.read(subject.embeddings, mirrored=mirrored),
            ijb.image_names,
            missing=subject.missing,
        )
    else:
        assert subject.embedder is not None
        with team.together():
            folder = image_folder(place, name=name)
            files = AlignedFiles(folder, ijb.image_names, ijb.landmarks)
        vectors = subject.embedder.embed(
            files,
            subject.output / "embeddings.npy",
            title=f"embedding the images of {name}",
            names=ijb.image_names,
        )
    if not team.is_first:
        return None
    images, absent = len(ijb), subject.absent(vectors)
    if absent.any():
        ijb, vectors = ijb.without(absent), vectors[~absent]
    with subject.watch(f"measuring {name}") as progress:
        result = evaluate_ijb(
            ijb,
            vectors,
            mirror=mirror,
            image_norm=norm,
            detector_weights=detector_weights,
            parts=parts,
            progress=None if progress is None else _any_stage(progress),
        )
    return told(result, subject, place, missing=int(absent.sum()), images=images)


def _parts(words: Sequence[str] | None) -> tuple[str, ...]:
    if not words:
        return PARTS
    unknown = [word for word in words if word not in _PART_WORDS]
    if unknown:
        raise ValueError(
            f"unknown part '{unknown[0]}'{nearest(unknown[0], _PART_WORDS)} (known: "
            f"{', '.join(_PART_WORDS)})"
        )
    chosen = {_PART_WORDS[word] for word in words}
    return tuple(part for part in PARTS if part in chosen)


def _read_ijb(root: Path, name: str, parts: Sequence[str]) -> IjbSet:
    if tuple(parts) != ("1:1",):
        return read_ijb(root, name=name)
    try:
        return read_ijb(root, name=name)  # who the templates show makes the intervals better
    except FileNotFoundError:
        return read_ijb(root, name=name, identification=False)


def _any_stage(progress: Progress) -> Callable[[str, int, int], None]:
    return lambda _, done, total: progress(done, total)
