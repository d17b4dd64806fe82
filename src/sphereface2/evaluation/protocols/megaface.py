"""MegaFace from its folder: the devkit's lists, and crops or feature files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from sphereface2.data.pairs.lists import ImageFiles
from sphereface2.data.sources.aligned_files import require_images
from sphereface2.evaluation.megaface import CENTRED, REMOVED, MegaFaceResult, megaface
from sphereface2.evaluation.megaface_files import MegaFaceSet, megaface_features, read_megaface
from sphereface2.evaluation.protocols.roots import require_root, told
from sphereface2.evaluation.protocols.subject import Subject
from sphereface2.progress import Progress
from sphereface2.training.distributed import current_team

_LIST = "megaface_features_list.json_"


def megaface_challenge(
    subject: Subject,
    root: Path | None,
    *,
    distractors: int | None = None,
    refined: bool = False,
    noisy_probes: Literal["removed", "centre"] | None = None,
) -> MegaFaceResult | None:
    """MegaFace: templatelists/ and, for a model, the crops in facescrub/ and megaface/.

    distractors: how many, where `root` has lists of several sizes; the largest by default
    refined: leave out what facescrub_noises.txt and megaface_noises.txt name
    noisy_probes: if refined, "removed" (the default), or "centre": replaced by their identity's
    centre, as InsightFace does
    """
    if noisy_probes is not None and not refined:
        raise ValueError(
            "noisy_probes goes with refined=True: without it no probe is known as noisy"
        )
    team = current_team()
    place = root if root is not None else subject.embeddings
    with team.together():
        place = require_root(place, "megaface")
        listed = _megaface_lists(place, distractors=distractors, refined=refined)
    if subject.embeddings is not None:
        with subject.watch("gathering features") as progress:
            probes, others, marked = megaface_features(
                subject.embeddings,
                listed,
                store=subject.output,
                missing=subject.missing,
                progress=progress,
            )
    else:
        probes, others = (
            _embed_files(subject, place / kind, names, kind)
            for kind, names in (
                ("facescrub", listed.probe_names),
                ("megaface", listed.distractor_names),
            )
        )
        marked = np.zeros(len(others), np.bool_)
    if not team.is_first:
        return None
    out, gone = subject.absent(probes), subject.absent(others)
    with subject.watch("searching") as progress:
        result = megaface(
            probes[~out] if out.any() else probes,
            listed.people[~out],
            others[~gone] if gone.any() else others,
            noisy_probes=listed.noisy_probes[~out] if refined else None,
            noisy_distractors=(listed.noisy_distractors | marked)[~gone],
            noisy_probes_are=CENTRED if noisy_probes == "centre" else REMOVED,
            name="megaface, refined" if refined else "megaface",
            progress=progress,
        )
    missing, images = int(out.sum() + gone.sum()), len(out) + len(gone)
    return told(result, subject, place, missing=missing, images=images)


def _megaface_lists(root: Path, *, distractors: int | None, refined: bool) -> MegaFaceSet:
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
    size = max(sizes) if distractors is None else distractors
    noises = [
        root / f"{kind}_noises.txt" if refined else None for kind in ("facescrub", "megaface")
    ]
    return read_megaface(root, size=size, probe_noises=noises[0], distractor_noises=noises[1])


def _embed_files(
    subject: Subject, folder: Path, names: Sequence[str], kind: str
) -> npt.NDArray[np.float32]:
    assert subject.embedder is not None
    return subject.embedder.embed(
        _Listed(folder, names),
        subject.output / f"{kind}.npy",
        title=f"embedding {kind}",
        names=names,
    )


class _Listed(ImageFiles):
    """The crops that a list names, all of which must be there."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__([folder / name for name in names])
        self.folder = folder
        self.names = names

    def prepare(self, *, workers: int = 1, progress: Progress | None = None) -> None:
        require_images(self.folder, self.names, progress=progress)
