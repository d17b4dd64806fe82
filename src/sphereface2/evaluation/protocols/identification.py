"""Identification from folders: who of gallery/ is each face of probe/, and is it anyone at all?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sphereface2.data.sources.folder import ImageFolder
from sphereface2.evaluation.identification import GalleryPooling, IdentificationResult, identify
from sphereface2.evaluation.protocols.roots import require_root, told
from sphereface2.evaluation.protocols.subject import Subject
from sphereface2.models.embedder import Faces
from sphereface2.models.unit_rows import Vectors, check_rows, fold_mirror
from sphereface2.training.distributed import current_team


def identification(
    subject: Subject,
    root: Path | None,
    *,
    pooling: GalleryPooling = "mean",
    mirrored: bool | None = None,
) -> IdentificationResult | None:
    """Gallery and probes: `root`/gallery/PERSON/* and `root`/probe/PERSON/*.

    Probes of people who are not in the gallery are the non-mated ones. Where the model keeps
    calibrated thresholds that hold for such embeddings, the rates at them are told as well. Saved
    embeddings are a folder with gallery.npy and probe.npy, or one file whose names begin with
    gallery/ and probe/.
    """
    team = current_team()
    if subject.embeddings is not None:
        gallery, enrolled, probes, wanted = _saved_people(subject, mirrored)
        flip = subject.flip_of(subject.embeddings)
    else:
        with team.together():
            place = require_root(root, "identification")
            sources = [
                _people_folder(place, names) for names in (("gallery",), ("probe", "probes"))
            ]
        tables = [
            _embed_people(subject, source, name)
            for source, name in zip(sources, ("gallery", "probe"), strict=True)
        ]
        (gallery, enrolled), (probes, wanted) = tables
        flip = subject.flip_of()
    if not team.is_first:
        return None
    out, gone = subject.absent(gallery), subject.absent(probes)
    if out.any() or gone.any():
        gallery, enrolled = gallery[~out], enrolled[~out]
        probes, wanted = probes[~gone], wanted[~gone]
    calibration = subject.calibration()
    holds = calibration is not None and calibration.flip == flip
    with subject.watch("searching") as progress:
        result = identify(
            gallery,
            enrolled,
            probes,
            wanted,
            pooling=pooling,
            thresholds=calibration.resolved_thresholds if calibration and holds else (),
            progress=progress,
        )
    if calibration is not None and not holds:
        how = "with" if calibration.flip else "without"
        left_out = f"calibrated thresholds left out: they hold {how} the mirror image's added"
        result = replace(result, conventions=(*result.conventions, left_out))
    missing, images = int(out.sum() + gone.sum()), len(out) + len(gone)
    return told(result, subject, root, missing=missing, images=images)


def _people_folder(root: Path, names: Sequence[str]) -> ImageFolder:
    found = [root / name for name in names if (root / name).is_dir()]
    if not found:
        raise FileNotFoundError(
            f"{root} has no folder {' or '.join(names)}; give the folder that holds gallery/PERSON/"
            " and probe/PERSON/"
        )
    return ImageFolder(path=str(found[0]))


def _embed_people(
    subject: Subject, source: ImageFolder, kind: str
) -> tuple[Vectors, npt.NDArray[np.str_]]:
    assert subject.embedder is not None
    names = [source.name(number) for number in range(len(source))]
    people = [source.person(number) for number in range(len(source))]
    vectors = subject.embedder.embed(
        Faces(source),
        subject.output / f"{kind}.npy",
        title=f"embedding {kind}",
        names=names,
        people=people,
    )
    return vectors, np.array(people)


def _saved_people(
    subject: Subject, mirrored: bool | None
) -> tuple[Vectors, npt.NDArray[Any], Vectors, npt.NDArray[Any]]:
    path = subject.embeddings
    assert path is not None
    if not path.is_dir():
        saved = subject.read(path, mirrored=mirrored)
        vectors = fold_mirror(np.asarray(saved.vectors), saved.mirror)
        check_rows(vectors, source=saved.source)
        parts = [name.split("/") for name in saved.names or ()]
        kinds = np.array([part[0] for part in parts])
        if not {"gallery", "probe"} <= set(kinds.tolist()) or any(len(p) < 3 for p in parts):
            raise ValueError(
                f"{path}: the names beside it must be gallery/PERSON/IMAGE and probe/PERSON/IMAGE; "
                "'sphereface2 extract MODEL DIR FILE' on the folder above both writes them so"
            )
        people = np.array([part[1] for part in parts])
        first, second = kinds == "gallery", kinds == "probe"
        return vectors[first], people[first], vectors[second], people[second]
    found: list[Any] = []
    absent = [name for name in ("gallery.npy", "probe.npy") if not (path / name).is_file()]
    if absent:
        raise FileNotFoundError(
            f"{path} has no {' and no '.join(absent)}; for identification the folder holds "
            "gallery.npy and probe.npy, each with a .txt of 'name person' lines beside it"
        )
    for kind in ("gallery", "probe"):
        saved = subject.read(path / f"{kind}.npy", mirrored=mirrored)
        if saved.people is None:
            raise ValueError(
                f"{saved.source}: it is not known whom it shows; put 'name person' a line into a "
                ".txt beside it"
            )
        found += [fold_mirror(np.asarray(saved.vectors), saved.mirror), saved.people]
    return found[0], found[1], found[2], found[3]
